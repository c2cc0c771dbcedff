//! The subreaper: ends what a cage leaves behind where no pid namespace does.
//!
//! It stands between the supervisor and the cage's first process. Everything that the cage
//! starts stays below it, because it is a subreaper. When the first process ends, or the
//! supervisor is gone, however it went, the subreaper stops and kills all that is below it,
//! removes the cage's directory and ends. It is outside the cage's Landlock domain, so that
//! the agent cannot send it a signal, and in a session of its own.

use crate::cage::{Guard, StartingCage};
use crate::descendants::Process;
use crate::faults::step;
use crate::host_resources::{Channels, HostResources, pair};
use crate::init::{Inheritance, failed};
use crate::scratch;
use crate::{Ability, StartError, StreamKind, Support, descendants, wire};
use ironcage_layers::LayerError;
use ironcage_layers::cgroup::Cgroup;
use ironcage_model::{CageId, Layer};
use ironcage_plan::BoundPlan;
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitOptions, getpid, set_child_subreaper, setsid, waitpid,
};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::thread::set_name;
use ironcage_sys::{process, signals};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

const SIGCHLD: i32 = ironcage_sys::rustix::process::Signal::CHILD.as_raw();
/// Pause between two looks at what is left: processes take a moment to go.
const ROUND: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// What the backends below a subreaper can in the same way.
pub fn can(ability: Ability) -> Support {
    const FIXED: &str = "Landlock rules and mounts are fixed at the start";
    match ability {
        Ability::Terminal => Support::No("the backend says"),
        Ability::Signal => Support::Yes("by the first process, to the command's process group"),
        Ability::Freeze => Support::Yes("by the supervisor, to every descendant of the subreaper"),
        Ability::Kill => Support::Yes(
            "a subreaper stops and kills every descendant; cgroup.kill if there is a cgroup",
        ),
        Ability::Limits => Support::Yes("cgroup if available, rlimits, tmpfs sizes, watchdog"),
        Ability::Refusals => Support::Yes("seccomp user notification"),
        Ability::Exec => Support::Yes("by the first process, under the same layers"),
        Ability::Lease | Ability::Flip | Ability::Revoke => Support::No(FIXED),
        Ability::Scope => Support::No("without a PID namespace the cage could see and reach it"),
    }
}

/// What a subreaper needs besides what the cage's first process does.
struct Post {
    lifeline: OwnedFd,
    scratch: Option<PathBuf>,
}

/// What the cage's first process does, to its end.
pub type First = fn(&BoundPlan<'_>, Inheritance) -> !;

/// Starts a cage without a pid namespace of ours, below a subreaper. `namespaces` are those of the
/// cage's first process.
///
/// Preconditions: the calling process has one thread.
pub fn start(
    plan: &BoundPlan<'_>,
    id: &CageId,
    kind: StreamKind,
    namespaces: Namespaces,
    first: First,
) -> Result<StartingCage, StartError> {
    let (lifeline, lifeline_inner) = pair()?;
    let resources = HostResources::prepare(plan, id, Channels::make(kind)?)?;
    match fork(Namespaces::NONE, None).map_err(StartError::Fork)? {
        Forked::Child => {
            drop(lifeline);
            let post = Post {
                lifeline: lifeline_inner,
                scratch: None,
            };
            let (inheritance, group) = resources.inherit(true, String::new());
            let clone_fd = group.as_ref().and_then(Cgroup::clone_fd);
            guard(plan, post, namespaces, clone_fd, inheritance, first)
        }
        Forked::Parent { pid, pidfd } => {
            drop(lifeline_inner);
            let kept = resources.keep();
            let mut guard = Guard {
                pid,
                lifeline,
                scratch: plan.scratch.as_ref().map(|scratch| scratch.path.clone()),
            };
            let kept = match kept {
                Ok(kept) => kept,
                Err(error) => {
                    guard.dismiss(&pidfd);
                    return Err(error);
                }
            };
            let init = match hear_pid(&guard) {
                Ok(init) => init,
                Err(error) => {
                    let said = why(&kept.control);
                    if said.is_some() {
                        // It has removed what it made; what is there now is not ours.
                        guard.scratch = None;
                    }
                    guard.dismiss(&pidfd);
                    return Err(said.unwrap_or(error));
                }
            };
            Ok(StartingCage {
                proxy: None,
                helper: None,
                children: kept.children,
                control: kept.control,
                pid: init,
                pidfd,
                guard: Some(guard),
                cgroup: kept.cgroup,
                range: kept.range,
                streams: kept.streams,
            })
        }
    }
}

/// What the subreaper said before it gave up, if anything.
fn why(control: &OwnedFd) -> Option<StartError> {
    match wire::receive(control.as_fd(), false) {
        Ok(Some(wire::FromInit::Failed {
            layer,
            errno,
            action,
            code,
        })) => Some(StartError::Layer {
            layer,
            action,
            errno,
            code,
        }),
        _ => None,
    }
}

/// The subreaper says which process is the cage's first, or why there is none.
fn hear_pid(guard: &Guard) -> Result<Pid, StartError> {
    let mut word = [0_u8; 4];
    let length = loop {
        match read(&guard.lifeline, &mut word) {
            Err(Errno::INTR) => {}
            other => break other.map_err(|error| StartError::Channel(error.into()))?,
        }
    };
    if length != word.len() {
        return Err(StartError::Died);
    }
    let number = i32::from_le_bytes(word);
    match Pid::from_raw(number) {
        Some(pid) if number > 0 => Ok(pid),
        _ => Err(StartError::Fork(io::Error::from_raw_os_error(-number))),
    }
}

fn guard(
    plan: &BoundPlan<'_>,
    mut post: Post,
    namespaces: Namespaces,
    cgroup: Option<BorrowedFd<'_>>,
    inheritance: Inheritance,
    first: First,
) -> ! {
    let taken_up = take_up().and_then(|proc| {
        post.scratch = scratch::make(plan)?;
        scratch::fill(plan, inheritance.agent_outside)?;
        Ok(proc)
    });
    let proc = match taken_up {
        Ok(proc) => proc,
        Err(error) => {
            let _ = wire::say_failed(inheritance.control.as_fd(), &error);
            leave(&post)
        }
    };
    step();
    match fork(namespaces, cgroup) {
        Ok(Forked::Child) => {
            drop((post, proc));
            first(plan, inheritance)
        }
        Ok(Forked::Parent { pid, pidfd }) => {
            drop(inheritance);
            let number = pid.as_raw_nonzero().get().to_le_bytes();
            // If the supervisor is gone, its end of the line tells.
            let _ = write(&post.lifeline, &number);
            step();
            // What this process cannot do it tells nobody: the cage ends, and says so itself.
            if let Ok(caught) = settle(&post, &proc, &pidfd) {
                keep_watch(&post, &proc, &pidfd, &caught, pid);
            }
            end_all(&proc, pid);
            leave(&post)
        }
        Err(error) => {
            let number = -error.raw_os_error().unwrap_or(5);
            let _ = write(&post.lifeline, &number.to_le_bytes());
            leave(&post)
        }
    }
}

/// Becomes the one to whom everything below comes, away from the user's terminal.
fn take_up() -> Result<OwnedFd, LayerError> {
    let doing = |action| move |error: Errno| failed(Layer::PidNs, action, error);
    set_child_subreaper(Some(getpid())).map_err(doing("become a subreaper"))?;
    setsid().map_err(doing("start the subreaper's session"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open("/proc", flags, Mode::empty()).map_err(doing("open /proc"))
}

/// Lets go of everything that is not needed to keep watch. Returns where ends of children are
/// told.
fn settle(post: &Post, proc: &OwnedFd, init: &OwnedFd) -> io::Result<OwnedFd> {
    let caught = signals::catch(&[SIGCHLD])?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    stdio::dup2_stdin(&null)?;
    stdio::dup2_stdout(&null)?;
    stdio::dup2_stderr(&null)?;
    drop(null);
    process::close_all_but(&[
        post.lifeline.as_fd(),
        proc.as_fd(),
        init.as_fd(),
        caught.as_fd(),
    ])?;
    process::wipe_arguments_and_environment();
    let _ = set_name(c"ironcage-guard");
    ironcage_layers::privileges::not_dumpable().map_err(|error| error.source)?;
    Ok(caught)
}

/// Until the cage's first process has ended or the supervisor is gone.
fn keep_watch(post: &Post, proc: &OwnedFd, init: &OwnedFd, caught: &OwnedFd, first: Pid) {
    loop {
        let mut fds = [
            PollFd::new(init, PollFlags::IN),
            PollFd::new(&post.lifeline, PollFlags::IN),
            PollFd::new(caught, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [ended, left, child] = fds.map(|fd| !fd.revents().is_empty());
        if ended || left {
            return;
        }
        if child {
            while let Ok(Some(_)) = signals::next(caught.as_fd()) {}
            let below = descendants::below(proc.as_fd(), getpid());
            reap(&below.unwrap_or_default(), first);
        }
    }
}

/// Collects every child that has ended but the cage's first process: its id is not to be given
/// to another while the supervisor takes it for ours.
fn reap(below: &[Process], first: Pid) {
    for process in below.iter().filter(|process| process.pid != first) {
        // Only a child of ours, and only one that has ended, answers.
        let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
    }
}

/// Ends everything below this process and waits until it is gone.
fn end_all(proc: &OwnedFd, first: Pid) {
    let own = getpid();
    // First nobody may make more; then all go. A process list that cannot be read leaves
    // children that the kernel still tells about.
    let _ = descendants::stop(proc.as_fd(), own, &[]);
    loop {
        let left = descendants::below(proc.as_fd(), own).unwrap_or_default();
        for process in &left {
            let _ = descendants::signal(proc.as_fd(), *process, Signal::KILL);
        }
        reap(&left, first);
        // The first process is the last to be collected; then there is nobody left.
        if left.iter().all(|process| process.pid == first)
            && !matches!(waitpid(Some(first), WaitOptions::NOHANG), Ok(None))
        {
            return;
        }
        let _ = poll(&mut [], Some(&ROUND));
    }
}

fn leave(post: &Post) -> ! {
    if let Some(path) = &post.scratch {
        scratch::remove(path);
    }
    exit_now(0)
}
