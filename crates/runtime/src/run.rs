//! One run: from a plan to an outcome.

use crate::RunError;
use crate::limits::{self, Limits};
use crate::recorder::Recorder;
use crate::refusals::Refusals;
use crate::relay::{self, Relay, Waits};
use crate::terminal::{self, RawMode};
use ironcage_layers::cgroup::sweep;
use ironcage_model::{CageId, Ending, EventKind, LimitHit, LimitKind, Outcome, bytes_as_written};
use ironcage_namespace::{
    Cage, FromInit, StartError, StreamKind, Streams, receive_from_init, start,
};
use ironcage_plan::Plan;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Signal, getpid, kill_process};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use ironcage_sys::rustix::stdio;
use ironcage_sys::signals;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// What is run.
#[derive(Debug)]
pub struct Job<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// A name for the record, if the user gave one.
    pub name: Option<String>,
    /// Whether the command gets a terminal of the cage's own.
    pub terminal: bool,
    /// Whether sequences that make the user's terminal act or answer are let through.
    pub raw_terminal: bool,
}

/// Signals that are passed on to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM];
const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGTERM: i32 = 15;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;
const SIGXFSZ: i32 = 25;
const SIGWINCH: i32 = 28;
/// Rounds of passing output on before a stop: more than a terminal holds.
const DRAIN: u32 = 64;

/// Runs a command in a cage, with the caller's standard streams, to its end.
///
/// Preconditions: the calling process has one thread.
pub fn run(job: &Job<'_>) -> Result<(CageId, Outcome), RunError> {
    let born = Instant::now();
    let mut random = [0_u8; 12];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|e| RunError::Id(e.into()))?;
    let id = CageId::from_entropy(random);
    let mut recorder = Recorder::new(id.clone())?;
    let mut fail = |error: StartError| {
        let reason = error.to_string();
        let written = recorder.write(exit(Ending::Failed { reason }, born));
        written.err().unwrap_or(RunError::Start(error))
    };
    let kind = if job.terminal {
        StreamKind::Terminal {
            size: terminal::size(),
        }
    } else {
        StreamKind::Pipes
    };
    let birth = match start(job.plan, &id, kind) {
        Ok(birth) => birth,
        Err(error) => return Err(fail(error)),
    };
    // Done while PID 1 builds the cage.
    let event = start_event(job);
    let (cage, streams) = match birth.attend(job.plan) {
        Ok(born) => born,
        Err(error) => return Err(fail(error)),
    };
    recorder.write(event)?;
    let mut supervision = Supervision::new(job, cage, streams, recorder)?;
    let ending = supervision.watch()?;
    let outcome = supervision.close(job.plan, ending, born)?;
    Ok((id, outcome))
}

fn start_event(job: &Job<'_>) -> EventKind {
    let plan = job.plan;
    EventKind::Start {
        name: job.name.clone(),
        command: plan
            .command
            .argv
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        workspace: plan.workspace.to_string_lossy().into_owned(),
        profile: plan.profile.clone(),
        plan: plan.digest(),
        layers: plan.layers.clone(),
        degraded: plan.degraded.iter().map(ToString::to_string).collect(),
    }
}

fn exit(ending: Ending, born: Instant) -> EventKind {
    EventKind::Exit {
        ending,
        milliseconds: born.elapsed().as_millis() as u64,
    }
}

/// A cage being supervised.
struct Supervision {
    cage: Cage,
    recorder: Recorder,
    refusals: Refusals,
    limits: Limits,
    signals: OwnedFd,
    streams: Vec<Relay<'static>>,
    terminal: Option<Terminal>,
    status: Option<i32>,
    not_executed: Option<i32>,
    failure: Option<StartError>,
    hit: Option<LimitHit>,
}

/// The cage's terminal, and the user's while that is in raw mode.
struct Terminal {
    controller: OwnedFd,
    mode: RawMode,
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

fn failed(action: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError::Supervise { action, source }
}

impl Supervision {
    fn new(
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
    fn watch(&mut self) -> Result<Ending, RunError> {
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
            Some(FromInit::Exited(status)) => {
                self.status = Some(status);
                Ok(true)
            }
            Some(FromInit::NotExecuted(errno)) => {
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
            Some(FromInit::Unshared | FromInit::Ready(_)) => Ok(false),
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

    fn ending(&self) -> Ending {
        if let Some(error) = &self.failure {
            return Ending::Failed {
                reason: error.to_string(),
            };
        }
        if let Some(hit) = &self.hit {
            return Ending::Limit { hit: hit.clone() };
        }
        if let Some(errno) = self.not_executed {
            return Ending::NotExecuted { errno };
        }
        match self.status {
            // As waitpid encodes it.
            Some(status) if status & 0x7f == 0 => Ending::Exited {
                code: (status >> 8) as u8,
            },
            Some(status) => Ending::Signalled {
                signal: status & 0x7f,
            },
            None => Ending::Signalled { signal: SIGKILL },
        }
    }

    /// Writes the end of the record and removes what is left of the cage.
    fn close(
        mut self,
        plan: &Plan,
        mut ending: Ending,
        born: Instant,
    ) -> Result<Outcome, RunError> {
        let mut hits = limits::counted(plan, &self.cage);
        let mut told = |limit, value| {
            hits.push(LimitHit {
                limit,
                value,
                ended: false,
            });
        };
        if self.limits.processes_full() {
            told(LimitKind::Pids, plan.bounds.pids.what.value.to_string());
        }
        if file_too_large(&ending) {
            told(
                LimitKind::Disk,
                bytes_as_written(plan.bounds.disk.what.value),
            );
        }
        // Killed, and the group ran out of memory: that is why.
        let killed = ending == Ending::Signalled { signal: SIGKILL };
        for hit in &mut hits {
            if killed && hit.limit == LimitKind::Memory {
                hit.ended = true;
                ending = Ending::Limit { hit: hit.clone() };
            }
        }
        if let Ending::Limit { hit } = &ending
            && !hits.contains(hit)
        {
            hits.push(hit.clone());
        }
        for denial in self.refusals.remainder() {
            self.recorder.write(EventKind::Denied(denial))?;
        }
        for hit in &hits {
            self.recorder.write(EventKind::Limit(hit.clone()))?;
        }
        self.recorder.write(exit(ending.clone(), born))?;
        self.cage.bury()?;
        // What supervisors that were killed have left, as far as it can be told from here.
        sweep(&plan.cgroup);
        if let Some(error) = self.failure {
            return Err(error.into());
        }
        Ok(Outcome {
            ending,
            layers: plan.layers.clone(),
            limits: hits,
        })
    }
}

/// Whether the command ended because a file would have grown beyond the bound on the size of a
/// file, which is the disk limit. A shell whose last program was ended by the signal says so by
/// its own status.
fn file_too_large(ending: &Ending) -> bool {
    match ending {
        Ending::Signalled { signal } => *signal == SIGXFSZ,
        Ending::Exited { code } => i32::from(*code) == 128 + SIGXFSZ,
        _ => false,
    }
}

/// Joins the cage's streams with the caller's.
fn join(
    streams: Streams,
    raw_terminal: bool,
) -> Result<(Vec<Relay<'static>>, Option<Terminal>), RunError> {
    let own = |fd| relay::own(fd).map_err(|e| failed("prepare the streams")(e.into()));
    let callers_input = relay::End::Callers(stdio::stdin());
    match streams {
        Streams::Pipes {
            stdin,
            stdout,
            stderr,
        } => Ok((
            vec![
                Relay::new(callers_input, own(stdin)?),
                Relay::new(own(stdout)?, relay::callers_sink(stdio::stdout())),
                Relay::new(own(stderr)?, relay::callers_sink(stdio::stderr())),
            ],
            None,
        )),
        Streams::Terminal(controller) => {
            let another = || controller.try_clone().map_err(failed("copy a descriptor"));
            let (input, output) = (another()?, another()?);
            let shown = Relay::new(own(output)?, relay::callers_sink(stdio::stdout()));
            let relays = vec![
                Relay::new(callers_input, own(input)?),
                if raw_terminal {
                    shown
                } else {
                    shown.filtered()
                },
            ];
            let mode = RawMode::enter();
            Ok((relays, Some(Terminal { controller, mode })))
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grew_too_large_is_known_by_the_signal_and_by_a_shells_word_for_it() {
        assert!(file_too_large(&Ending::Signalled { signal: SIGXFSZ }));
        assert!(file_too_large(&Ending::Exited { code: 153 }));
        assert!(!file_too_large(&Ending::Signalled { signal: SIGKILL }));
        assert!(!file_too_large(&Ending::Exited { code: 25 }));
    }
}
