//! The supervisor's side of a cage: forks it, hears it, ends it.

mod starting;

pub(crate) use starting::Guard;
pub use starting::StartingCage;

use crate::ids::{Range, Reaped};
use crate::init::InnerStreams;
use crate::order::Order;
use crate::spawner::COMMAND;
use crate::wire::{self, ExecOrder, FromInit, ToInit};
use crate::{MountContext, Sibling, StartError, descendants};
use ironcage_egress::{Proxy, ProxyIds};
use ironcage_layers::cgroup::{Cgroup, CgroupLimits};
use ironcage_layers::overlay::renew;
use ironcage_model::CageId;
use ironcage_plan::{Command, Plan};
use ironcage_sys::rustix::fs::{Gid, Uid, fchown};
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid,
};
use ironcage_sys::rustix::termios::Winsize;
use ironcage_sys::spent::close_spent;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the command's standard streams are to be.
#[derive(Debug, Clone, Copy)]
pub enum StreamKind {
    /// Three pipes.
    Pipes,
    /// One terminal of the cage's own.
    Terminal {
        /// Its size at the start: programs ask for it at once.
        size: Winsize,
    },
}

/// Outer ends of the command's streams.
#[derive(Debug)]
pub enum Streams {
    /// Three pipes.
    Pipes {
        /// Where its standard input is written.
        stdin: OwnedFd,
        /// Where its standard output is read.
        stdout: OwnedFd,
        /// Where its standard error is read.
        stderr: OwnedFd,
    },
    /// The controlling end of the cage's terminal.
    Terminal(OwnedFd),
}

/// Both ends of the streams before the fork.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Those of the cage.
    pub(crate) inner: InnerStreams,
    /// Those of the supervisor; a terminal is still to be made.
    pub(crate) outer: Option<Streams>,
}

impl Ends {
    pub(crate) fn make(kind: StreamKind) -> io::Result<Ends> {
        let (ends, ()) = Ends::make_around(kind, || Ok(()))?;
        Ok(ends)
    }

    /// Makes the streams, and a pair of descriptors of which the first is the cage's between them.
    /// In this order the cage's ends are neighbours, and so are the supervisor's: both sides close
    /// those of the other in fewer calls.
    pub(crate) fn make_around<T>(
        kind: StreamKind,
        pair: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(Ends, T)> {
        if let StreamKind::Terminal { size } = kind {
            // Made by PID 1, from the cage's own devpts.
            let ends = Ends {
                inner: InnerStreams::Terminal { size },
                outer: None,
            };
            return Ok((ends, pair()?));
        }
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let (stdout, stdout_inner) = pipe()?;
        let made = pair()?;
        let (stderr, stderr_inner) = pipe()?;
        let (stdin_inner, stdin) = pipe()?;
        let ends = Ends {
            inner: InnerStreams::Pipes {
                stdin: stdin_inner,
                stdout: stdout_inner,
                stderr: stderr_inner,
            },
            outer: Some(Streams::Pipes {
                stdin,
                stdout,
                stderr,
            }),
        };
        Ok((ends, made))
    }
}

impl Ends {
    /// Makes the pipes the agent's own, as they are where the user starts a cage: so that it can
    /// open them by name (`/dev/stdout`).
    pub(crate) fn give_to(&self, (uid, gid): (u32, u32)) -> io::Result<()> {
        let InnerStreams::Pipes {
            stdin,
            stdout,
            stderr,
        } = &self.inner
        else {
            return Ok(());
        };
        for end in [stdin, stdout, stderr] {
            fchown(end, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(())
    }
}

/// A running cage. Dropping it ends it.
#[derive(Debug)]
pub struct Cage {
    control: OwnedFd,
    pid: Pid,
    pidfd: OwnedFd,
    guard: Option<Guard>,
    scratch: bool,
    listener: Option<OwnedFd>,
    root: OwnedFd,
    proc: OwnedFd,
    shared_memory: Option<OwnedFd>,
    sockets: Option<OwnedFd>,
    mount_context: Option<MountContext>,
    overlays: Vec<OwnedFd>,
    resolver: Option<OwnedFd>,
    cgroup: Option<Cgroup>,
    range: Option<Range>,
    /// The agent's ids outside, where they are not the caller's own.
    agent: Option<(u32, u32)>,
    children: Vec<Reaped>,
    proxy: Option<Proxy>,
    per_port: Option<String>,
    gone: bool,
}

fn cgroup_limits(plan: &Plan) -> CgroupLimits {
    CgroupLimits {
        memory: Some(plan.bounds.memory.what.value),
        cpu_milli: u32::try_from(plan.bounds.cpu.what.value).ok(),
        pids: u32::try_from(plan.bounds.pids.what.value).ok(),
    }
    .supported_by(&plan.cgroup)
}

/// Makes the cgroup of a scope that has its own limits.
pub(crate) fn make_scope_cgroup(plan: &Plan, id: &CageId) -> Result<Cgroup, StartError> {
    let limits = cgroup_limits(plan);
    Ok(Cgroup::create_for_scope(&plan.cgroup, id, &limits)?)
}

/// Makes the cgroup that holds the plan's limits; `None` where none of them is held by one.
pub(crate) fn make_cgroup(plan: &Plan, id: &CageId) -> Result<Option<Cgroup>, StartError> {
    let limits = cgroup_limits(plan);
    if limits.is_empty() {
        return Ok(None);
    }
    Ok(Some(Cgroup::create(&plan.cgroup, id, &limits)?))
}

/// Makes the cgroup of a booted system, which is there whatever limits it holds. The init's belongs
/// to these ids, where they are not the caller's own.
pub(crate) fn make_init_cgroup(
    plan: &Plan,
    id: &CageId,
    owner: Option<(u32, u32)>,
) -> Result<Option<Cgroup>, StartError> {
    let Some(boot) = &plan.boot else {
        return make_cgroup(plan, id);
    };
    let place = (boot.what.group.as_deref(), owner);
    let limits = cgroup_limits(plan);
    Ok(Some(Cgroup::create_for_init(
        &plan.cgroup,
        id,
        &limits,
        place,
    )?))
}

/// Kills PID 1, and with it the whole pid namespace, and waits until it is gone.
pub fn end(pidfd: &OwnedFd) {
    // Both can only fail because it is gone already.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
}

impl Cage {
    /// The control socket: readable when PID 1 has something to say.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// PID 1, outside.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The last process of the cage as a descriptor: readable when all are gone.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Where refused system calls are reported.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// The process above all of the cage's, where the process file system shows others too.
    pub fn above(&self) -> Option<Pid> {
        self.guard.as_ref().map(|guard| guard.pid)
    }

    /// Takes the next message of PID 1; `None` when there is none.
    pub fn hear(&self) -> io::Result<Option<FromInit>> {
        let message = wire::receive(self.control.as_fd(), false)?;
        if matches!(message, Some(FromInit::Stopped)) && self.guard.is_some() {
            // PID 1 of a pid namespace has stopped the rest itself.
            self.freeze()?;
        }
        Ok(message)
    }

    /// The process file system that shows the cage's processes.
    pub fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// The list of the cage's System V shared memory, where no cgroup counts it.
    pub fn shared_memory(&self) -> Option<BorrowedFd<'_>> {
        self.shared_memory.as_ref().map(AsFd::as_fd)
    }

    /// Where the kernel lists the sockets of its network namespace, where somebody has to count
    /// what they hold.
    pub fn sockets(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.as_ref().map(AsFd::as_fd)
    }

    /// The cage's ephemeral storage, bounded by its size; `None` where it has a directory on
    /// the host instead.
    pub fn storage(&self) -> Option<BorrowedFd<'_>> {
        (!self.scratch).then(|| self.root.as_fd())
    }

    /// The cage's own directory on the host, where it has no storage of its own.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.scratch.then(|| self.root.as_fd())
    }

    /// What leases and scopes stand on, where the backend has them.
    pub fn mount_context(&self) -> Option<&MountContext> {
        self.mount_context.as_ref()
    }

    /// In a scope: what it has of its cage's storage, where both share that.
    ///
    /// # Errors
    /// Where there is no descriptor to be had.
    pub fn stand_beside(&mut self, sibling: &Sibling) -> io::Result<()> {
        if let (Some(mount_context), Some(storage)) = (&mut self.mount_context, &sibling.storage) {
            mount_context.beside = Some(storage.try_clone()?);
        }
        Ok(())
    }

    /// The agent's ids outside, where they are not the caller's own.
    pub fn agent(&self) -> Option<(u32, u32)> {
        self.agent
    }

    /// The cage's ids, where root started it.
    pub(crate) fn range(&self) -> Option<&Range> {
        self.range.as_ref()
    }

    /// The cgroup, where there is one.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// The egress proxy, where there is one.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// Takes the egress proxy away from the cage, which has no network without it.
    pub fn take_proxy(&mut self) -> Option<Proxy> {
        self.proxy.take()
    }

    /// The resolver's socket of a cage without a network, for who reads it.
    pub fn take_resolver(&mut self) -> Option<OwnedFd> {
        self.resolver.take()
    }

    /// Ids that an egress proxy of this cage becomes, where root started it.
    pub fn proxy_ids(&self) -> Option<ProxyIds> {
        self.range
            .as_ref()
            .map(|range| ProxyIds { id: range.last() })
    }

    /// Why the proxy listens on single ports only; `None` where it has every one.
    pub fn per_port(&self) -> Option<&str> {
        self.per_port.as_deref()
    }

    fn tell(&self, message: &ToInit) -> io::Result<()> {
        wire::tell_init(self.control.as_fd(), message)
    }

    /// Sends a signal to the command and its process group.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.signal_exec(COMMAND, signal)
    }

    /// Sends a signal to an exec and its process group.
    pub fn signal_exec(&self, number: u32, signal: i32) -> io::Result<()> {
        self.tell(&ToInit::Signal { number, signal })
    }

    /// Sends a signal to every process of the cage but PID 1.
    pub fn signal_all(&self, signal: i32) -> io::Result<()> {
        if let Some(guard) = &self.guard {
            let sent = Signal::from_named_raw(signal).ok_or(io::ErrorKind::InvalidInput)?;
            let spared = &[self.pid];
            return descendants::signal_each(self.proc.as_fd(), guard.pid, spared, sent);
        }
        self.tell(&ToInit::SignalAll(signal))
    }

    /// Starts another command in the cage. PID 1 reports by the number, which must not be 0 nor
    /// that of an exec that runs. Returns the outer ends of its streams; a terminal comes from
    /// PID 1.
    pub fn exec(
        &self,
        number: u32,
        command: &Command,
        kind: StreamKind,
    ) -> io::Result<Option<Streams>> {
        let ends = Ends::make(kind)?;
        if let Some(agent) = self.agent {
            ends.give_to(agent)?;
        }
        let (terminal, streams) = match ends.inner {
            InnerStreams::Terminal { size } => (Some(size), None),
            InnerStreams::Pipes {
                stdin,
                stdout,
                stderr,
            } => (None, Some([stdin, stdout, stderr])),
        };
        self.tell(&ToInit::Exec(ExecOrder {
            number,
            program: Some(Order::there(command)?.seal()?),
            terminal,
            streams,
        }))?;
        Ok(ends.outer)
    }

    /// Starts another command with streams that are there already.
    ///
    /// # Errors
    /// Where PID 1 cannot be told.
    pub fn exec_with(
        &self,
        number: u32,
        command: &Command,
        streams: [OwnedFd; 3],
    ) -> io::Result<()> {
        self.tell(&ToInit::Exec(ExecOrder {
            number,
            program: Some(Order::there(command)?.seal()?),
            terminal: None,
            streams: Some(streams),
        }))
    }

    /// Begins a connection to a port of the cage's own loopback. PID 1 answers by the ticket.
    pub fn dial(&self, ticket: u32, port: u16, six: bool) -> io::Result<()> {
        self.tell(&ToInit::Dial { ticket, port, six })
    }

    /// Stops every process of the cage but PID 1.
    pub fn freeze(&self) -> io::Result<()> {
        if let Some(guard) = &self.guard {
            return descendants::stop(self.proc.as_fd(), guard.pid, &[self.pid]);
        }
        self.tell(&ToInit::Freeze)
    }

    /// Why the cage cannot be held, if it cannot.
    pub fn cannot_hold(&self) -> Option<&'static str> {
        if self.guard.is_some() {
            return Some("without a PID namespace the cage cannot be paused as a whole");
        }
        let none = self.overlays.is_empty();
        none.then_some("the cage has no copy-on-write view to refresh")
    }

    /// Stops every process of the cage but PID 1, for a moment that the command's shell and the
    /// supervisor do not take for a stop.
    pub fn hold(&self) -> io::Result<()> {
        self.tell(&ToInit::Hold)
    }

    /// Lets the copy-on-write views look at their layers anew, and what was held go on. What is
    /// open and working directories stay as they are.
    pub fn release(&self) -> io::Result<()> {
        let renewed = self.overlays.iter().map(AsFd::as_fd).try_for_each(renew);
        self.tell(&ToInit::Release)?;
        renewed
    }

    /// Stops every process of the cage but PID 1 while somebody counts what it uses; neither the
    /// command's shell nor the supervisor takes it for a stop.
    pub fn pause(&self) -> io::Result<()> {
        self.hold()?;
        match self.guard {
            // PID 1 keeps quiet about it, and the supervisor does it.
            Some(_) => self.freeze(),
            None => Ok(()),
        }
    }

    /// Lets what was paused go on.
    pub fn unpause(&self) -> io::Result<()> {
        if self.guard.is_some() {
            self.resume()?;
        }
        self.tell(&ToInit::Release)
    }

    /// Lets a stopped command go on, in the foreground of its terminal.
    pub fn resume(&self) -> io::Result<()> {
        self.tell(&ToInit::Resume)?;
        match &self.guard {
            Some(guard) => {
                let spared = &[self.pid];
                descendants::signal_each(self.proc.as_fd(), guard.pid, spared, Signal::CONT)
            }
            None => Ok(()),
        }
    }

    /// Ends every process of the cage and waits until all are gone.
    pub fn kill(&mut self) {
        if !self.gone {
            match self.guard.take() {
                Some(guard) => {
                    // One write where there is a group; the subreaper has the rest.
                    if let Some(cgroup) = &self.cgroup {
                        let _ = cgroup.kill();
                    }
                    guard.dismiss(&self.pidfd);
                }
                None => end(&self.pidfd),
            }
            self.gone = true;
        }
    }

    /// Gives up the descriptors with which the cage's mounts go, where nobody else has them open: there
    /// are no more leases, scopes and renewed views. Those of the overlays are for the caller to close
    /// with others; the namespace is closed first, because closing one of theirs takes a while.
    pub fn release_mounts(&mut self) -> Vec<OwnedFd> {
        let context = self.mount_context.take();
        drop(context.map(MountContext::into_descriptors));
        std::mem::take(&mut self.overlays)
    }

    /// As [`bury`](Self::bury), for a caller that goes on: everything is closed.
    ///
    /// # Errors
    /// Where the cgroup cannot be removed.
    pub fn remove(mut self) -> Result<(), StartError> {
        let _ = shutdown(&self.control, Shutdown::Both);
        self.kill();
        let cgroup = self.cgroup.take();
        cgroup.map_or(Ok(()), Cgroup::remove_and_close)?;
        drop(self);
        close_spent().map_err(StartError::Channel)
    }

    /// Waits for a PID 1 that has ended by itself, and removes what belongs to the cage outside.
    /// Returns the descriptors with which its mounts go, to be closed with others.
    ///
    /// # Errors
    /// Where the cgroup cannot be removed.
    pub fn bury(mut self) -> Result<Vec<OwnedFd>, StartError> {
        if !self.gone {
            let _ = shutdown(&self.control, Shutdown::Both);
        }
        self.kill();
        let removed = self.cgroup.take().map_or(Ok(()), Cgroup::remove);
        drop(std::mem::take(&mut self.children));
        drop(self.proxy.take());
        let mounts = self.release_mounts();
        // The caller ends soon, and the kernel closes the rest at once.
        std::mem::forget(self);
        removed?;
        Ok(mounts)
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        self.kill();
    }
}
