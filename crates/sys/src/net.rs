//! The loopback interface of a network namespace; the peer of a Unix socket.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Brings `lo` up in the caller's network namespace, so that servers inside work.
pub fn loopback_up() -> io::Result<()> {
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: i16,
        padding: [u8; 22],
    }
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut request = Request {
        name: [0; 16],
        flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16,
        padding: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: the structure is as large as the kernel's `struct ifreq` (40 bytes) and lives
    // across the call.
    check(i64::from(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as libc::Ioctl,
            std::ptr::from_mut(&mut request),
        )
    }))?;
    // The process that makes a network namespace ends when it has handed it over.
    std::mem::forget(socket);
    Ok(())
}

/// The process at the other end of a connected Unix socket, as a descriptor: it stays that
/// process whatever becomes of its number. `None` where the kernel (before 6.5) has no such
/// thing.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    const SO_PEERPIDFD: libc::c_int = linux_raw_sys::net::SO_PEERPIDFD as libc::c_int;
    let mut pidfd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the place for the answer and its length live across the call and fit each other.
    let result = check(i64::from(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            std::ptr::from_mut(&mut pidfd).cast(),
            std::ptr::from_mut(&mut length),
        )
    }));
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(error) => Err(error),
        // SAFETY: the kernel made a fresh descriptor for this call, which nobody else owns.
        Ok(_) => Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}
