//! Landlock: a second lock on file writes, on signals and on abstract sockets; or the first lock
//! on everything, where there are no namespaces.
//!
//! As the second lock only write rights are handled: rules on reads cost up to half of an open, and the mount
//! namespace already decides what can be read. No TCP rules: they know ports only, and the
//! network namespace does that work.

use crate::error::LayerError;
use ironcage_model::Layer;
use ironcage_plan::{AccessRights, AccessRule, Item, WriteRights, WriteRule};
use ironcage_sys::host::landlock_abi;
use ironcage_sys::landlock::{Handled, allow, create, restrict_self};
use ironcage_sys::mount::open_source;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::Errno;
use landlock::{ABI, Access as _, AccessFs, AccessNet, BitFlags, Scope};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The first version of the interface with a right to move files between directories.
const WITH_REFER: u32 = 2;
/// The first version with scopes.
const WITH_SCOPES: u32 = 6;

/// Where the process file system stands in every view.
const PROC: &str = "/proc";

fn failed(action: String, source: impl Into<io::Error>) -> LayerError {
    LayerError {
        layer: Layer::Landlock,
        action,
        source: source.into(),
        code: ironcage_model::StartCode::LayerFailed,
    }
}

/// Rules that are not in force yet. The places that they name stay open: the caller is the first
/// process of a cage, which closes all but its own in a few calls.
#[derive(Debug)]
pub struct Ruleset(OwnedFd);

impl Ruleset {
    fn new(handled: Handled) -> Result<Ruleset, LayerError> {
        let made = create(handled);
        Ok(Ruleset(
            made.map_err(|error| failed("make a ruleset".into(), error))?,
        ))
    }

    /// Rules on what may be written. What an older kernel does not know is left out; the plan's
    /// report says so. `places` are handles of some of the places that the rules name, and so is
    /// `proc` where the cage has a process file system of its own.
    pub fn on_writes(
        rules: &[Item<WriteRule>],
        places: &[(PathBuf, OwnedFd)],
        proc: Option<BorrowedFd<'_>>,
    ) -> Result<Ruleset, LayerError> {
        let scoped = Scope::AbstractUnixSocket | Scope::Signal;
        Ruleset::on_writes_within(rules, places, proc, scoped)
    }

    /// Rules on what a container of another engine may write. `host_sockets` keeps it from abstract
    /// sockets outside, `host_processes` from signals to them: for one that shares the host's
    /// network or processes. Each `exec` has a domain of its own, so that neither reaches the
    /// container's first process then.
    pub fn on_container_writes(
        rules: &[Item<WriteRule>],
        (host_sockets, host_processes): (bool, bool),
    ) -> Result<Ruleset, LayerError> {
        let mut scoped = BitFlags::empty();
        if host_sockets {
            scoped |= Scope::AbstractUnixSocket;
        }
        if host_processes {
            scoped |= Scope::Signal;
        }
        Ruleset::on_writes_within(rules, &[], None, scoped)
    }

    /// Also allows writing to a file that is open already. What has no place, such as a pipe, needs
    /// no rule.
    pub fn allow_open_file(&self, file: BorrowedFd<'_>) {
        let rights: BitFlags<AccessFs> = AccessFs::WriteFile.into();
        let _ = allow(self.0.as_fd(), file, rights.bits());
    }

    fn on_writes_within(
        rules: &[Item<WriteRule>],
        places: &[(PathBuf, OwnedFd)],
        proc: Option<BorrowedFd<'_>>,
        wanted: BitFlags<Scope>,
    ) -> Result<Ruleset, LayerError> {
        let abi = landlock_abi();
        // Not TRUNCATE and IOCTL_DEV: handling them makes the kernel walk the path at every open,
        // reads included (+250 to +600 ns), for what read-only mounts and the short list of
        // devices already hold. Opening for writing with O_TRUNC needs WRITE_FILE, which is here.
        let all = match abi {
            WITH_REFER.. => AccessFs::from_write(ABI::V2),
            _ => AccessFs::from_write(ABI::V1),
        };
        let scoped = match abi {
            WITH_SCOPES.. => wanted,
            _ => BitFlags::empty(),
        };
        let ruleset = Ruleset::new(Handled {
            files: all.bits(),
            ports: 0,
            scoped: scoped.bits(),
        })?;
        for item in rules {
            let WriteRule { path, rights } = &item.what;
            let access: BitFlags<AccessFs> = match rights {
                WriteRights::Tree => all,
                WriteRights::Existing => AccessFs::WriteFile.into(),
            };
            // A rule is about a file, however the handle of it was made.
            let mounted = places.iter().find(|(place, _)| place == path);
            let mounted = mounted.map(|(_, place)| place.as_fd());
            match mounted.or(proc.filter(|_| path == Path::new(PROC))) {
                Some(place) => ruleset.add(path, place, access)?,
                None => {
                    let flags = OFlags::PATH | OFlags::CLOEXEC;
                    let opened = open(path, flags, Mode::empty());
                    let place = opened.map_err(|errno| failed(adding(path), errno))?;
                    ruleset.add(path, place.as_fd(), access)?;
                    std::mem::forget(place);
                }
            }
        }
        Ok(ruleset)
    }

    /// Rules on everything: every right on files, TCP, signals and abstract sockets. A kernel that
    /// does not know all of them is refused.
    pub fn on_everything(rules: &[Item<AccessRule>]) -> Result<Ruleset, LayerError> {
        // No rule on ports follows: none can be bound or connected to. Sockets are the filter's to
        // refuse; this is the second lock.
        let ruleset = Ruleset::new(Handled {
            files: AccessFs::from_all(ABI::V6).bits(),
            ports: (AccessNet::BindTcp | AccessNet::ConnectTcp).bits(),
            scoped: (Scope::AbstractUnixSocket | Scope::Signal).bits(),
        })?;
        for item in rules {
            let AccessRule { path, rights } = &item.what;
            // Follows no link: the path is a real one, and what has become a link since then is
            // somebody's try to have a rule for another place.
            match open_source(path) {
                Ok(place) => {
                    ruleset.add(path, place.as_fd(), granted(*rights))?;
                    std::mem::forget(place);
                }
                // What the host's own permissions keep the agent from reaching needs no rule.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(failed(adding(path), error)),
            }
        }
        Ok(ruleset)
    }

    fn add(
        &self,
        path: &Path,
        place: BorrowedFd<'_>,
        access: BitFlags<AccessFs>,
    ) -> Result<(), LayerError> {
        let add = |access: BitFlags<AccessFs>| allow(self.0.as_fd(), place, access.bits());
        let added = match add(access) {
            // What only directories have is refused for a file.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                add(access & AccessFs::from_file(ABI::V6))
            }
            other => other,
        };
        added.map_err(|error| failed(adding(path), error))
    }

    /// The descriptor that has to stay open until they are in force.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// Restricts the calling process, for good. It has no_new_privs set. Returns the descriptor of
    /// the rules, which is of no more use.
    pub fn enforce(self) -> Result<OwnedFd, LayerError> {
        restrict_self(self.0.as_fd())
            .map_err(|error| failed("restrict this process".into(), error))?;
        Ok(self.0)
    }
}

fn adding(path: &Path) -> String {
    format!("add a rule for {}", path.display())
}

fn granted(rights: AccessRights) -> BitFlags<AccessFs> {
    let read = AccessFs::Execute | AccessFs::ReadFile;
    let write = AccessFs::WriteFile | AccessFs::Truncate;
    match rights {
        AccessRights::ReadTree => read | AccessFs::ReadDir,
        AccessRights::ReadFile => read,
        // Not using devices: there are none in a workspace that were not put there.
        AccessRights::WriteTree => {
            AccessFs::from_all(ABI::V6)
                & !(AccessFs::IoctlDev | AccessFs::MakeChar | AccessFs::MakeBlock)
        }
        AccessRights::WriteFile => read | write,
        AccessRights::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
    }
}
