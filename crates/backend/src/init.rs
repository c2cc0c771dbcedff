//! PID 1 of a cage: lets its backend enclose it, gives up what is left, starts the command,
//! reaps, reports.
//!
//! It runs between the supervisor's fork and its own end; it never executes another image
//! itself. What it holds of the supervisor's memory is a copy of a small process without
//! secrets, its environment is wiped, and nobody inside may read it.

use crate::faults::step;
use crate::terminal;
use crate::wire::{self, ToInit};
use ironcage_layers::cgroup::ENTRY;
use ironcage_layers::filter::Prepared;
use ironcage_layers::view::OwnerMap;
use ironcage_layers::{LayerError, landlock, privileges};
use ironcage_model::Layer;
use ironcage_plan::{Plan, Resource};
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Access, FileType, Mode, OFlags, access, open, openat, stat};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, chdir, set_parent_process_death_signal, setpgid, umask,
    wait,
};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::Winsize;
use ironcage_sys::rustix::thread::set_name;
use ironcage_sys::spawn::{Image, Streams, spawn};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What PID 1 gets from the supervisor besides the plan.
#[derive(Debug)]
pub struct Inheritance {
    /// The control socket.
    pub control: OwnedFd,
    /// The streams, as far as they are made outside.
    pub streams: InnerStreams,
    /// Maps for owned binds.
    pub owner_maps: Vec<OwnerMap>,
    /// The agent's ids outside.
    pub agent_outside: (u32, u32),
    /// Files by which this process enters its cgroups.
    pub cgroup_entries: Vec<OwnedFd>,
}

/// Inner ends of the command's streams.
#[derive(Debug)]
pub enum InnerStreams {
    /// Three pipes.
    Pipes {
        /// Where the command reads.
        stdin: OwnedFd,
        /// Where it writes.
        stdout: OwnedFd,
        /// Where it writes what went wrong.
        stderr: OwnedFd,
    },
    /// A terminal, still to be made.
    Terminal {
        /// Its size.
        size: Winsize,
    },
}

const SIGCHLD: i32 = 17;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Runs PID 1 to its end. What differs between backends is done by `enclose`.
pub fn run(plan: &Plan, inheritance: Inheritance, enclose: Enclose) -> ! {
    let control = inheritance.control.as_fd();
    match build(plan, &inheritance, enclose) {
        Ok(child) => supervise_child(&inheritance, child),
        Err(error) => {
            // If the supervisor is gone too, there is nobody left to tell.
            let _ = wire::say_failed(control, &error);
            exit_now(125)
        }
    }
}

struct Built {
    command: Pid,
    children: OwnedFd,
    /// The command's end of the terminal, where it has one.
    terminal: Option<OwnedFd>,
}

/// An error of a layer.
pub fn failed(layer: Layer, action: &str, source: impl Into<io::Error>) -> LayerError {
    LayerError {
        layer,
        action: action.into(),
        source: source.into(),
    }
}

/// What a backend has made before what all of them do.
#[derive(Debug)]
pub struct Enclosed {
    /// The process file system in which the cage's processes are seen.
    pub proc: OwnedFd,
    /// Any place of the ephemeral storage.
    pub storage: OwnedFd,
}

/// What a backend does first, in the cage's first process: identity, file view, namespaces.
pub type Enclose = fn(&Plan, &Inheritance) -> Result<Enclosed, LayerError>;

fn build(plan: &Plan, inheritance: &Inheritance, enclose: Enclose) -> Result<Built, LayerError> {
    let control = inheritance.control.as_fd();
    die_with_parent()?;
    step();
    // First of all, so that whatever follows counts against the cage's limits.
    for entry in &inheritance.cgroup_entries {
        write(entry, ENTRY).map_err(|error| failed(Layer::Memory, "enter the cgroup", error))?;
    }
    step();
    let Enclosed {
        proc,
        storage: root,
    } = enclose(plan, inheritance)?;
    // A change of ids takes the parent-death signal away.
    die_with_parent()?;
    step();
    umask(Mode::from_raw_mode(0o022));
    chdir(&plan.command.cwd)
        .map_err(|error| failed(Layer::MountNs, "enter the working directory", error))?;
    privileges::no_new_privileges()?;
    privileges::drop_capabilities(&plan.capabilities)?;
    step();
    privileges::new_session()?;
    let terminal = match inheritance.streams {
        InnerStreams::Terminal { size } => Some(terminal::make(size)?),
        InnerStreams::Pipes { .. } => None,
    };
    let children = ironcage_sys::signals::catch(&[SIGCHLD])
        .map_err(|error| failed(Layer::PidNs, "catch the end of children", error))?;
    let shared_memory = shared_memory(plan, proc.as_fd());
    let mut kept = vec![&proc, &root, &children];
    kept.extend(&shared_memory);
    if let Some(pair) = &terminal {
        kept.extend([&pair.controller, &pair.command]);
    }
    close_descriptors(inheritance, &kept)?;
    privileges::set_rlimits(&plan.rlimits)?;
    if let Some(count) = plan.processors {
        privileges::keep_to_processors(count)?;
    }
    step();
    if plan.landlock {
        landlock::restrict(&plan.write_rules)?;
    }
    step();
    let path = find_program(&plan.command.candidates);
    let filter = Prepared::new(&plan.seccomp);
    ironcage_sys::process::wipe_arguments_and_environment();
    // What `ps` in the cage shows of this process.
    let _ = set_name(c"ironcage-init");
    privileges::not_dumpable()?;
    step();
    let listener = filter.install()?;
    step();
    // From here on the supervisor answers refused calls; without it they would wait. If it
    // is gone, sending fails, and nothing is started.
    wire::say_ready(
        control,
        root.as_fd(),
        proc.as_fd(),
        listener.as_ref().map(AsFd::as_fd),
        terminal.as_ref().map(|pair| pair.controller.as_fd()),
        shared_memory.as_ref().map(AsFd::as_fd),
    )
    .map_err(|error| failed(Layer::Seccomp, "hand the listener over", error))?;
    let terminal = terminal.map(|pair| pair.command);
    drop((listener, proc, root, shared_memory));
    step();
    let path = match path {
        Ok(path) => path,
        Err(errno) => {
            // As if execve had said so. The supervisor hears this, then that we are gone.
            let _ = wire::say_not_executed(control, errno.raw_os_error());
            exit_now(127)
        }
    };
    let image = image(plan, &path)?;
    let (stdin, stdout, stderr) = match (&inheritance.streams, &terminal) {
        (
            InnerStreams::Pipes {
                stdin,
                stdout,
                stderr,
            },
            _,
        ) => (stdin.as_fd(), stdout.as_fd(), stderr.as_fd()),
        (InnerStreams::Terminal { .. }, Some(end)) => (end.as_fd(), end.as_fd(), end.as_fd()),
        (InnerStreams::Terminal { .. }, None) => exit_now(125),
    };
    let streams = Streams {
        stdin,
        stdout,
        stderr,
        terminal: terminal.as_ref().map(AsFd::as_fd),
        report: control,
        failure: wire::NOT_EXECUTED,
    };
    let command =
        spawn(&image, &streams).map_err(|error| failed(Layer::PidNs, "fork the command", error))?;
    // Both sides set the group, so that neither has to wait for the other.
    let _ = setpgid(Some(command), Some(command));
    step();
    Ok(Built {
        command,
        children,
        terminal,
    })
}

/// The list of System V segments, where no cgroup counts them. It shows those of the namespace
/// in which it was opened, whoever reads it; so it is opened here. A kernel without System V
/// has none.
fn shared_memory(plan: &Plan, proc: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut rlimits = plan.rlimits.iter();
    if !rlimits.any(|item| item.what.resource == Resource::Data) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(proc, "sysvipc/shm", flags, Mode::empty()).ok()
}

fn die_with_parent() -> Result<(), LayerError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed(Layer::PidNs, "ask to die with the supervisor", error))
}

fn close_descriptors(inheritance: &Inheritance, more: &[&OwnedFd]) -> Result<(), LayerError> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(Layer::Descriptors, "open /dev/null", error))?;
    let dup = |result: Result<(), Errno>| {
        result.map_err(|error| failed(Layer::Descriptors, "let the caller's streams go", error))
    };
    dup(stdio::dup2_stdin(&null))?;
    dup(stdio::dup2_stdout(&null))?;
    dup(stdio::dup2_stderr(&null))?;
    drop(null);
    let mut keep = vec![inheritance.control.as_fd()];
    if let InnerStreams::Pipes {
        stdin,
        stdout,
        stderr,
    } = &inheritance.streams
    {
        keep.extend([stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]);
    }
    keep.extend(more.iter().map(AsFd::as_fd));
    ironcage_sys::process::close_all_but(&keep)
        .map_err(|error| failed(Layer::Descriptors, "close descriptors", error))
}

/// The first candidate that can be executed, as a search in PATH finds it. Found out before
/// the fork, so that a filter which allows one execve is called once.
fn find_program(candidates: &[PathBuf]) -> Result<PathBuf, Errno> {
    let mut answer = Errno::NOENT;
    for candidate in candidates {
        match stat(candidate) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => answer = error,
            Ok(stat) => {
                let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                match access(candidate, Access::EXEC_OK) {
                    Ok(()) if regular => return Ok(candidate.clone()),
                    // It is there, but is a directory or may not be executed.
                    Ok(()) => answer = Errno::ACCESS,
                    Err(error) => answer = error,
                }
            }
        }
    }
    Err(answer)
}

fn image(plan: &Plan, path: &Path) -> Result<Image, LayerError> {
    let string = |bytes: &[u8]| {
        CString::new(bytes).map_err(|error| failed(Layer::PidNs, "prepare the command", error))
    };
    let command = &plan.command;
    let list =
        |items: &mut dyn Iterator<Item = &[u8]>| items.map(string).collect::<Result<Vec<_>, _>>();
    let argv = list(&mut command.argv.iter().map(|a| a.as_bytes()))?;
    let envp = command
        .env
        .iter()
        .map(|item| {
            let mut entry = item.what.name.as_bytes().to_vec();
            entry.push(b'=');
            entry.extend(item.what.value.as_bytes());
            string(&entry)
        })
        .collect::<Result<_, _>>()?;
    Ok(Image {
        path: string(path.as_os_str().as_bytes())?,
        argv,
        envp,
    })
}

/// Reaps what is orphaned to PID 1, passes signals on, and ends with the command: when PID 1
/// exits, the kernel kills everything else in the cage.
fn supervise_child(inheritance: &Inheritance, built: Built) -> ! {
    let control = inheritance.control.as_fd();
    loop {
        match reap(built.command) {
            // If the supervisor is gone, so are we in a moment.
            Some(status) if status.stopped() => {
                if built.terminal.is_some() {
                    // The supervisor stops too, and then nobody watches limits or answers
                    // refused calls: so everything stops, not only the command.
                    let _ = ironcage_sys::process::signal_all(SIGSTOP);
                }
                let _ = wire::say_stopped(control);
            }
            Some(status) => {
                let _ = wire::say_exited(control, status.as_raw());
                exit_now(0);
            }
            None => {}
        }
        let mut fds = [
            PollFd::new(&built.children, PollFlags::IN),
            PollFd::from_borrowed_fd(control, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => exit_now(125),
        }
        let (child, supervisor) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if child {
            while let Ok(Some(_)) = ironcage_sys::signals::next(built.children.as_fd()) {}
        }
        if supervisor {
            match wire::hear_supervisor(control) {
                Ok(ToInit::Signal(signal)) => {
                    let group = built.command.as_raw_nonzero().get();
                    // A command that is gone by now needs no signal.
                    let _ = ironcage_sys::process::signal_group(group, signal);
                }
                Ok(ToInit::Freeze) => {
                    let _ = ironcage_sys::process::signal_all(SIGSTOP);
                }
                Ok(ToInit::Resume) => {
                    if let Some(terminal) = &built.terminal {
                        terminal::bring_forward(terminal, built.command);
                    }
                    let _ = ironcage_sys::process::signal_all(SIGCONT);
                }
                Ok(ToInit::Go) => {}
                Ok(ToInit::Closed) | Err(_) => exit_now(125),
            }
        }
    }
}

/// Collects every child that has ended or stopped; the command's status if it is among them.
fn reap(command: Pid) -> Option<WaitStatus> {
    let mut ended = None;
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    while let Ok(Some((pid, status))) = wait(options) {
        if pid == command {
            ended = Some(status);
        }
    }
    ended
}
