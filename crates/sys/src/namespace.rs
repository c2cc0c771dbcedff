//! Namespaces by descriptor: whose they are, and what is above them.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Asks a namespace's descriptor for another one.
fn related(namespace: BorrowedFd<'_>, question: libc::Ioctl) -> io::Result<OwnedFd> {
    // SAFETY: both questions take no argument and answer with a new descriptor.
    let result = check(i64::from(unsafe {
        libc::ioctl(namespace.as_raw_fd(), question)
    }))?;
    let number = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The user namespace that owns a namespace.
pub fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    related(namespace, NS_GET_USERNS)
}

/// The user namespace above a user namespace.
pub fn parent(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    related(namespace, NS_GET_PARENT)
}
