//! Byte locks that belong to an open file, and so end with it.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Tries to lock one byte of a file for this open file description alone. `false` when
/// somebody else has it. The lock ends when the last copy of the descriptor is closed,
/// however its owner dies.
pub fn try_lock_byte(file: BorrowedFd<'_>, offset: i64) -> io::Result<bool> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the structure lives across the call.
    let result = unsafe {
        libc::fcntl(
            file.as_raw_fd(),
            libc::F_OFD_SETLK,
            std::ptr::from_mut(&mut lock),
        )
    };
    match check(i64::from(result)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
