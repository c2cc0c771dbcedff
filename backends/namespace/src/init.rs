//! PID 1 of a cage: builds the cage around itself, starts the command, reaps, reports.
//!
//! It runs between the supervisor's fork and its own end; it never executes another image
//! itself. What it holds of the supervisor's memory is a copy of a small process without
//! secrets, its environment is wiped, and nobody inside may read it.

use crate::faults::step;
use crate::terminal;
use crate::wire::{self, ToInit};
use ironcage_layers::cgroup::ENTRY;
use ironcage_layers::filter::Prepared;
use ironcage_layers::identity::{MapLine, become_agent, write_maps};
use ironcage_layers::view::{OwnerMap, Setting, View};
use ironcage_layers::{LayerError, landlock, network, privileges};
use ironcage_model::Layer;
use ironcage_plan::{IdMap, Plan, Resource};
use ironcage_sys::clone::{Namespaces, exit_now, unshare};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Access, FileType, Mode, OFlags, access, open, openat, stat};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, chdir, set_parent_process_death_signal, setpgid, umask,
    wait,
};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::Winsize;
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_name};
use ironcage_sys::spawn::{Image, Streams, spawn};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What PID 1 gets from the supervisor besides the plan.
#[derive(Debug)]
pub(crate) struct Inheritance {
    /// The control socket.
    pub(crate) control: OwnedFd,
    /// The streams, as far as they are made outside.
    pub(crate) streams: InnerStreams,
    /// Maps for owned binds.
    pub(crate) owner_maps: Vec<OwnerMap>,
    /// The agent's ids outside.
    pub(crate) agent_outside: (u32, u32),
    /// Files by which this process enters its cgroups.
    pub(crate) cgroup_entries: Vec<OwnedFd>,
}

/// Inner ends of the command's streams.
#[derive(Debug)]
pub(crate) enum InnerStreams {
    /// Three pipes.
    Pipes {
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// A terminal of this size, still to be made.
    Terminal { size: Winsize },
}

const SIGCHLD: i32 = 17;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Runs PID 1 to its end.
pub(crate) fn run(plan: &Plan, inheritance: Inheritance) -> ! {
    let control = inheritance.control.as_fd();
    match build(plan, &inheritance) {
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

fn failed(layer: Layer, action: &str, source: impl Into<io::Error>) -> LayerError {
    LayerError {
        layer,
        action: action.into(),
        source: source.into(),
    }
}

fn build(plan: &Plan, inheritance: &Inheritance) -> Result<Built, LayerError> {
    let control = inheritance.control.as_fd();
    die_with_parent()?;
    step();
    // First of all, so that whatever follows counts against the cage's limits.
    for entry in &inheritance.cgroup_entries {
        write(entry, ENTRY).map_err(|error| failed(Layer::Memory, "enter the cgroup", error))?;
    }
    step();
    let own = matches!(plan.identity.map, IdMap::Own { .. });
    let (uid, gid) = inheritance.agent_outside;
    if own {
        // In the outer namespace the caller keeps its id; only there may it mount.
        map_own((uid, uid), (gid, gid))?;
        step();
    }
    let (proc, root, counters) = make_view(plan, inheritance)?;

    // The cage's own namespaces come after its mounts: copied into a user namespace further
    // down, every mount is locked there, so not even root of the cage could take one off.
    enter_network(control)?;
    step();
    let namespaces = Namespaces::USER
        .with(Namespaces::MOUNT)
        .with(Namespaces::IPC)
        .with(Namespaces::UTS)
        .with(Namespaces::CGROUP);
    unshare(namespaces).map_err(|error| failed(Layer::UserNs, "unshare namespaces", error))?;
    step();
    if own {
        map_own((plan.identity.uid, uid), (plan.identity.gid, gid))?;
    } else {
        wire::say_unshared(control)
            .map_err(|error| failed(Layer::UserNs, "ask for the id maps", error))?;
        wait_for_go(inheritance)?;
    }
    step();
    network::set_hostname(&plan.hostname.what.name)?;
    step();
    privileges::set_counters(counters.as_fd(), &plan.counters)?;
    drop(counters);
    become_agent(plan.identity.uid, plan.identity.gid, !own)?;
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

fn map_own(uid: (u32, u32), gid: (u32, u32)) -> Result<(), LayerError> {
    let line = |(inside, outside)| MapLine {
        inside,
        outside,
        count: 1,
    };
    write_maps(Path::new("/proc/self"), line(uid), line(gid), true)
}

/// Enters the network namespace that was made meanwhile.
fn enter_network(control: BorrowedFd<'_>) -> Result<(), LayerError> {
    let namespace = wire::take_network(control)
        .map_err(|error| failed(Layer::NetNs, "wait for the network namespace", error))?;
    let Some(namespace) = namespace else {
        // The supervisor is gone or has given up: so does the cage.
        exit_now(125)
    };
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| failed(Layer::NetNs, "enter the network namespace", error))
}

fn make_view(
    plan: &Plan,
    inheritance: &Inheritance,
) -> Result<(OwnedFd, OwnedFd, OwnedFd), LayerError> {
    let view = View::new(Setting {
        // Ephemeral storage is memory, and so never more than that.
        bytes: plan
            .bounds
            .disk
            .what
            .value
            .min(plan.bounds.memory.what.value),
        inodes: plan.bounds.inodes.what.value,
        agent: inheritance.agent_outside,
        owner_maps: &inheritance.owner_maps,
    })?;
    step();
    // Opened now, because later /proc/sys is read-only.
    let counters = openat(
        view.proc(),
        "sys/user",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| failed(Layer::Counters, "open /proc/sys/user", error))?;
    view.lay_out(&plan.view)?;
    step();
    for item in &plan.view {
        view.mount(&item.what)?;
        step();
    }
    let (proc, root) = view.enter()?;
    step();
    Ok((proc, root, counters))
}

fn wait_for_go(inheritance: &Inheritance) -> Result<(), LayerError> {
    match wire::hear_supervisor(inheritance.control.as_fd()) {
        Ok(ToInit::Go) => Ok(()),
        // The supervisor is gone or confused: so is the cage.
        Ok(ToInit::Closed | ToInit::Signal(_) | ToInit::Resume | ToInit::Freeze) | Err(_) => {
            exit_now(125)
        }
    }
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
