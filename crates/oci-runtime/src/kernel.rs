//! Files that the kernel makes: the only ones that this crate reads without a bound.

use std::io;
use std::path::Path;

/// The text of a file of the kernel.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    std::fs::read_to_string(path)
}

/// The number in a file of the kernel.
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    read(path).ok()?.trim().parse().ok()
}

/// The value behind a word in a file with a line for each.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok())?
    })
}

/// When a process began, in the kernel's ticks; `None` where it is gone or only waits to be reaped.
pub(crate) fn started(pid: i32) -> Option<u64> {
    let text = read(format!("/proc/{pid}/stat")).ok()?;
    // A program chooses its own name, brackets included: the last one ends it.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then(|| fields.nth(18)?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_began_and_one_that_is_not_there_did_not() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(started(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(i32::MAX), None);
        assert_eq!(field("usage 5\nother 7\n", "other"), Some(7));
        assert_eq!(field("usage 5\n", "use"), None);
    }
}
