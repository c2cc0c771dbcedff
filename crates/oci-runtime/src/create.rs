//! `create`: from a bundle to a container whose first process waits.

use crate::audit::Trail;
use crate::cgroup::Groups;
use crate::channel::{Channel, Step};
use crate::error::{Error, IoContext as _};
use crate::init::{Start, fork_first, open_waiting};
use crate::namespaces;
use crate::process::Confinement;
use crate::state::{ContainerDir, ContainerRecord, Status, Store};
use crate::{check, clock, hooks, kernel, policy, spec};
use ironcage_model::Ending;
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What `create` was asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) policy_file: Option<PathBuf>,
    pub(crate) console_socket: Option<PathBuf>,
    pub(crate) pidfd_socket: Option<PathBuf>,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) preserved: i32,
    pub(crate) no_pivot: bool,
    pub(crate) no_new_keyring: bool,
}

pub(crate) fn create(store: &Store, request: &Request) -> Result<(), Error> {
    let action = || format!("use the bundle {}", request.bundle.display());
    let bundle = request.bundle.canonicalize().doing(action)?;
    let spec: spec::Spec = spec::read(&bundle.join("config.json"))?;
    let layers = policy::resolve(request.policy_file.as_deref(), &spec.annotations)?;
    let spec = check::narrowed(spec, &layers)?;
    let root = spec
        .root
        .as_ref()
        .map(|root| root.path.clone())
        .unwrap_or_default();
    let rootfs = bundle
        .join(&root)
        .canonicalize()
        .doing(|| format!("use the root file system {}", root.display()))?;
    if spec.process.is_none() {
        return Err(Error::refused(
            "create a container",
            "config.json has no process",
        ));
    }
    let groups = Groups::of(&spec.linux.cgroups_path, &request.id)?;
    let record = ContainerRecord {
        id: request.id.clone(),
        pid: None,
        started: 0,
        bundle,
        rootfs,
        created: clock::now(),
        owner: ironcage_sys::process::started_as(),
        groups,
        layers,
        audit: Some(Trail::new(store.root(), &request.id)?),
        spec,
    };
    let kept = store.create(&request.id)?;
    match make(&kept, record, request) {
        Ok(()) => Ok(()),
        Err(error) => {
            // Everything that was made is this start's: nothing of it stays.
            if let Ok((record, _)) = kept.look() {
                let _ = record.groups.kill();
                let _ = record.groups.remove();
                if let Some(trail) = &record.audit {
                    trail.end(Ending::Unobserved);
                }
            }
            let _ = kept.remove();
            Err(error)
        }
    }
}

fn make(kept: &ContainerDir, mut record: ContainerRecord, request: &Request) -> Result<(), Error> {
    let plan = namespaces::plan(&record.spec)?;
    let confinement = Confinement::new(&record.spec, &record.layers)?;
    let console = console(&record, request)?;
    let pidfd_socket = request.pidfd_socket.as_deref().map(connect).transpose()?;
    let waiting = open_waiting(&kept.waiting())?;
    record.groups.check_empty()?;
    // Written down first: whatever this start leaves is found by it.
    kept.save(&record)?;
    record.groups.make(&record.spec.linux.resources)?;
    let process = record.spec.process.clone().unwrap_or_default();
    let (mut channel, theirs) = Channel::pair()?;
    let start = Start {
        record: &record,
        process: &process,
        plan: &plan,
        confinement: &confinement,
        console,
        waiting: Some(waiting),
        preserved: request.preserved,
        no_pivot: request.no_pivot,
        new_keyring: !request.no_new_keyring,
    };
    match fork(Namespaces::NONE, None).doing(|| "fork".into())? {
        Forked::Child => {
            drop(channel);
            fork_first(start, theirs)
        }
        Forked::Parent { pid, .. } => {
            drop(theirs);
            drop(start);
            let first = channel.forked();
            // It has ended, or is about to.
            let _ = waitpid(Some(pid), WaitOptions::empty());
            let first = first?;
            record.pid = Some(first);
            record.started = kernel::started(first).unwrap_or(0);
            kept.save(&record)?;
        }
    }
    let first = record.pid.unwrap_or_default();
    if plan.new_user {
        namespaces::write_maps(first, &record.spec)?;
    }
    if let Some(adjustment) = process.oom_score_adj {
        let path = format!("/proc/{first}/oom_score_adj");
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(adjustment.to_string().as_bytes()))
            .doing(|| format!("write {path}"))?;
    }
    channel.send(&Step::Go)?;
    channel.expect(&Step::Mounted)?;
    let state = serde_json::to_string(&record.shown(Status::Creating)).unwrap_or_default();
    hooks::run("prestart", &record.spec.hooks.prestart, &state)?;
    hooks::run("createRuntime", &record.spec.hooks.create_runtime, &state)?;
    channel.send(&Step::Go)?;
    channel.expect(&Step::Ready)?;
    if let Some(socket) = pidfd_socket {
        send_pidfd(&socket, first)?;
    }
    if let Some(path) = &request.pid_file {
        write_pid(path, first)?;
    }
    // Nothing of the image has run yet, and nothing of it does before this is written.
    if let Some(trail) = &record.audit {
        trail.begin(&record, &plan)?;
    }
    channel.send(&Step::Go)
}

/// Where the engine waits for the terminal. Both or none.
fn console(record: &ContainerRecord, request: &Request) -> Result<Option<UnixStream>, Error> {
    let terminal = record
        .spec
        .process
        .as_ref()
        .is_some_and(|process| process.terminal);
    match (&request.console_socket, terminal) {
        (Some(path), true) => Ok(Some(connect(path)?)),
        (None, false) => Ok(None),
        (Some(_), false) => Err(Error::refused(
            "use --console-socket",
            "process.terminal is false in config.json",
        )),
        (None, true) => Err(Error::refused(
            "make a terminal",
            "the engine named no socket to receive it",
        )
        .with_hint("pass --console-socket, or set process.terminal to false in config.json")),
    }
}

pub(crate) fn connect(path: &Path) -> Result<UnixStream, Error> {
    UnixStream::connect(path).doing(|| format!("connect to {}", path.display()))
}

pub(crate) fn send_pidfd(socket: &UnixStream, pid: i32) -> Result<(), Error> {
    let action = || "send the process to --pidfd-socket".to_owned();
    let Some(pid) = Pid::from_raw(pid) else {
        return Err(Error::refused(action(), "there is none"));
    };
    let process = pidfd_open(pid, PidfdFlags::empty()).doing(action)?;
    ironcage_sys::packet::send_with(socket.as_fd(), b"pidfd", process.as_fd()).doing(action)
}

/// Whole or not at all: engines wait for the file.
pub(crate) fn write_pid(path: &Path, pid: i32) -> Result<(), Error> {
    let action = || format!("write the pid file {}", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    std::fs::write(&new, pid.to_string()).doing(action)?;
    std::fs::rename(&new, path).doing(action)
}
