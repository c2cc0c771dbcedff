//! The loopback interface of a network namespace.

use crate::check;
use std::io;
use std::os::fd::AsRawFd;

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
    }))
    .map(drop)
}
