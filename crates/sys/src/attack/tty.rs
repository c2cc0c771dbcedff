//! Attempts on a terminal: pushing input that the user's shell would read.

use super::checked;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// TIOCSTI: puts one byte into the terminal's input queue. With `high_bits`, bits above 32 are
/// set in the request, which the kernel ignores and a careless filter compares.
pub fn push_input(terminal: BorrowedFd<'_>, byte: u8, high_bits: bool) -> Result<(), Errno> {
    #[allow(clippy::unnecessary_cast, reason = "musl has it as another type")]
    const TIOCSTI: u64 = libc::TIOCSTI as u64;
    let request = TIOCSTI | if high_bits { 1 << 32 } else { 0 };
    // SAFETY: TIOCSTI reads one byte. The raw call keeps the upper half of the request.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            terminal.as_raw_fd(),
            request,
            &raw const byte,
        )
    };
    checked(answer).map(drop)
}

/// TIOCSCTTY with the flag that takes the terminal from another session.
pub fn steal_terminal(terminal: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: TIOCSCTTY takes a number.
    checked(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 1) }.into()).map(drop)
}

/// TIOCLINUX paste: inserts the console's selection as input.
pub fn console_paste(terminal: BorrowedFd<'_>) -> Result<(), Errno> {
    const PASTE: u8 = 3;
    let subcode = [PASTE, 0, 0, 0];
    // SAFETY: TIOCLINUX with this subcode reads one byte.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCLINUX, subcode.as_ptr()) };
    checked(answer.into()).map(drop)
}

/// Makes a terminal hand over input byte by byte.
pub fn make_raw(terminal: impl AsFd) -> Result<(), Errno> {
    let mut settings = rustix::termios::tcgetattr(&terminal)?;
    settings.make_raw();
    rustix::termios::tcsetattr(&terminal, rustix::termios::OptionalActions::Now, &settings)
}

/// Takes what waits in a terminal's input queue, without blocking.
pub fn drain_input(terminal: impl AsFd) -> Result<Vec<u8>, Errno> {
    let mut buffer = [0u8; 256];
    match rustix::io::read(terminal, &mut buffer) {
        Ok(length) => Ok(buffer[..length].to_vec()),
        Err(Errno::AGAIN) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
