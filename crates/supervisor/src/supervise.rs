//! The supervisor's loop: one thread, one `poll`, until the cage is gone.

use crate::RunError;
use crate::audit_writer::AuditWriter;
use crate::background::Background;
use crate::channels::{ChannelEvent, Channels};
use crate::children::{ChildEvent, Children, ParentLink, SpawnChild};
use crate::control::Control;
use crate::denials::Denials;
use crate::execs::{ExecEvent, Execs};
use crate::intents::{IntentEvent, Intents};
use crate::leases::{Leases, RequestPace};
use crate::limits::Limits;
use crate::network::{DenialLine, DenyingResolver, Network, NetworkEvent, SocketProxy};
use crate::observe::LeasedPath;
use crate::permission_requests::PermissionRequests;
use crate::prompting::{PromptEvent, Prompting};
use crate::request_reader::RequestReader;
use crate::run::Permanent;
use crate::scope::{ScopeEvent, ScopeState, Scopes};
use crate::signing::{KeyFilter, KeyUses};
use crate::streams::{JoinedStreams, StreamReady};
use crate::taint::CageTaint;
use ironcage_backend::{Cage, FromInit, StartError};
use ironcage_control::RuntimeDir;
use ironcage_model::{Ending, EventKind};
use ironcage_plan::BoundPlan;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Signal, getpid, kill_process};
use ironcage_sys::rustix::stdio;
use ironcage_sys::signals;
use ironcage_watchdog::StorageBaseline;
use libc::{
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Signals that are passed on to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM];
/// How long a command may take to end when its supervisor is told to.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether a sticky cage that is to end is empty.
const LOOK: Duration = Duration::from_millis(10);

/// A cage being supervised.
pub(crate) struct Supervision<'a> {
    pub(crate) plan: &'a BoundPlan<'a>,
    pub(crate) cage: Cage,
    pub(crate) control: Control,
    pub(crate) runtime: RuntimeDir,
    pub(crate) streams: JoinedStreams,
    /// Who waits for the command to be executed, where it is in the background.
    pub(crate) background: Option<Background>,
    pub(crate) audit: AuditWriter,
    pub(crate) denials: Denials,
    pub(crate) network: Network,
    /// Of a cage without a network.
    pub(crate) resolver: Option<DenyingResolver>,
    pub(crate) limits: Limits,
    pub(crate) leases: Leases,
    /// How fast others than the operator may ask for something.
    pub(crate) requests: RequestPace,
    pub(crate) permission_requests: PermissionRequests,
    pub(crate) execs: Execs,
    pub(crate) request_reader: RequestReader,
    /// Who reads what programs say to their agents.
    pub(crate) keys: KeyFilter,
    pub(crate) key_uses: KeyUses,
    /// What the model says that the agent is about to do.
    pub(crate) intents: Intents<'a>,
    pub(crate) prompting: Prompting,
    pub(crate) scopes: Scopes,
    /// What there is besides where this is a scope's supervisor.
    pub(crate) scope: Option<ScopeState>,
    pub(crate) channels: Channels,
    /// What the cage may have come into contact with.
    pub(crate) taint: CageTaint,
    pub(crate) children: Children,
    pub(crate) callbacks: Callbacks<'a>,
    /// What it has of its parent, where this is a child's supervisor.
    pub(crate) parent: Option<ParentLink>,
    pub(crate) signals: OwnedFd,
    pub(crate) command: CommandState,
}

/// What PID 1 has reported of the cage's own command.
#[derive(Debug, Default)]
pub(crate) struct CommandState {
    pub(crate) status: Option<i32>,
    /// The errno of its execve.
    pub(crate) not_executed: Option<i32>,
    /// A layer that PID 1 could not apply.
    pub(crate) failure: Option<StartError>,
}

/// What the program around the supervisor does for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Callbacks<'a> {
    pub(crate) child_spawner: Option<&'a SpawnChild<'a>>,
    /// Writes an approval to the user's policy.
    pub(crate) permanent: Option<&'a Permanent<'a>>,
    /// Renders a network denial for the user, while the cage runs.
    pub(crate) denial_line: Option<&'a DenialLine<'a>>,
    /// Work for moments in which there is nothing else to do; taken away when there is no more of it.
    pub(crate) idle_step: Option<&'a dyn Fn() -> bool>,
}

/// Which descriptor of the poll set is which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A message of PID 1.
    InitMessage,
    /// The end of PID 1.
    InitExit,
    /// A system call that the filter denied.
    DeniedCall,
    /// A message of the egress proxy.
    Proxy,
    /// A name that was looked up in a cage without a network, or a report about such.
    Resolver,
    Signals,
    Input,
    Stream(StreamReady),
    /// A connection to the control socket.
    ControlSocket,
    /// A message of who is connected there.
    ControlClient(u64),
    /// A connection to the proxy of a host socket.
    SocketProxy(usize),
    MountHelper,
    /// A report of a scope's supervisor.
    Scope(u32),
    /// In a scope's supervisor: a word of the cage's.
    ScopeLink,
    /// A connection to the socket for permission requests, which nobody reads yet.
    RequestSocket,
    RequestReader,
    /// A connection to a socket for keys, which nobody reads yet.
    KeySocket,
    KeyFilter,
    /// The end of the program that tells a person of permission requests.
    Notifier(u32),
    Prompt,
    Child(u64),
    ChildExit(u64),
    Parent,
    Channel(u32),
}

pub(crate) fn failed(action: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError::Supervise { action, source }
}

/// What supervision begins with.
pub(crate) struct SupervisionSetup<'a> {
    pub(crate) plan: &'a BoundPlan<'a>,
    pub(crate) cage: Cage,
    pub(crate) baseline: StorageBaseline,
    pub(crate) joined: JoinedStreams,
    pub(crate) control: Control,
    pub(crate) runtime: RuntimeDir,
    pub(crate) background: Option<Background>,
    pub(crate) audit: AuditWriter,
    pub(crate) sockets: Vec<SocketProxy>,
    pub(crate) execs: Execs,
    pub(crate) request_reader: RequestReader,
    pub(crate) keys: KeyFilter,
    pub(crate) scope: Option<ScopeState>,
    pub(crate) callbacks: Callbacks<'a>,
    pub(crate) parent: Option<ParentLink>,
}

impl<'a> Supervision<'a> {
    pub(crate) fn new(beginning: SupervisionSetup<'a>) -> Result<Self, RunError> {
        let now = Instant::now();
        let SupervisionSetup {
            plan,
            mut cage,
            baseline,
            joined,
            control,
            runtime,
            background,
            audit,
            sockets,
            execs,
            request_reader,
            keys,
            scope,
            callbacks,
            parent,
        } = beginning;
        let resolver = cage
            .take_resolver()
            .map(|socket| DenyingResolver::new(socket, now));
        let init = cage.pid().as_raw_nonzero().get().unsigned_abs();
        let limits = Limits::new(plan, &cage, baseline, now)?;
        let network = Network::new(plan.network.as_ref(), cage.take_proxy(), sockets, now);
        let mut caught = FORWARDED.to_vec();
        if joined.has_terminal() {
            caught.push(SIGWINCH);
        } else {
            caught.push(SIGTSTP);
        }
        // In the background, reading or changing the terminal fails instead of stopping us.
        let signals = signals::catch_and_block(&caught, &[SIGTTIN, SIGTTOU])
            .map_err(failed("catch signals"))?;
        let questions = plan.request_terms();
        let signing = plan.signing.as_ref();
        let confirm = signing.is_some_and(|signing| signing.confirm.is_some());
        let supervision = Supervision {
            plan,
            limits,
            leases: Leases::default(),
            requests: RequestPace::default(),
            permission_requests: PermissionRequests::new(questions),
            execs,
            request_reader,
            keys,
            key_uses: KeyUses::new(confirm),
            intents: Intents::new(plan.leases.as_ref()),
            prompting: Prompting::default(),
            scopes: Scopes::default(),
            scope,
            channels: Channels::new(plan.channels),
            taint: CageTaint::default(),
            children: Children::new(plan.children),
            callbacks,
            parent,
            signals,
            denials: Denials::new(init, plan, now),
            network,
            resolver,
            streams: joined,
            control,
            runtime,
            background,
            cage,
            audit,
            command: CommandState::default(),
        };
        supervision
            .be_counted()
            .map_err(failed("have what this cage uses counted"))?;
        Ok(supervision)
    }

    /// Whether the cage's own command is over, or never was.
    pub(crate) fn command_is_over(&self) -> bool {
        self.command.status.is_some() || self.plan.command.argv.is_empty()
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
            if gone && self.streams.is_done(now) {
                return Ok(self.ending());
            }
            let pause = self.denials.pause(now);
            let ready = self.wait(gone, dead, pause)?;
            if ready.is_empty() && !gone {
                self.use_idle_moment();
            }
            let now = Instant::now();
            let was_dead = dead;
            for source in ready {
                // PID 1 is the last to go.
                dead |= source == Source::InitExit;
                gone |= self.handle(source, now)?;
            }
            if !gone {
                self.look_at_leases(now)?;
                self.look_at_taint(now)?;
                self.look_at_questions(now)?;
                self.intent_event(IntentEvent::Tick, now)?;
                self.look_at_prompt(now)?;
                self.look_at_denials(now);
            }
            if gone {
                self.prompt_event(PromptEvent::Close, now)?;
            }
            // When PID 1 has said that the command is over, it is exiting, and the kernel ends
            // the rest: the streams come to their end while it does.
            if !gone && self.must_end(now)? {
                self.cage.kill();
                gone = true;
                dead = true;
            }
            self.streams.settle(dead && !was_dead, now);
        }
    }

    fn use_idle_moment(&mut self) {
        let more = self.callbacks.idle_step.is_some_and(|step| step());
        if !more {
            self.callbacks.idle_step = None;
        }
    }

    /// Whether a limit, or somebody's wish, ends the cage now.
    fn must_end(&mut self, now: Instant) -> Result<bool, RunError> {
        if self.scope.as_ref().is_some_and(|scope| scope.is_over(now)) {
            return Ok(true);
        }
        self.exec_event(ExecEvent::Tick, now)?;
        if let Some(deadline) = self.control.stop_deadline() {
            let empty = self.plan.sticky && self.limits.is_empty();
            if now >= deadline || empty {
                return Ok(true);
            }
        }
        if self.scopes.writes() || self.children.is_any() {
            // Somebody is at work beside the cage.
            self.sign_of_life(now);
        }
        self.look_at_limits(now)?;
        Ok(self.limits.hit().is_some())
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
            add(Source::InitExit, self.cage.pidfd(), PollFlags::IN);
        }
        if !gone {
            add(Source::InitMessage, self.cage.control(), PollFlags::IN);
            if let (Some(listener), None) = (self.cage.listener(), pause) {
                add(Source::DeniedCall, listener, PollFlags::IN);
            }
            if self.prompting.is_open() {
                add(Source::Prompt, stdio::stdin(), PollFlags::IN);
            } else if let Some((fd, flags)) = self.streams.input_interest() {
                add(Source::Input, fd, flags);
            }
        }
        if let Some((proxy, sockets)) = self.network.descriptors(Instant::now()) {
            add(Source::Proxy, proxy, PollFlags::IN);
            for (index, socket) in sockets {
                add(Source::SocketProxy(index), socket, PollFlags::IN);
            }
        }
        let resolver = self.resolver.as_ref();
        if let Some(resolver) = resolver.and_then(|resolver| resolver.descriptor(Instant::now())) {
            add(Source::Resolver, resolver, PollFlags::IN);
        }
        add(Source::Signals, self.signals.as_fd(), PollFlags::IN);
        for (ready, fd, flags) in self.streams.interests() {
            add(Source::Stream(ready), fd, flags);
        }
        if let Some(listener) = self.control.listener() {
            add(Source::ControlSocket, listener, PollFlags::IN);
        }
        for (key, client) in self.control.clients() {
            add(Source::ControlClient(key), client, PollFlags::IN);
        }
        if let Some(helper) = self.leases.helper() {
            add(Source::MountHelper, helper, PollFlags::IN);
        }
        if let Some(listener) = self.request_reader.unattended().filter(|_| !gone) {
            add(Source::RequestSocket, listener, PollFlags::IN);
        }
        for (serial, notifier) in self.permission_requests.notifiers() {
            add(Source::Notifier(serial), notifier, PollFlags::IN);
        }
        for listener in self.keys.unattended().filter(|_| !gone) {
            add(Source::KeySocket, listener, PollFlags::IN);
        }
        if let Some(filter) = self.keys.filter() {
            add(Source::KeyFilter, filter, PollFlags::IN);
        }
        if let Some(reader) = self.request_reader.reader() {
            add(Source::RequestReader, reader, PollFlags::IN);
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
            add(Source::ChildExit(ticket), pidfd, PollFlags::IN);
        }
        if let Some(link) = self
            .parent
            .as_ref()
            .filter(|_| !gone)
            .and_then(ParentLink::link)
        {
            add(Source::Parent, link, PollFlags::IN);
        }
        if let Some(side) = self.scope.as_ref().filter(|_| !gone) {
            add(Source::ScopeLink, side.link().as_fd(), PollFlags::IN);
        }
        let mut until: Vec<Instant> = self.streams.next().into_iter().collect();
        until.extend(pause);
        until.extend(self.network.next(Instant::now()));
        let resolver = self.resolver.as_ref();
        until.extend(resolver.and_then(|resolver| resolver.next(Instant::now())));
        if !gone {
            until.extend(self.callbacks.idle_step.map(|_| Instant::now()));
            until.extend(self.limits.next());
            until.extend(self.execs.next());
            until.extend(self.leases.next());
            until.extend(self.next_look_at_taint(Instant::now()));
            until.extend(self.permission_requests.next());
            until.extend(self.prompting.next());
            until.extend(self.audit.denials.next());
            until.extend(self.scope.as_ref().and_then(ScopeState::deadline));
            let stopping = self.control.stop_deadline();
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
            Source::InitMessage => return self.hear(now),
            // Whatever PID 1 still had to say is in the socket.
            Source::InitExit => {
                while !self.hear(now)? {}
                return Ok(true);
            }
            Source::DeniedCall => self.answer_calls(now)?,
            Source::Proxy => self.network_event(NetworkEvent::ProxyReady, now)?,
            Source::Resolver => self.hear_resolver(now)?,
            Source::Signals => self.take_signals(now)?,
            Source::Input => {
                if self.streams.advance_input() {
                    self.sign_of_life(now);
                }
            }
            Source::Stream(ready) => {
                if self.streams.advance(ready, now) {
                    self.sign_of_life(now);
                    if let StreamReady::Output(_) = ready {
                        self.prompting.drew(now);
                    }
                }
            }
            Source::ControlSocket => {
                for reason in self.control.accept() {
                    self.audit.write(EventKind::PeerRefused { reason })?;
                }
            }
            Source::SocketProxy(index) => {
                self.network_event(NetworkEvent::SocketReady(index), now)?;
            }
            Source::ControlClient(key) => self.serve(key, now)?,
            Source::MountHelper => self.hear_helper(now)?,
            Source::Scope(number) => self.scope_event(ScopeEvent::Report(number), now)?,
            Source::RequestSocket => self.start_reader(),
            Source::KeySocket => {
                // Both may be ready at once, and one process reads both.
                if self.keys.filter().is_none() {
                    self.start_key_filter();
                }
            }
            Source::KeyFilter => self.key_filter_message(now)?,
            Source::Notifier(serial) => self.notifier_ended(serial)?,
            Source::Prompt => self.hear_prompt(now)?,
            Source::RequestReader => self.reader_message(now)?,
            Source::Child(ticket) => self.child_event(ChildEvent::Message(ticket), now)?,
            Source::ChildExit(ticket) => self.child_event(ChildEvent::Exited(ticket), now)?,
            Source::Parent => self.hear_parent(now)?,
            Source::Channel(serial) => self.channel_event(ChannelEvent::Ready { serial }, now)?,
            Source::ScopeLink => {
                if let Some(side) = &self.scope {
                    side.link().hear();
                }
            }
        }
        Ok(false)
    }

    fn take_signals(&mut self, now: Instant) -> Result<(), RunError> {
        while let Some(signal) =
            signals::next(self.signals.as_fd()).map_err(failed("read a signal"))?
        {
            match (signal, self.streams.has_terminal()) {
                (SIGTSTP, false) => self.stop_with_cage(),
                (SIGWINCH, true) => self.prompt_event(PromptEvent::Resized, now)?,
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
                self.command.status = Some(status);
                // A sticky cage lives on, unless its command never was.
                Ok(!self.plan.sticky || self.command.not_executed.is_some())
            }
            Some(FromInit::Exited { number, status }) => {
                self.exec_exited(number, status, now)?;
                Ok(false)
            }
            Some(FromInit::NotExecuted { number: 0, errno }) => {
                self.command.not_executed = Some(errno);
                Ok(false)
            }
            Some(FromInit::NotExecuted { number, errno }) => {
                self.exec_event(ExecEvent::NotExecuted { number, errno }, now)?;
                Ok(false)
            }
            Some(FromInit::Executed { number: 0 }) if self.command.not_executed.is_none() => {
                Ok(!self.announce())
            }
            Some(FromInit::Executed { number }) => {
                self.exec_event(ExecEvent::Executed(number), now)?;
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
                code,
            }) => {
                self.command.failure = Some(StartError::Layer {
                    layer,
                    action,
                    errno,
                    code,
                });
                Ok(true)
            }
            Some(FromInit::Dialled { ticket, socket }) => {
                self.network_event(NetworkEvent::Dialled { ticket, socket }, now)?;
                Ok(false)
            }
            Some(FromInit::Stopped) => {
                if !self.stopped_for_a_lease(now) {
                    self.stop_with_command(now)?;
                }
                Ok(false)
            }
            Some(FromInit::Closed) | None => Ok(true),
            Some(FromInit::Unshared | FromInit::Ready(_)) => Ok(false),
        }
    }

    /// The command was stopped at its terminal: so are we, and with us the shell's job. Without
    /// a terminal somebody inside stopped it, and somebody inside may let it go on.
    fn stop_with_command(&mut self, now: Instant) -> Result<(), RunError> {
        self.prompt_event(PromptEvent::Close, now)?;
        let signals = self.signals.as_fd();
        // A cage that ended meanwhile does not go on. In the background no shell could continue it:
        // there is no stop.
        if self.streams.suspend(|| signals::pending(signals)) || self.streams.is_logged() {
            self.let_go_on();
        }
        Ok(())
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
        let mut leased = Vec::new();
        if self.denials.observes() {
            let of_scope = self.scope.iter().flat_map(|scope| scope.leases());
            leased.extend(self.leases.all().chain(of_scope).filter_map(LeasedPath::of));
        }
        let events = self
            .denials
            .answer(listener, self.plan, &leased)
            .map_err(failed("answer a reported system call"))?;
        for event in events {
            self.audit.write(event)?;
        }
        if self.denials.observes() {
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
