//! Descriptors that are no longer needed, closed several in one call.
//!
//! A start opens some thirty small files of the kernel, one after the other. Closing each at once
//! is a twentieth of its system calls.

use crate::process::close_together;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// As many are left open, at most. A start has some forty: most commands are over before anybody
/// needs their numbers, and the end of the process closes them all.
const MOST: usize = 64;

static SPENT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

fn spent() -> MutexGuard<'static, Vec<OwnedFd>> {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a descriptor with the next ones. Only for what nobody waits for the end of: not for
/// pipes, sockets, locks, or files that were written to a file system that is to be unmounted.
pub fn close_later(descriptor: impl Into<OwnedFd>) {
    let mut spent = spent();
    spent.push(descriptor.into());
    if spent.len() >= MOST {
        // What cannot be closed was not open.
        let _ = close_together(std::mem::take(&mut *spent));
    }
}

/// Closes them.
///
/// # Errors
/// Where the system refuses.
pub fn close_spent() -> io::Result<()> {
    close_together(std::mem::take(&mut *spent()))
}

/// In the child of a fork: they stay open until it closes all but its own, and are not closed a
/// second time when their numbers have long been given to others.
pub(crate) fn forget() {
    std::mem::forget(std::mem::take(&mut *spent()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn spent_descriptors_are_closed_together_and_never_too_many_are_left() {
        let path = std::env::temp_dir().join(format!("ironcage-spent-{}", std::process::id()));
        let is_open = |number: i32| {
            std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|to| to == path)
        };
        let spend = || {
            let file = File::create(&path).unwrap();
            let number = file.as_raw_fd();
            close_later(file);
            number
        };
        let first = spend();
        assert!(is_open(first));
        close_spent().unwrap();
        assert!(!is_open(first));
        let numbers: Vec<i32> = (0..=MOST).map(|_| spend()).collect();
        assert!(numbers.iter().filter(|number| is_open(**number)).count() < MOST);
        close_spent().unwrap();
        assert!(!numbers.into_iter().any(is_open));
        std::fs::remove_file(&path).unwrap();
    }
}
