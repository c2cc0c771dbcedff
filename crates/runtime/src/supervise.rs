//! The supervisor's loop: one thread, one `poll`, until the cage is gone.

use crate::RunError;
use crate::asking::Asking;
use crate::background::Background;
use crate::channels::Channels;
use crate::control::Control;
use crate::door::Pace;
use crate::family::{Children, Kin, Maker};
use crate::intents::Intents;
use crate::leases::Leases;
use crate::limits::Limits;
use crate::live_network::LiveNetwork;
use crate::output::{Output, Spot};
use crate::prompting::Prompting;
use crate::questions::Questions;
use crate::recorder::Recorder;
use crate::refusals::Refusals;
use crate::relay::{Relay, Waits};
use crate::scope::{Scopes, Side};
use crate::sockets::StandIn;
use crate::streams::{Joined, Terminal};
use crate::taint::Leased;
use crate::terminal;
use ironcage_backend::{Cage, FromInit, StartError};
use ironcage_control::RuntimeDir;
use ironcage_model::{Ending, EventKind, LimitHit, Taint};
use ironcage_plan::Plan;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Signal, getpid, kill_process};
use ironcage_sys::rustix::stdio;
use ironcage_sys::signals;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Signals that are passed on to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM];
pub(crate) const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
pub(crate) const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGTERM: i32 = 15;
pub(crate) const SIGCONT: i32 = 18;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;
const SIGWINCH: i32 = 28;
/// Rounds of passing output on before a stop: more than a terminal holds.
const DRAIN: u32 = 64;
/// How long a command may take to end when its supervisor is told to.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether a sticky cage that is to end is empty.
const LOOK: Duration = Duration::from_millis(10);

/// A cage being supervised.
pub(crate) struct Supervision<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) cage: Cage,
    pub(crate) control: Control,
    pub(crate) runtime: RuntimeDir,
    pub(crate) output: Output,
    /// Who waits for the command to be executed, where it is in the background.
    pub(crate) background: Option<Background>,
    in_background: bool,
    pub(crate) recorder: Recorder,
    pub(crate) refusals: Refusals,
    pub(crate) traffic: Pace,
    pub(crate) network: LiveNetwork,
    pub(crate) sockets: Vec<StandIn>,
    pub(crate) limits: Limits,
    pub(crate) leases: Leases,
    pub(crate) questions: Questions,
    pub(crate) asking: Asking,
    /// What the model says that the agent is about to do.
    pub(crate) intents: Intents,
    pub(crate) prompting: Prompting,
    pub(crate) scopes: Scopes,
    /// What there is besides where this is a scope's supervisor.
    pub(crate) scope: Option<Side>,
    pub(crate) channels: Channels,
    /// What the cage may have come into contact with.
    pub(crate) taint: Taint,
    /// When it was last looked for what others bring.
    pub(crate) taint_looked: Option<Instant>,
    /// What it was leased of the host's files, now or before.
    pub(crate) leased: Leased,
    pub(crate) children: Children,
    /// Who makes them.
    pub(crate) maker: Option<&'a Maker<'a>>,
    /// What it has of its parent, where this is a child's supervisor.
    pub(crate) kin: Option<Kin>,
    signals: OwnedFd,
    pub(crate) input: Option<Relay<'static>>,
    pub(crate) outputs: Vec<Relay<'static>>,
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
    Network,
    Signals,
    Input,
    Stream(usize),
    BrokenSink(usize),
    Captured(Spot),
    Door,
    Socket(usize),
    Client(u64),
    Keeper,
    Scope(u32),
    Link,
    AskSocket,
    Clerk,
    Messenger(u32),
    Prompt,
    Child(u64),
    ChildGone(u64),
    Parent,
    Channel(u32),
}

pub(crate) fn failed(action: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError::Supervise { action, source }
}

/// What supervision begins with.
pub(crate) struct Beginning<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) cage: Cage,
    pub(crate) joined: Joined,
    pub(crate) control: Control,
    pub(crate) runtime: RuntimeDir,
    pub(crate) background: Option<Background>,
    pub(crate) recorder: Recorder,
    pub(crate) sockets: Vec<StandIn>,
    pub(crate) asking: Asking,
    pub(crate) scope: Option<Side>,
    pub(crate) maker: Option<&'a Maker<'a>>,
    pub(crate) kin: Option<Kin>,
}

impl<'a> Supervision<'a> {
    pub(crate) fn new(beginning: Beginning<'a>) -> Result<Self, RunError> {
        let now = Instant::now();
        let Beginning {
            plan,
            cage,
            joined,
            control,
            runtime,
            background,
            recorder,
            sockets,
            asking,
            scope,
            maker,
            kin,
        } = beginning;
        let init = cage.pid().as_raw_nonzero().get().unsigned_abs();
        let limits = Limits::new(plan, &cage, now)?;
        let mut caught = FORWARDED.to_vec();
        if joined.terminal.is_some() {
            caught.push(SIGWINCH);
        } else {
            caught.push(SIGTSTP);
        }
        // In the background, reading or changing the terminal fails instead of stopping us.
        signals::block(&[SIGTTIN, SIGTTOU]).map_err(failed("block signals"))?;
        let signals = signals::catch(&caught).map_err(failed("catch signals"))?;
        Ok(Supervision {
            plan,
            limits,
            leases: Leases::default(),
            questions: Questions::default(),
            asking,
            intents: Intents::default(),
            prompting: Prompting::default(),
            scopes: Scopes::default(),
            scope,
            channels: Channels::default(),
            taint: Taint::NONE,
            taint_looked: None,
            leased: Leased::default(),
            children: Children::default(),
            maker,
            kin,
            signals,
            refusals: Refusals::new(init, plan, now),
            traffic: Pace::new(now),
            network: LiveNetwork::default(),
            sockets,
            input: joined.input,
            outputs: joined.outputs,
            terminal: joined.terminal,
            output: joined.output,
            control,
            runtime,
            in_background: background.is_some(),
            background,
            cage,
            recorder,
            status: None,
            not_executed: None,
            failure: None,
            hit: None,
        })
    }

    /// Whether the cage's own command is over, or never was.
    pub(crate) fn command_is_over(&self) -> bool {
        self.status.is_some() || self.plan.command.argv.is_empty()
    }

    /// Until the command is gone and everything that it wrote has been passed on.
    pub(crate) fn watch(&mut self) -> Result<Ending, RunError> {
        let mut gone = false;
        let mut dead = false;
        if self.plan.command.argv.is_empty() {
            gone |= !self.announce();
        }
        loop {
            let now = Instant::now();
            let mut outputs = self.outputs.iter();
            if gone
                && outputs.all(|output| output.is_done() || output.has_run_dry(now))
                && self.output.is_done()
            {
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
            if !gone {
                self.look_at_leases(now)?;
                self.look_at_taint(now)?;
                self.look_at_questions(now)?;
                self.look_at_intents(now)?;
                self.look_at_prompt(now);
            }
            if gone {
                self.close_prompt(now);
            }
            // When PID 1 has said that the command is over, it is exiting, and the kernel ends
            // the rest: the streams come to their end while it does.
            if !gone && self.must_end(now) {
                self.cage.kill();
                gone = true;
                dead = true;
            }
            self.output.cut_off(now);
            if dead && !was_dead {
                for output in &mut self.outputs {
                    output.take_only_what_is_there(now);
                }
            }
            // What they have passed on can now come to its end.
            for output in &mut self.outputs {
                if output.is_done() || output.has_run_dry(now) {
                    output.break_off();
                }
            }
        }
    }

    /// Whether a limit, or somebody's wish, ends the cage now.
    fn must_end(&mut self, now: Instant) -> bool {
        if self.scope_is_over(now) {
            return true;
        }
        self.kill_hung_up(now);
        if let Some(deadline) = self.control.stopping {
            let empty = self.plan.sticky && self.limits.is_empty();
            if now >= deadline || empty {
                return true;
            }
        }
        if self.scopes.writes() || self.children.is_any() {
            // Somebody is at work beside the cage.
            self.limits.sign_of_life(now);
        }
        self.hit = self.limits.look(now);
        self.hit.is_some()
    }

    /// Asks the command to end; later it is killed.
    pub(crate) fn begin_stop(&mut self, grace: Duration, now: Instant) {
        // What the user has stopped cannot hear that it is to end.
        let grace = match self.is_frozen() {
            true => Duration::ZERO,
            false => grace,
        };
        let deadline = now.checked_add(grace).unwrap_or(now);
        // Who asks again may only shorten it.
        let deadline = self
            .control
            .stopping
            .map_or(deadline, |at| at.min(deadline));
        self.control.stopping = Some(deadline);
        // A cage that is just ending needs no signal any more.
        let _ = match self.plan.sticky {
            true => self.cage.signal_all(SIGTERM),
            false => self.cage.signal(SIGTERM),
        };
        if !self.is_held() {
            let _ = self.cage.resume();
        }
    }

    /// Tells who started the cage in the background that it runs. `false` when they are gone.
    fn announce(&mut self) -> bool {
        let Some(background) = self.background.take() else {
            return true;
        };
        let told = background.announce(&self.control.description.id).is_ok();
        if !told {
            self.control.stopping = Some(Instant::now());
            self.cage.kill();
        }
        told
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
            if self.prompting.is_open() {
                add(Source::Prompt, stdio::stdin(), PollFlags::IN);
            } else if let Some((_, fd, flags)) = self.input.as_ref().and_then(Relay::interest) {
                add(Source::Input, fd, flags);
            }
        }
        if let (Some(door), None) = (self.cage.door(), self.traffic.pause(Instant::now())) {
            add(Source::Network, door.control(), PollFlags::IN);
            for (index, stand_in) in self.sockets.iter().enumerate() {
                add(Source::Socket(index), stand_in.as_fd(), PollFlags::IN);
            }
        }
        add(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        for (index, stream) in self.outputs.iter().enumerate() {
            let interest = stream.interest();
            if let Some((_, fd, flags)) = interest {
                add(Source::Stream(index), fd, flags);
            }
            if let (Some((Waits::Source, ..)), Some(sink)) = (interest, stream.watched_sink()) {
                add(Source::BrokenSink(index), sink, PollFlags::empty());
            }
        }
        for (spot, fd, flags) in self.output.interests() {
            add(Source::Captured(spot), fd, flags);
        }
        if let Some(door) = self.control.listener() {
            add(Source::Door, door, PollFlags::IN);
        }
        for (key, client) in self.control.clients() {
            add(Source::Client(key), client, PollFlags::IN);
        }
        if let Some(keeper) = self.leases.keeper() {
            add(Source::Keeper, keeper, PollFlags::IN);
        }
        if let Some(listener) = self.asking.unattended().filter(|_| !gone) {
            add(Source::AskSocket, listener, PollFlags::IN);
        }
        for (serial, messenger) in self.questions.messengers() {
            add(Source::Messenger(serial), messenger, PollFlags::IN);
        }
        if let Some(clerk) = self.asking.clerk() {
            add(Source::Clerk, clerk, PollFlags::IN);
        }
        for (number, reports) in self.scopes.reports() {
            add(Source::Scope(number), reports, PollFlags::IN);
        }
        for (serial, socket) in self.channels.sockets() {
            add(Source::Channel(serial), socket, PollFlags::IN);
        }
        for (ticket, link) in self.children.links() {
            add(Source::Child(ticket), link, PollFlags::IN);
        }
        for (ticket, pidfd) in self.children.ends() {
            add(Source::ChildGone(ticket), pidfd, PollFlags::IN);
        }
        if let Some(link) = self.kin.as_ref().filter(|_| !gone).and_then(Kin::link) {
            add(Source::Parent, link, PollFlags::IN);
        }
        if let Some(side) = self.scope.as_ref().filter(|_| !gone) {
            add(Source::Link, side.link.as_fd(), PollFlags::IN);
        }
        let mut until: Vec<Instant> = self.outputs.iter().filter_map(Relay::runs_dry).collect();
        until.extend(pause);
        until.extend(self.cage.door().and(self.traffic.pause(Instant::now())));
        until.extend(self.output.next());
        if !gone {
            until.extend(self.limits.next());
            until.extend(self.next_hangup());
            until.extend(self.leases.next());
            until.extend(self.next_look_at_taint(Instant::now()));
            until.extend(self.questions.next());
            until.extend(self.prompting.next());
            until.extend(self.scope.as_ref().and_then(|side| side.deadline));
            let stopping = self.control.stopping;
            until.extend(stopping);
            if stopping.is_some() && self.plan.sticky {
                until.push(Instant::now() + LOOK);
            }
        }
        let until = until.into_iter().min();
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
            Source::Control => return self.hear(now),
            // Whatever PID 1 still had to say is in the socket.
            Source::Pid => {
                while !self.hear(now)? {}
                return Ok(true);
            }
            Source::Listener => self.answer_calls(now)?,
            Source::Network => self.hear_door(now)?,
            Source::Signals => self.take_signals(now)?,
            Source::Input => {
                if self.input.as_mut().is_some_and(Relay::advance) {
                    self.limits.sign_of_life(now);
                }
            }
            Source::Stream(index) => {
                if self.outputs.get_mut(index).is_some_and(Relay::advance) {
                    self.limits.sign_of_life(now);
                    self.prompting.drew();
                }
            }
            Source::BrokenSink(index) => {
                if let Some(stream) = self.outputs.get_mut(index) {
                    stream.break_off();
                }
            }
            Source::Captured(spot) => {
                if self.output.advance(spot, now) {
                    self.limits.sign_of_life(now);
                }
            }
            Source::Door => {
                for reason in self.control.accept() {
                    self.recorder.write(EventKind::PeerRefused { reason })?;
                }
            }
            Source::Socket(index) => self.accept_at(index)?,
            Source::Client(key) => self.serve(key, now)?,
            Source::Keeper => self.hear_keeper(now)?,
            Source::Scope(number) => self.hear_scope(number, now)?,
            Source::AskSocket => self.start_clerk(),
            Source::Messenger(serial) => self.hear_messenger(serial)?,
            Source::Prompt => self.hear_prompt(now)?,
            Source::Clerk => self.hear_clerk(now)?,
            Source::Child(ticket) => self.hear_child(ticket, now)?,
            Source::ChildGone(ticket) => self.end_child(ticket)?,
            Source::Parent => self.hear_parent(now)?,
            Source::Channel(serial) => self.hear_channel(serial, now)?,
            Source::Link => {
                if let Some(side) = &self.scope {
                    side.link.hear();
                }
            }
        }
        Ok(false)
    }

    fn take_signals(&mut self, now: Instant) -> Result<(), RunError> {
        while let Some(signal) =
            signals::next(self.signals.as_fd()).map_err(failed("read a signal"))?
        {
            match (signal, &self.terminal) {
                (SIGTSTP, None) => self.stop_with_cage(),
                (SIGWINCH, Some(own)) => {
                    terminal::copy_size(own.controller.as_fd());
                    self.draw_prompt(now);
                }
                // There may be no command any more that could act on it.
                (SIGHUP | SIGINT | SIGTERM, _) if self.plan.sticky => {
                    self.begin_stop(GRACE, now);
                }
                // A cage that is just ending needs no signal any more.
                _ => drop(self.cage.signal(signal)),
            }
        }
        Ok(())
    }

    /// Takes one message of PID 1. `true` when there will be no more.
    fn hear(&mut self, now: Instant) -> Result<bool, RunError> {
        let message = self.cage.hear();
        match message.map_err(failed("hear the cage"))? {
            Some(FromInit::Exited { number: 0, status }) => {
                self.status = Some(status);
                // A sticky cage lives on, unless its command never was.
                Ok(!self.plan.sticky || self.not_executed.is_some())
            }
            Some(FromInit::Exited { number, status }) => {
                self.exec_exited(number, status, now)?;
                Ok(false)
            }
            Some(FromInit::NotExecuted { number: 0, errno }) => {
                self.not_executed = Some(errno);
                Ok(false)
            }
            Some(FromInit::NotExecuted { number, errno }) => {
                self.exec_not_executed(number, errno);
                Ok(false)
            }
            Some(FromInit::Executed { number: 0 }) if self.not_executed.is_none() => {
                Ok(!self.announce())
            }
            Some(FromInit::Executed { number }) => {
                self.exec_executed(number);
                Ok(false)
            }
            Some(FromInit::Terminal { number, controller }) => {
                self.exec_terminal(number, &controller);
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
            Some(FromInit::Dialled { ticket, socket }) => {
                self.dialled(ticket, socket);
                Ok(false)
            }
            Some(FromInit::Stopped) => {
                if !self.stopped_for_a_lease(now) {
                    self.stop_with_command();
                }
                Ok(false)
            }
            Some(FromInit::Closed) | None => Ok(true),
            Some(FromInit::Unshared | FromInit::Ready(_)) => Ok(false),
        }
    }

    /// The command was stopped at its terminal: so are we, and with us the shell's job. Without
    /// a terminal somebody inside stopped it, and somebody inside may let it go on.
    fn stop_with_command(&mut self) {
        self.close_prompt(Instant::now());
        if let Some(own) = &self.terminal {
            // What it said before it stopped, as far as the user's terminal takes it at once.
            for _ in 0..DRAIN {
                if !self.outputs.iter_mut().any(Relay::advance) {
                    break;
                }
            }
            let signals = self.signals.as_fd();
            own.mode.suspend(|| signals::pending(signals));
            terminal::copy_size(own.controller.as_fd());
            // A cage that ended meanwhile does not go on.
            self.let_go_on();
        } else if self.in_background {
            // There is no shell to which a stop would lead back: so there is none.
            self.let_go_on();
        }
    }

    /// The user stopped us: a cage that nobody watches must not run.
    fn stop_with_cage(&self) {
        let _ = self.cage.freeze();
        // Stops here until somebody sends SIGCONT.
        let _ = kill_process(getpid(), Signal::STOP);
        self.let_go_on();
    }

    fn answer_calls(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(listener) = self.cage.listener() else {
            return Ok(());
        };
        let events = self
            .refusals
            .answer(listener, self.plan)
            .map_err(failed("answer a reported system call"))?;
        for event in events {
            self.recorder.write(event)?;
        }
        if self.refusals.observes() {
            self.limits.sample(&self.cage, now);
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
