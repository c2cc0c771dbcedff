//! Where the command is among a shell's arguments.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// The text after `-c`, in all the ways to write that: `-c T`, `-lc T`, `-l -c T`, `-c -l T`.
pub(super) fn command(arguments: &[OsString]) -> Option<&str> {
    let mut words = arguments.iter();
    let mut given = false;
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        let more = match bytes {
            b"--" | b"-" => {
                return words.next().filter(|_| given)?.to_str();
            }
            b"--rcfile" | b"--init-file" => 1,
            [b'-', b'-', ..] => 0,
            [sign @ (b'-' | b'+'), letters @ ..] => {
                given |= *sign == b'-' && letters.contains(&b'c');
                // Each takes the name of an option.
                letters.iter().filter(|l| matches!(l, b'o' | b'O')).count()
            }
            _ => return word.to_str().filter(|_| given),
        };
        for _ in 0..more {
            words.next()?;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        command(&words).map(str::to_owned)
    }

    #[test]
    fn the_command_is_found_as_shells_find_it() {
        for line in [
            "-c T",
            "-lc T",
            "-l -c T",
            "-c -l T a b",
            "-ec T",
            "--norc -c T",
            "-c -- T",
            "-o pipefail -c T",
            "-eo pipefail -c T",
            "--rcfile f -c T",
            "+x -c T",
            "-c - T",
        ] {
            assert_eq!(found(line).as_deref(), Some("T"), "{line}");
        }
        for line in ["", "T", "-l", "-s -c", "script -c T", "-o c T", "+c T"] {
            assert_eq!(found(line), None, "{line}");
        }
    }
}
