//! `exec`: another process in a running container, under the layers of the first.

use crate::channel::{Channel, Step};
use crate::check;
use crate::create::{connect, send_pidfd, write_pid};
use crate::error::{Error, IoContext as _};
use crate::init::{become_root, end, hand_over};
use crate::namespaces::{self, Joined};
use crate::process::{Confinement, Surroundings, become_program};
use crate::rootfs::joined_terminal;
use crate::spec::Process;
use crate::state::{ContainerRecord, Status, Store};
use ironcage_layers::privileges;
use ironcage_model::Ending;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::rustix::process::{Pid, WaitOptions, setsid, waitpid};
use std::convert::Infallible;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

/// What `exec` was asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) process: Process,
    pub(crate) console_socket: Option<PathBuf>,
    pub(crate) pidfd_socket: Option<PathBuf>,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) preserved: i32,
    pub(crate) detach: bool,
    pub(crate) ignore_paused: bool,
}

/// The exit status of the process, or 0 when it was left alone.
pub(crate) fn exec(store: &Store, mut request: Request) -> Result<u8, Error> {
    let (record, status) = store.look(&request.id)?;
    match status {
        Status::Running | Status::Created => {}
        Status::Paused if request.ignore_paused => {}
        status => {
            return Err(Error::WrongStatus {
                action: "exec in",
                id: request.id,
                wanted: "running",
                status: status.name(),
            });
        }
    }
    if request.process.capabilities.is_none() {
        request.process.capabilities = record
            .spec
            .process
            .as_ref()
            .and_then(|process| process.capabilities.clone());
    }
    check::narrow_process(&mut request.process, &record.layers)?;
    let confinement = Confinement::new(&record.spec, &record.layers)?;
    let console = match (&request.console_socket, request.process.terminal) {
        (Some(path), true) => Some(connect(path)?),
        (_, false) => None,
        (None, true) => {
            return Err(Error::refused(
                "make a terminal",
                "the engine named no socket to receive it",
            )
            .with_hint("pass --console-socket, or leave --tty out"));
        }
    };
    let pid = record.pid.unwrap_or_default();
    let joined = namespaces::of_process(pid)?;
    // What was opened is the container's if its first process still runs.
    if !record.is_alive() {
        return Err(Error::WrongStatus {
            action: "exec in",
            id: request.id,
            wanted: "running",
            status: Status::Stopped.name(),
        });
    }
    // Until this command ends, what it starts is its own child.
    crate::manage::become_reaper()?;
    let (mut channel, theirs) = Channel::pair()?;
    match fork(Namespaces::NONE, None).doing(|| "fork".into())? {
        Forked::Child => {
            drop(channel);
            enter(&record, &request, &joined, &confinement, console, theirs)
        }
        Forked::Parent { pid, .. } => {
            drop(theirs);
            let forked = channel.forked();
            let _ = waitpid(Some(pid), WaitOptions::empty());
            let forked = forked?;
            let asked = channel.send(&Step::Go);
            if let Err(error) = asked.and_then(|()| channel.expect(&Step::Ready)) {
                let _ = waitpid(Pid::from_raw(forked), WaitOptions::empty());
                return Err(error);
            }
            if let Some(path) = &request.pidfd_socket {
                send_pidfd(&connect(path)?, forked)?;
            }
            if let Some(path) = &request.pid_file {
                write_pid(path, forked)?;
            }
            let begun = Instant::now();
            let unlogged = || {
                Error::refused(
                    format!("log container {:?}", record.id),
                    "it was created without a log",
                )
                .with_hint("delete the container and create it again")
            };
            let trail = record.audit.as_ref().ok_or_else(unlogged)?;
            // It waits, and ends when nobody says `Go`.
            let number = trail.exec(&request.process.args, request.detach)?;
            channel.send(&Step::Go)?;
            if request.detach {
                return Ok(0);
            }
            let ending = wait(forked)?;
            let status = ending.exit_code();
            trail.exec_ended(number, ending, begun.elapsed());
            Ok(status)
        }
    }
}

/// Waits for a process of this one.
pub(crate) fn wait(pid: i32) -> Result<Ending, Error> {
    let ended = waitpid(Pid::from_raw(pid), WaitOptions::empty())
        .doing(|| format!("wait for process {pid}"))?;
    let status = ended.map(|(_, status)| status);
    let code = status.and_then(|status| u8::try_from(status.exit_status()?).ok());
    let signal = status.and_then(|status| status.terminating_signal());
    Ok(match (code, signal) {
        (Some(code), _) => Ending::Exited { code },
        (None, Some(signal)) => Ending::Signalled { signal },
        (None, None) => Ending::Unobserved,
    })
}

fn enter(
    record: &ContainerRecord,
    request: &Request,
    joined: &[Joined],
    confinement: &Confinement,
    console: Option<UnixStream>,
    mut channel: Channel,
) -> ! {
    let forked = (|| {
        record.groups.enter()?;
        privileges::not_dumpable()?;
        namespaces::join(joined)?;
        if namespaces::joins_user(joined) {
            become_root()?;
        }
        fork(Namespaces::NONE, None).doing(|| "fork into the container".into())
    })();
    match forked {
        Ok(Forked::Parent { pid, .. }) => {
            let _ = channel.send(&Step::Forked(pid.as_raw_nonzero().get()));
            exit_now(0)
        }
        Ok(Forked::Child) => {
            let failed = match run(request, confinement, console, &mut channel) {
                Err(error) => error,
                Ok(never) => match never {},
            };
            end(&mut channel, &failed)
        }
        Err(error) => end(&mut channel, &error),
    }
}

fn run(
    request: &Request,
    confinement: &Confinement,
    console: Option<UnixStream>,
    channel: &mut Channel,
) -> Result<Infallible, Error> {
    // The other side hears first which process this is: its parent says that on the same socket.
    channel.expect(&Step::Go)?;
    let process = &request.process;
    setsid().doing(|| "start a session".into())?;
    let terminal = match &console {
        Some(console) => {
            let terminal = joined_terminal(process)?;
            hand_over(console, &terminal)?;
            Some(terminal)
        }
        None => None,
    };
    let surroundings = Surroundings {
        confinement,
        terminal,
        preserved: request.preserved,
        // The container's own stays its first process's.
        keyring: Some(&request.id),
    };
    become_program(process, surroundings, || {
        channel.send(&Step::Ready)?;
        channel.expect(&Step::Go)
    })
}
