//! The supervisor's side of a start: hears PID 1 while it builds the cage, and lets the command begin.

use super::{Cage, Streams, end};
use crate::faults::step;
use crate::ids::{Range, Reaped};
use crate::wire::{self, FromInit, Ready, ToInit};
use crate::{Helper, StartError, scratch};
use ironcage_egress::Proxy;
use ironcage_layers::cgroup::Cgroup;
use ironcage_layers::identity::{MapLine, write_maps};
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::process::started_as;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long PID 1 may take to build the cage. Generous: it is some milliseconds of work, and the
/// host may be busy; but a start that never ends must not be a hang without a word.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cage that is being built by its PID 1.
#[derive(Debug)]
pub struct StartingCage {
    /// The supervisor's end of the control socket.
    pub control: OwnedFd,
    /// PID 1, outside.
    pub pid: Pid,
    /// What ends last, as a descriptor: PID 1, or the subreaper.
    pub pidfd: OwnedFd,
    /// The subreaper, where no pid namespace holds the cage together.
    pub guard: Option<Guard>,
    /// The cgroup, where there is one.
    pub cgroup: Option<Cgroup>,
    /// The cage's ids, where root starts it.
    pub range: Option<Range>,
    /// Outer ends of the streams, as far as they are made.
    pub streams: Option<Streams>,
    /// A process that makes a part of the cage beside PID 1.
    pub helper: Option<Helper>,
    /// The egress proxy, where the plan has a network.
    pub proxy: Option<Proxy>,
    /// Children that end by themselves.
    pub children: Vec<Reaped>,
}

/// The process that ends what the cage leaves behind, where no pid namespace does.
#[derive(Debug)]
pub struct Guard {
    pub pid: Pid,
    /// It ends the cage when this is closed.
    pub lifeline: OwnedFd,
    /// The cage's own directory, which it removes.
    pub scratch: Option<PathBuf>,
}

impl Guard {
    /// Tells it to end the cage, and waits until all is gone.
    pub(crate) fn dismiss(self, pidfd: &OwnedFd) {
        // A child of this process may hold a copy of the descriptor: closing is not enough.
        let _ = shutdown(&self.lifeline, Shutdown::Both);
        let _ = pidfd_send_signal(pidfd, Signal::CONT);
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        // Left where the subreaper was killed.
        if let Some(path) = self.scratch.filter(|path| path.symlink_metadata().is_ok()) {
            scratch::remove(&path);
        }
    }
}

impl StartingCage {
    /// Ends it before it was begun: nothing of the command has run.
    pub fn abandon(mut self) {
        self.give_up();
        // Waited for, so that no process is left; what it says no longer matters.
        let _ = self.helper.map(Helper::finish);
    }

    /// Waits for the part that a helper makes.
    pub fn await_helper(&mut self) -> Result<(), StartError> {
        let finished = self.helper.take().map_or(Ok(()), Helper::finish);
        finished.map_err(|error| {
            let words = self.last_words().or_else(|| {
                // Where it failed for the proxy's sake, the proxy knows the words for it.
                let heard = self.proxy.as_ref()?.wait_ready(Duration::from_secs(1));
                heard.err().map(StartError::Proxy)
            });
            words.unwrap_or(error)
        })
    }

    /// What PID 1 said when it gave up. Who fails because it is gone knows less.
    fn last_words(&self) -> Option<StartError> {
        while readable_before(self.control.as_fd(), Instant::now()).ok()? {
            match wire::receive(self.control.as_fd(), false).ok()?? {
                FromInit::Failed {
                    layer,
                    errno,
                    action,
                    code,
                } => {
                    return Some(StartError::Layer {
                        layer,
                        action,
                        errno,
                        code,
                    });
                }
                FromInit::Closed => return None,
                _ => {}
            }
        }
        None
    }

    /// Lets the command start, and answers PID 1 until it is ready or has failed. When this
    /// returns an error, nothing is left.
    ///
    /// Preconditions: the start is on record. PID 1 starts nothing before this is called.
    pub fn await_ready(mut self, plan: &Plan) -> Result<(Cage, Streams), StartError> {
        let helped = self.await_helper();
        let opened = helped.and_then(|()| match &self.proxy {
            Some(proxy) => proxy.wait_ready(PATIENCE).map_err(StartError::Proxy),
            None => Ok(None),
        });
        let permit = || {
            let told = wire::tell_init(self.control.as_fd(), &ToInit::Permit);
            told.map_err(|error| self.last_words().unwrap_or(StartError::Channel(error)))
        };
        let heard = opened.and_then(|per_port| {
            permit()?;
            Ok((per_port, self.hear(plan)?))
        });
        match heard {
            Ok((per_port, mut ready)) => {
                // In a scope nothing is started beside it.
                let beside = plan.leases.is_some() && plan.scope.is_none();
                if let Some(mount_context) = &mut ready.mount_context
                    && (beside || plan.locked_places().next().is_some())
                {
                    mount_context.built = ready.outgrown.take();
                }
                let streams = match (ready.terminal, self.streams.take()) {
                    (Some(terminal), _) => Streams::Terminal(terminal),
                    (None, Some(pipes)) => pipes,
                    (None, None) => {
                        self.give_up();
                        return Err(StartError::Died);
                    }
                };
                let cage = Cage {
                    control: self.control,
                    pid: self.pid,
                    pidfd: self.pidfd,
                    guard: self.guard,
                    scratch: plan.scratch.is_some(),
                    listener: ready.listener,
                    root: ready.root,
                    proc: ready.proc,
                    shared_memory: ready.shared_memory,
                    sockets: ready.sockets,
                    mount_context: ready.mount_context,
                    overlays: ready.overlays,
                    resolver: ready.resolver,
                    cgroup: self.cgroup,
                    agent: match (&self.range, plan.identity.map) {
                        (Some(range), _) => {
                            let identity = &plan.identity;
                            Some((range.first + identity.uid, range.first + identity.gid))
                        }
                        (None, IdMap::Own { uid, gid }) => {
                            (started_as() != uid).then_some((uid, gid))
                        }
                        (None, IdMap::Range { .. }) => None,
                    },
                    range: self.range,
                    children: self.children,
                    proxy: self.proxy.take(),
                    per_port,
                    gone: false,
                };
                // The kernel takes its mounts down now, while the command begins.
                drop(ready.outgrown);
                Ok((cage, streams))
            }
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    fn give_up(&mut self) {
        match self.guard.take() {
            Some(guard) => guard.dismiss(&self.pidfd),
            None => end(&self.pidfd),
        }
    }

    fn hear(&self, plan: &Plan) -> Result<Ready, StartError> {
        let deadline = Instant::now() + PATIENCE;
        let mut awaited = match self.range {
            Some(_) => "make its namespaces",
            None => "build the cage and hand its listener over",
        };
        loop {
            if !readable_before(self.control.as_fd(), deadline).map_err(StartError::Channel)? {
                return Err(StartError::Silent {
                    awaited,
                    within: PATIENCE,
                });
            }
            let message = wire::receive(self.control.as_fd(), true).map_err(StartError::Channel)?;
            match message {
                Some(FromInit::Unshared) => {
                    step();
                    awaited = "build the cage and hand its listener over";
                    self.map_range(plan)?;
                    wire::tell_init(self.control.as_fd(), &ToInit::Go)
                        .map_err(StartError::Channel)?;
                    step();
                }
                Some(FromInit::Ready(ready)) => {
                    step();
                    return Ok(ready);
                }
                Some(FromInit::Failed {
                    layer,
                    errno,
                    action,
                    code,
                }) => {
                    return Err(StartError::Layer {
                        layer,
                        action,
                        errno,
                        code,
                    });
                }
                Some(
                    FromInit::NotExecuted { .. }
                    | FromInit::Executed { .. }
                    | FromInit::Exited { .. }
                    | FromInit::Terminal { .. }
                    | FromInit::Stopped
                    | FromInit::Dialled { .. }
                    | FromInit::Closed,
                )
                | None => return Err(StartError::Died),
            }
        }
    }

    fn map_range(&self, plan: &Plan) -> Result<(), StartError> {
        let (Some(range), IdMap::Range { count }) = (&self.range, plan.identity.map) else {
            return Err(StartError::Died);
        };
        let process = PathBuf::from(format!("/proc/{}", self.pid.as_raw_nonzero()));
        let line = MapLine {
            inside: 0,
            outside: range.first,
            count,
        };
        write_maps(&process, line, line, false).map_err(|error| StartError::Layer {
            layer: error.layer,
            errno: error.source.raw_os_error().unwrap_or_default(),
            action: error.to_string(),
            code: error.code,
        })
    }
}

/// Waits until there is something to read, or the other end is gone. `false` when neither was
/// so in time.
fn readable_before(socket: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair,
    };

    #[test]
    fn a_silent_peer_is_not_waited_for_longer_than_agreed_and_a_word_or_an_end_is_heard() {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!readable_before(ours.as_fd(), soon()).unwrap());
        // Also when the deadline has passed: the launcher may have been stopped meanwhile.
        send(&theirs, b"u", SendFlags::empty()).unwrap();
        assert!(readable_before(ours.as_fd(), Instant::now()).unwrap());
        let mut buffer = [0; 8];
        ironcage_sys::rustix::io::read(&ours, &mut buffer).unwrap();
        drop(theirs);
        assert!(readable_before(ours.as_fd(), soon()).unwrap());
    }
}
