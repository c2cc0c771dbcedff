//! The supervisor's loop: one thread, one `poll`, until the cage is gone.

use crate::limits::Limits;
use crate::recorder::Recorder;
use crate::refusals::Refusals;
use crate::relay::{Relay, Waits};
use crate::streams::{Terminal, join};
use crate::terminal;
use crate::{Job, RunError};
use ironcage_backend::{Cage, FromInit, StartError, Streams, receive_from_init};
use ironcage_model::{Ending, EventKind, LimitHit};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Signal, getpid, kill_process};
use ironcage_sys::signals;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Signals that are passed on to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM];
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
pub(crate) const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGTERM: i32 = 15;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;
const SIGWINCH: i32 = 28;
/// Rounds of passing output on before a stop: more than a terminal holds.
const DRAIN: u32 = 64;
/// A cage being supervised.
pub(crate) struct Supervision {
    pub(crate) cage: Cage,
    pub(crate) recorder: Recorder,
    pub(crate) refusals: Refusals,
    pub(crate) limits: Limits,
    pub(crate) signals: OwnedFd,
    pub(crate) streams: Vec<Relay<'static>>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) status: Option<i32>,
    pub(crate) not_executed: Option<i32>,
    pub(crate) failure: Option<StartError>,
    pub(crate) hit: Option<LimitHit>,
}
/// Which descriptor of the poll set is which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Control,
    Pid,
    Listener,
    Signals,
    Stream(usize),
    BrokenSink(usize),
}

pub(crate) fn failed(action: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError::Supervise { action, source }
}

impl Supervision {
    pub(crate) fn new(
        job: &Job<'_>,
        cage: Cage,
        streams: Streams,
        recorder: Recorder,
    ) -> Result<Self, RunError> {
        let now = Instant::now();
        let plan = job.plan;
        let init = cage.pid().as_raw_nonzero().get().unsigned_abs();
        let limits = Limits::new(plan, &cage, now)?;
        let mut caught = FORWARDED.to_vec();
        if job.terminal {
            caught.push(SIGWINCH);
        } else {
            caught.push(SIGTSTP);
        }
        // In the background, reading or changing the terminal fails instead of stopping us.
        signals::block(&[SIGTTIN, SIGTTOU]).map_err(failed("block signals"))?;
        let signals = signals::catch(&caught).map_err(failed("catch signals"))?;
        let (streams, terminal) = join(streams, job.raw_terminal)?;
        Ok(Supervision {
            limits,
            signals,
            refusals: Refusals::new(init, plan.seccomp.one_exec, now),
            streams,
            terminal,
            cage,
            recorder,
            status: None,
            not_executed: None,
            failure: None,
            hit: None,
        })
    }

    /// Until the command is gone and everything that it wrote has been passed on.
    pub(crate) fn watch(&mut self) -> Result<Ending, RunError> {
        let mut gone = false;
        let mut dead = false;
        loop {
            let now = Instant::now();
            // The first is the command's input, for which nobody waits.
            let mut outputs = self.streams.iter().skip(1);
            if gone && outputs.all(|output| output.is_done() || output.has_run_dry(now)) {
                return Ok(self.ending());
            }
            let pause = self.refusals.pause(now);
            let ready = self.wait(gone, dead, pause)?;
            let now = Instant::now();
            let was_dead = dead;
            for source in ready {
                // PID 1 is the last to go.
                dead |= source == Source::Pid;
                gone |= self.handle(source, now)?;
            }
            // When PID 1 has said that the command is over, it is exiting, and the kernel ends
            // the rest: the streams come to their end while it does.
            if !gone && let Some(hit) = self.limits.look(now) {
                self.hit = Some(hit);
                self.cage.kill();
                gone = true;
                dead = true;
            }
            if dead && !was_dead {
                for stream in self.streams.iter_mut().skip(1) {
                    stream.take_only_what_is_there(now);
                }
            }
        }
    }

    /// Waits for something to do.
    fn wait(
        &self,
        gone: bool,
        dead: bool,
        pause: Option<Instant>,
    ) -> Result<Vec<Source>, RunError> {
        let mut sources = Vec::with_capacity(12);
        let mut fds = Vec::with_capacity(12);
        let mut add = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if !dead {
            add(Source::Pid, self.cage.pidfd(), PollFlags::IN);
        }
        if !gone {
            add(Source::Control, self.cage.control(), PollFlags::IN);
            if let (Some(listener), None) = (self.cage.listener(), pause) {
                add(Source::Listener, listener, PollFlags::IN);
            }
        }
        add(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        for (index, stream) in self.streams.iter().enumerate() {
            if gone && index == 0 {
                continue;
            }
            let interest = stream.interest();
            if let Some((_, fd, flags)) = interest {
                add(Source::Stream(index), fd, flags);
            }
            if let (Some((Waits::Source, ..)), Some(sink)) = (interest, stream.watched_sink()) {
                add(Source::BrokenSink(index), sink, PollFlags::empty());
            }
        }
        let limits = (!gone).then(|| self.limits.next()).flatten();
        let dry = self.streams.iter().skip(1).filter_map(Relay::runs_dry);
        let until = [pause, limits].into_iter().flatten().chain(dry).min();
        let timeout = until.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(failed("wait for the cage")(error.into())),
        }
        Ok(sources
            .into_iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(source, _)| source)
            .collect())
    }

    /// Acts on one descriptor. `true` when the cage is gone.
    fn handle(&mut self, source: Source, now: Instant) -> Result<bool, RunError> {
        match source {
            Source::Control => self.hear(),
            // Whatever PID 1 still had to say is in the socket.
            Source::Pid => {
                while !self.hear()? {}
                Ok(true)
            }
            Source::Listener => {
                self.refuse()?;
                Ok(false)
            }
            Source::Signals => {
                let next = || signals::next(self.signals.as_fd());
                while let Some(signal) = next().map_err(failed("read a signal"))? {
                    match (signal, &self.terminal) {
                        (SIGTSTP, None) => self.stop_with_cage(),
                        (SIGWINCH, Some(own)) => terminal::copy_size(own.controller.as_fd()),
                        // A cage that is just ending needs no signal any more.
                        _ => drop(self.cage.signal(signal)),
                    }
                }
                Ok(false)
            }
            Source::Stream(index) => {
                if self.streams.get_mut(index).is_some_and(Relay::advance) {
                    self.limits.sign_of_life(now);
                }
                Ok(false)
            }
            Source::BrokenSink(index) => {
                if let Some(stream) = self.streams.get_mut(index) {
                    stream.break_off();
                }
                Ok(false)
            }
        }
    }

    /// Takes one message of PID 1. `true` when there will be no more.
    fn hear(&mut self) -> Result<bool, RunError> {
        let message = receive_from_init(self.cage.control(), false);
        match message.map_err(failed("hear the cage"))? {
            Some(FromInit::Exited { status, .. }) => {
                self.status = Some(status);
                Ok(true)
            }
            Some(FromInit::NotExecuted { errno, .. }) => {
                self.not_executed = Some(errno);
                Ok(false)
            }
            Some(FromInit::Failed {
                layer,
                errno,
                action,
            }) => {
                self.failure = Some(StartError::Layer {
                    layer,
                    action,
                    errno,
                });
                Ok(true)
            }
            Some(FromInit::Stopped) => {
                self.stop_with_command();
                Ok(false)
            }
            Some(FromInit::Closed) | None => Ok(true),
            Some(
                FromInit::Unshared
                | FromInit::Ready(_)
                | FromInit::Executed { .. }
                | FromInit::Terminal { .. },
            ) => Ok(false),
        }
    }

    /// The command was stopped at its terminal: so are we, and with us the shell's job. Without
    /// a terminal somebody inside stopped it, and somebody inside may let it go on.
    fn stop_with_command(&mut self) {
        if let Some(own) = &self.terminal {
            // What it said before it stopped, as far as the user's terminal takes it at once.
            for _ in 0..DRAIN {
                if !self.streams.iter_mut().skip(1).any(Relay::advance) {
                    break;
                }
            }
            let signals = self.signals.as_fd();
            own.mode.suspend(|| signals::pending(signals));
            terminal::copy_size(own.controller.as_fd());
            // A cage that ended meanwhile does not go on.
            let _ = self.cage.resume();
        }
    }

    /// The user stopped us: a cage that nobody watches must not run.
    fn stop_with_cage(&self) {
        let _ = self.cage.freeze();
        // Stops here until somebody sends SIGCONT.
        let _ = kill_process(getpid(), Signal::STOP);
        let _ = self.cage.resume();
    }

    fn refuse(&mut self) -> Result<(), RunError> {
        let Some(listener) = self.cage.listener() else {
            return Ok(());
        };
        let denial = self
            .refusals
            .answer(listener)
            .map_err(failed("answer a refused system call"))?;
        if let Some(denial) = denial {
            self.recorder.write(EventKind::Denied(denial))?;
        }
        Ok(())
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
