//! Unix sockets of the host, from inside: one of the supervisor's own stands in the cage in
//! the place of each. A connection there becomes one to the real socket, which the supervisor
//! makes with its own name and rights, and the egress proxy carries the bytes and records them.

use super::held_socket::HeldSocket;
use crate::RunError;
use crate::signing::KeySockets;
use ironcage_control::{Listener, RuntimeDir};
use ironcage_model::{CageId, Printable};
use ironcage_plan::{FileBinding, Plan, Signing, SupervisorFile};
use ironcage_programs::Program;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{SocketFlags, accept_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A socket that stands in the cage for one of the host's.
#[derive(Debug)]
pub(crate) struct SocketProxy {
    listener: Listener,
    real: PathBuf,
    held: HeldSocket,
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

    /// A connection to the real socket, which comes about at once or not at all.
    pub(super) fn dial(&self) -> Result<OwnedFd, Errno> {
        self.held.dial()
    }
}

/// The files that the supervisor puts into a view, made before the plan is bound to them.
pub(crate) struct SupervisorFiles {
    pub(crate) sockets: Vec<SocketProxy>,
    /// Where the agent asks for permissions, if it can.
    pub(crate) request_socket: Option<Listener>,
    /// Where programs of the cage ask for signatures.
    pub(crate) keys: KeySockets,
    pub(crate) bindings: Vec<FileBinding>,
}

impl SupervisorFiles {
    /// Makes those that the plan names.
    pub(crate) fn make(plan: &Plan, runtime: &RuntimeDir, id: &CageId) -> Result<Self, RunError> {
        let mut made = SupervisorFiles {
            sockets: Vec::new(),
            request_socket: None,
            keys: KeySockets::default(),
            bindings: Vec::new(),
        };
        for (index, (file, target)) in plan.supervisor_files().enumerate() {
            let source = match file {
                SupervisorFile::SocketProxy => {
                    let (listener, source) = runtime.listen_for_cage(id, index)?;
                    made.sockets.push(SocketProxy {
                        listener,
                        real: target.to_owned(),
                        held: HeldSocket::hold(target)?,
                        leased: plan.is_leased_socket(target).then_some(false),
                    });
                    source
                }
                SupervisorFile::RequestSocket => {
                    let (listener, source) = runtime.listen_for_cage(id, index)?;
                    made.request_socket = Some(listener);
                    source
                }
                SupervisorFile::SshAgent => {
                    let (listener, source) = runtime.listen_for_cage(id, index)?;
                    made.keys.ssh = Some(listener);
                    source
                }
                SupervisorFile::GpgAgent => {
                    let (listener, source) = runtime.listen_for_cage(id, index)?;
                    made.keys.gpg = Some(listener);
                    source
                }
                SupervisorFile::GpgKeyring => {
                    let keyring = plan.signing.as_ref().map(Signing::gpg_keyring);
                    let keyring = keyring.unwrap_or_default();
                    let (file, source) = runtime.write_for_cage(id, index, &keyring)?;
                    made.keys.keyring = Some(file);
                    source
                }
                SupervisorFile::InsideProgram => Program::Inside.find()?,
                SupervisorFile::ReaderProgram => Program::Reader.find()?,
                SupervisorFile::WasmProgram => Program::Wasm.find()?,
            };
            made.bindings.push(FileBinding {
                target: target.to_owned(),
                source,
            });
        }
        Ok(made)
    }
}

/// The cage has them in its view: nobody needs their names outside any more.
pub(crate) fn hide(made: &[SocketProxy]) {
    for proxy in made {
        proxy.listener.hide();
    }
}
