//! A Unix socket of the host, by its directory as it was when the cage started.

use crate::RunError;
use ironcage_sys::mount::open_source;
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

/// A host socket. An agent that can write above its directory could put another in its place; the
/// server may make its socket again in the same directory.
#[derive(Debug)]
pub(crate) struct HeldSocket {
    directory: OwnedFd,
    name: OsString,
}

impl HeldSocket {
    /// Holds the directory of a socket.
    pub(crate) fn hold(path: &Path) -> Result<HeldSocket, RunError> {
        let refuse = |source| RunError::Socket {
            path: path.to_owned(),
            source,
        };
        let not_there = || refuse(io::Error::from(io::ErrorKind::NotFound));
        let name = path.file_name().ok_or_else(not_there)?.to_owned();
        let directory = path.parent().ok_or_else(not_there)?;
        let directory = open_source(directory).map_err(refuse)?;
        Ok(HeldSocket { directory, name })
    }

    /// A connection, which comes about at once or not at all. What is connected to is what was
    /// looked at: no name is resolved twice, and no link followed.
    pub(crate) fn dial(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let real = openat(&self.directory, &self.name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&real)?.st_mode) != FileType::Socket {
            return Err(Errno::NOTSOCK);
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let itself = format!("/proc/self/fd/{}", real.as_raw_fd());
        connect(&socket, &SocketAddrUnix::new(itself.as_str())?)?;
        Ok(socket)
    }
}

impl AsFd for HeldSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}
