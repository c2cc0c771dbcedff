//! Unix sockets of the host, from inside: one of the supervisor's own stands in the cage in
//! the place of each. A connection there becomes one to the real socket, which the supervisor
//! makes with its own name and rights, and the egress proxy carries the bytes and records them.

use crate::RunError;
use ironcage_control::{Listener, RuntimeDir};
use ironcage_model::{CageId, Printable};
use ironcage_plan::{FileBinding, Plan, SupervisorFile};
use ironcage_programs::Program;
use ironcage_sys::mount::open_source;
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A socket that stands in the cage for one of the host's.
#[derive(Debug)]
pub(crate) struct SocketProxy {
    listener: Listener,
    real: PathBuf,
    /// The directory of the real one, as it was when the plan was made: an agent that can write
    /// above it could put another in its place. The server may make its socket anew there.
    directory: OwnedFd,
    name: OsString,
    /// Whether connections are taken, where that needs a lease.
    leased: Option<bool>,
}

impl SocketProxy {
    /// Whether it is there for leases on this socket.
    pub(super) fn stands_for(&self, path: &str) -> bool {
        self.leased.is_some() && self.real.as_os_str() == path
    }

    /// Where connections come in.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The real one, as the log and the proxy name it.
    pub(super) fn name(&self) -> String {
        Printable::new(&self.real).to_string()
    }

    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    /// Whether connections are taken, where that needs a lease.
    pub(super) fn leased(&self) -> Option<bool> {
        self.leased
    }

    /// A lease begins or ends.
    pub(super) fn set_open(&mut self, open: bool) {
        self.leased = Some(open);
    }

    /// Takes one connection.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        accept_with(&self.listener, flags).ok()
    }

    /// A connection to the real socket, which comes about at once or not at all. What is connected
    /// to is what was looked at: no name is resolved twice, and no link followed.
    pub(super) fn dial(&self) -> Result<OwnedFd, Errno> {
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

/// The files that the supervisor puts into a view, made before the plan is bound to them.
pub(crate) struct SupervisorFiles {
    pub(crate) sockets: Vec<SocketProxy>,
    /// Where the agent asks for permissions, if it can.
    pub(crate) request_socket: Option<Listener>,
    pub(crate) bindings: Vec<FileBinding>,
}

impl SupervisorFiles {
    /// Makes those that the plan names.
    pub(crate) fn make(plan: &Plan, runtime: &RuntimeDir, id: &CageId) -> Result<Self, RunError> {
        let mut made = SupervisorFiles {
            sockets: Vec::new(),
            request_socket: None,
            bindings: Vec::new(),
        };
        for (index, (file, target)) in plan.supervisor_files().enumerate() {
            let source = match file {
                SupervisorFile::SocketProxy => {
                    let (directory, name) = hold(target)?;
                    let (listener, source) = runtime.listen_for_cage(id, index)?;
                    made.sockets.push(SocketProxy {
                        listener,
                        real: target.to_owned(),
                        directory,
                        name,
                        leased: plan.is_leased_socket(target).then_some(false),
                    });
                    source
                }
                SupervisorFile::RequestSocket => {
                    let (listener, source) = runtime.listen_for_cage(id, index)?;
                    made.request_socket = Some(listener);
                    source
                }
                SupervisorFile::InsideProgram => Program::Inside.find()?,
                SupervisorFile::ReaderProgram => Program::Reader.find()?,
            };
            made.bindings.push(FileBinding {
                target: target.to_owned(),
                source,
            });
        }
        Ok(made)
    }
}

/// Holds the directory of a socket.
fn hold(path: &Path) -> Result<(OwnedFd, OsString), RunError> {
    let refuse = |source| RunError::Socket {
        path: path.to_owned(),
        source,
    };
    let not_there = || refuse(io::Error::from(io::ErrorKind::NotFound));
    let name = path.file_name().ok_or_else(not_there)?;
    let directory = path.parent().ok_or_else(not_there)?;
    let directory = open_source(directory).map_err(refuse)?;
    Ok((directory, name.to_owned()))
}

/// The cage has them in its view: nobody needs their names outside any more.
pub(crate) fn hide(made: &[SocketProxy]) {
    for proxy in made {
        proxy.listener.hide();
    }
}
