//! Leases in a guest: its file server closes what the guest has open of a mount that is to go.
//!
//! The file server is in the cage, and the guest may have broken into it: nothing of this is proof.
//! A file that it leaves open is found as in any cage, and its process is killed.

use super::holders::{self, named};
use ironcage_sys::signals::{mounts_signal, queue};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How the file server calls itself.
const SERVER: &str = "ironcage-files";
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long until it is looked again.
const PAUSE: Duration = Duration::from_millis(1);

/// Has everything closed that was opened through these mounts, of which the first is seen at `path`
/// in the cage, and waits until it is.
pub(super) fn begin(proc: BorrowedFd<'_>, mounts: &[u64], path: &str) -> io::Result<()> {
    tell(proc, mounts, |mount| mount)?;
    let until = Instant::now() + PATIENCE;
    while !holders::find(proc, mounts, path)?.is_empty() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Says that these numbers may be those of other mounts from now on.
pub(super) fn end(proc: BorrowedFd<'_>, mounts: &[u64]) -> io::Result<()> {
    tell(proc, mounts, |mount| -mount)
}

fn tell(proc: BorrowedFd<'_>, mounts: &[u64], value: impl Fn(i32) -> i32) -> io::Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    for server in named(proc, SERVER)? {
        for mount in mounts {
            // A number that the signal cannot carry is not evicted; its holder is found.
            if let Ok(mount) = i32::try_from(*mount) {
                // It can only fail because the server is gone.
                let _ = queue(server.as_fd(), mounts_signal(), value(mount));
            }
        }
    }
    Ok(())
}
