//! Scopes: commands beside the cage, each with leases of its own, seen from the cage's supervisor.
//!
//! A scope has a supervisor of its own ([`side`]), forked from this one, which makes it, serves its
//! client and ends it. Here it is known by its number, its leases are kept account of, and what
//! happens in it is put on record. Nothing here waits for a scope, but at the end of the cage.

mod asking;
mod call;
mod leases;
mod link;
mod shell;
mod side;
mod taint;

pub(crate) use link::Link;
pub(crate) use side::{CLIENT, Side};

use crate::RunError;
use crate::control::MAX_EXECS;
use crate::strangers::let_go;
use crate::supervise::{SIGKILL, Supervision};
use ironcage_backend::Sibling;
use ironcage_control::{
    Channel, ExecDescription, ExecRequest, ExecStreams, LeaseDescription, LeaseState, Packet,
    Reply, ScopeRequest, pair,
};
use ironcage_model::{Ending, EventKind, Lease, LeaseEnd, Taint};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::process::{
    Signal, WaitId, WaitIdOptions, getpid, pidfd_send_signal, waitid,
};
use link::{Report, Word};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// How long a scope may take to end with its cage, before its supervisor is killed, and the scope
/// with it.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Leases that a tool call can have.
pub(super) const MOST_OF_A_CALL: usize = 64;

/// Scopes at once that shells in the cage asked for: the rest are the user's own.
const MOST_SHELLS: usize = 16;

/// The scopes of one cage.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    running: Vec<Running>,
}

/// A scope that is being made, runs, or is being ended.
#[derive(Debug)]
struct Running {
    number: u32,
    command: Vec<String>,
    /// Whether a shell in the cage asked for it.
    shell: bool,
    born: Instant,
    channel: Channel,
    pidfd: OwnedFd,
    /// Leases on record whose end is not.
    leases: Vec<Lease>,
    /// Who waits for the end of which.
    waiting: Vec<(u64, u32)>,
    /// Whether it has begun to be made.
    made: bool,
    /// Whether its command is on record: then it has its part of the cage's view.
    begun: bool,
    /// The same, and its end is not on record yet.
    executed: bool,
    /// Whether its processes are gone.
    over: bool,
    /// Whether something could leave by it, and no person has allowed that.
    leads_out: bool,
    /// Whether the end of a lease could not be proved, and the cage is ended for it.
    lost: bool,
}

impl Scopes {
    /// Where the scopes' supervisors report.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        let scopes = self.running.iter();
        scopes.map(|scope| (scope.number, scope.channel.as_fd()))
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether one is being made: what the cage has at this moment is shared with it.
    pub(crate) fn is_one_being_made(&self) -> bool {
        let mut scopes = self.running.iter();
        scopes.any(|scope| scope.made && !scope.begun && !scope.over)
    }

    /// Whether something in a scope may still write to the workspace.
    pub(crate) fn writes(&self) -> bool {
        self.running.iter().any(|scope| !scope.over)
    }

    /// Says something to a scope's supervisor. One that is gone shows when it is looked at next.
    fn tell(&self, number: u32, word: &Word) {
        if let Some(scope) = self.running.iter().find(|scope| scope.number == number) {
            let _ = scope.channel.send(word, &[]);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// The leases of every scope.
    pub(crate) fn describe_leases(&self) -> Vec<LeaseDescription> {
        let leases = self.running.iter().flat_map(|scope| &scope.leases);
        leases
            .map(|lease| LeaseDescription {
                lease: lease.clone(),
                state: LeaseState::Open,
                milliseconds_left: None,
                uses_left: None,
            })
            .collect()
    }

    pub(crate) fn describe(&self) -> impl Iterator<Item = ExecDescription> {
        let scopes = self.running.iter();
        scopes.map(|scope| ExecDescription {
            number: scope.number,
            command: scope.command.clone(),
        })
    }

    /// Whether one of them has a lease with this number, or any.
    pub(crate) fn has_lease(&self, which: Option<u32>) -> bool {
        let mut leases = self.running.iter().flat_map(|scope| &scope.leases);
        leases.any(|lease| which.is_none_or(|which| which == lease.number))
    }

    /// Ends the scopes that have one of these leases, which is how such a lease is taken back.
    /// Returns their numbers.
    pub(crate) fn revoke(&mut self, key: u64, which: Option<u32>) -> Vec<u32> {
        let mut numbers = Vec::new();
        for scope in &mut self.running {
            let before = numbers.len();
            for lease in &scope.leases {
                if which.is_none_or(|which| which == lease.number) {
                    scope.waiting.push((key, lease.number));
                    numbers.push(lease.number);
                }
            }
            if numbers.len() > before {
                // One that is gone has ended.
                let _ = scope.channel.send(&Word::End, &[]);
            }
        }
        numbers
    }
}

impl Scopes {
    /// Asks those to end that shells in the cage opened.
    pub(crate) fn end_those_of_shells(&self) {
        for scope in self.running.iter().filter(|scope| scope.shell) {
            // One that is gone has ended.
            let _ = scope.channel.send(&Word::End, &[]);
        }
    }
}

impl Supervision<'_> {
    /// Starts a command in a scope. What stands against it later is told by the scope's supervisor.
    pub(crate) fn start_scope(
        &mut self,
        key: u64,
        request: ExecRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let against = match request.streams {
            ExecStreams::Detached => Some(
                "a scope ends with its command: what is to stay in the background belongs to the cage; leave --scope or -d out"
                    .to_owned(),
            ),
            _ if request.scope.iter().any(|scope| scope.shell.is_some()) => {
                Some("only a shell in the cage speaks for itself".into())
            }
            ExecStreams::Given => Some("descriptors of the host's do not go into a cage".into()),
            _ if self.control.has_exec(key) => {
                Some("this connection has started a command already".into())
            }
            _ => self.against_scope(),
        };
        if let Some(reason) = against {
            self.control.refuse(key, reason);
            return Ok(());
        }
        let Some(client) = self.control.give_away(key) else {
            return Ok(());
        };
        self.begin_scope(client, request, descriptors, now)
    }

    /// A shell in the cage wants to run a command in a scope. What it is, the shell says to the
    /// scope's own supervisor.
    pub(crate) fn run_for_shell(
        &mut self,
        client: OwnedFd,
        asked: ScopeRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let Ok(another) = client.try_clone() else {
            let_go(vec![client]);
            return Ok(());
        };
        let answered = self.answer_shell(Channel::new(another), asked, descriptors, now);
        // The agent may have put descriptors into it, and closes them with it.
        let_go(vec![client]);
        answered
    }

    fn answer_shell(
        &mut self,
        client: Channel,
        asked: ScopeRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let shells = self.scopes.running.iter().filter(|scope| scope.shell);
        let against = match () {
            () if !self.plan.shares_storage() => {
                Some("the shell of this cage has no scopes".to_owned())
            }
            () if !self.leases.pace.spend(now) => {
                Some("too much was asked for within a short time; try again later".into())
            }
            () if shells.count() >= MOST_SHELLS => Some(format!(
                "{MOST_SHELLS} other commands run in scopes of their own; try again later"
            )),
            () if self.counts_together() => Some(
                "what a scope sends would not be counted with what the cage sends (network.limits)"
                    .into(),
            ),
            () if self.network.is_narrowed() => Some(
                "the cage's network was narrowed while it ran, and a scope would not know of it"
                    .into(),
            ),
            () => self.against_scope(),
        };
        if let Some(reason) = against {
            // Who does not take it learns by the end of the connection.
            let _ = client.send(&Reply::Refused { reason }, &[]);
            return Ok(());
        }
        if self.has_leases_for(&asked.leases, &descriptors) {
            let _ = client.send(&Reply::InCage, &[]);
            return Ok(());
        }
        let request = ExecRequest {
            argv: Vec::new(),
            env: Vec::new(),
            cwd: None,
            streams: ExecStreams::Given,
            scope: Some(asked),
        };
        self.begin_scope(client, request, descriptors, now)
    }

    fn begin_scope(
        &mut self,
        client: Channel,
        request: ExecRequest,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) -> Result<(), RunError> {
        let (sibling, ours, theirs) = match self.prepare_scope() {
            Ok(prepared) => prepared,
            Err(reason) => {
                let _ = client.send(&Reply::Refused { reason }, &[]);
                return Ok(());
            }
        };
        let number = self.control.draw_exec();
        let shell = request.scope.iter().any(|scope| scope.shell.is_some());
        let count = match &request.scope {
            // How many it needs is read later, and not here.
            Some(scope) if scope.call.is_some() => MOST_OF_A_CALL,
            Some(scope) => scope.leases.len(),
            None => 0,
        };
        let first_lease = self.leases.reserve(count);
        let mut command: Vec<String> = request
            .argv
            .iter()
            .map(|word| String::from_utf8_lossy(&word.0).into_owned())
            .collect();
        if command.is_empty() {
            command.push(match shell {
                true => "(a command of the shell)".into(),
                false => "(a tool call)".into(),
            });
        }
        let taint = match self.plan.taint.is_some() {
            true => self.tainted(now)?,
            false => Taint::NONE,
        };
        let supervisor = getpid();
        step();
        match fork(Namespaces::NONE, None) {
            Err(error) => {
                let reason = format!("the scope's supervisor cannot be started: {error}");
                let _ = client.send(&Reply::Refused { reason }, &[]);
                Ok(())
            }
            Ok(Forked::Child) => side::run(side::Given {
                plan: self.plan,
                description: self.control.description.clone(),
                supervisor,
                link: theirs,
                client,
                sibling,
                request,
                descriptors,
                number,
                first_lease,
                distrusted: self.intents.is_distrusted(),
                taint,
            }),
            Ok(Forked::Parent { pidfd, .. }) => {
                self.scopes.running.push(Running {
                    number,
                    command,
                    shell,
                    born: now,
                    channel: ours,
                    pidfd,
                    leases: Vec::new(),
                    waiting: Vec::new(),
                    made: false,
                    begun: false,
                    executed: false,
                    over: false,
                    leads_out: false,
                    lost: false,
                });
                self.limits.sign_of_life(now);
                Ok(())
            }
        }
    }

    /// Whether the cage's network has limits that are counted over all of its connections.
    fn counts_together(&self) -> bool {
        let network = self.plan.network.as_ref();
        network.is_some_and(|network| network.limits.count_together())
    }

    fn against_scope(&self) -> Option<String> {
        use ironcage_backend::{Ability, Answer};
        let isolation = self.plan.rung.what.isolation;
        if let Answer::No(reason) = crate::backend(isolation).can(Ability::Scope) {
            return Some(format!("this cage's isolation has no scopes: {reason}"));
        }
        if self.control.execs.len() + self.scopes.count() >= MAX_EXECS {
            let many = "64 other commands were started in this cage and still run; try again later";
            return Some(many.into());
        }
        self.against_scope_now()
    }

    /// What stands against a scope at the moment when it is made.
    fn against_scope_now(&self) -> Option<String> {
        if self.control.stopping.is_some() {
            return Some("the cage is being stopped".into());
        }
        if self.is_held() {
            return Some("its change is being applied at this moment; try again".into());
        }
        let places = self.plan.scope_places();
        if let Some(lease) = self.leases.in_places(&places) {
            return Some(format!(
                "lease {} ({}) is open in the part of the cage's view that a scope shares; revoke it first",
                lease.number, lease.resource
            ));
        }
        None
    }

    fn prepare_scope(&self) -> Result<(Sibling, Channel, Channel), String> {
        let sibling = self.sibling().map_err(|error| error.to_string())?;
        let sibling = sibling.ok_or("this cage has nothing that a scope could share")?;
        let (ours, theirs) = pair().map_err(|error| error.to_string())?;
        Ok((sibling, ours, theirs))
    }

    /// Takes what a scope's supervisor reports.
    pub(crate) fn hear_scope(&mut self, number: u32, now: Instant) -> Result<(), RunError> {
        let Some(index) = self.scopes.running.iter().position(|s| s.number == number) else {
            return Ok(());
        };
        let Some(scope) = self.scopes.running.get_mut(index) else {
            return Ok(());
        };
        let report = scope.channel.receive::<Report>(false);
        if !matches!(report, Ok(None)) {
            // Who says something else does not wait for an answer any more; and says it before
            // its own client is told.
            self.questions.forget_scope(number);
        }
        match report {
            Ok(None) => return Ok(()),
            Ok(Some(Packet::Message(Report::Record(kind), _))) => {
                self.record_of_scope(index, *kind)?;
            }
            Ok(Some(Packet::Message(Report::Freeze, _))) => self.freeze_for_a_lease(now),
            Ok(Some(Packet::Message(Report::Resume, _))) => self.resume_after_a_lease(now),
            Ok(Some(Packet::Message(Report::EndCage, _))) => {
                scope.lost = true;
                self.end_family()?;
                self.control.stopping = Some(now);
            }
            Ok(Some(Packet::Message(Report::Make(brings), _))) => {
                let against = match self.against_scope_now() {
                    None => self.against_taint_of_scope(index, &brings, now)?,
                    against => against,
                };
                if let Some(reason) = against {
                    self.scopes.tell(number, &Word::Against(reason));
                    return Ok(());
                }
                if let Some(scope) = self.scopes.running.get_mut(index) {
                    scope.made = true;
                }
            }
            Ok(Some(Packet::Message(Report::Ask(asks), _))) => {
                return self.ask_for_scope(number, *asks, now);
            }
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => {
                let scope = self.scopes.running.swap_remove(index);
                return self.scope_gone(scope);
            }
        }
        if let Some(scope) = self.scopes.running.get(index) {
            // One that is gone shows when it is looked at next.
            let _ = scope.channel.send(&Word::Done, &[]);
        }
        self.limits.sign_of_life(now);
        Ok(())
    }

    fn record_of_scope(&mut self, index: usize, kind: EventKind) -> Result<(), RunError> {
        if let EventKind::Lease(lease) = &kind {
            self.mark_leased(&lease.resource)?;
        }
        let Some(scope) = self.scopes.running.get_mut(index) else {
            return Ok(());
        };
        let mut told = None;
        match &kind {
            EventKind::Lease(lease) => scope.leases.push(lease.clone()),
            EventKind::LeaseEnd {
                number,
                end,
                holders,
                ..
            } => {
                scope.leases.retain(|lease| lease.number != *number);
                told = Some(Reply::LeaseEnded {
                    number: *number,
                    end: end.clone(),
                    holders: holders.clone(),
                });
            }
            EventKind::Exec { command, .. } => {
                (scope.begun, scope.executed) = (true, true);
                scope.command.clone_from(command);
            }
            EventKind::ExecExit { .. } => {
                scope.executed = false;
                scope.over = true;
            }
            _ => {}
        }
        let number = match &told {
            Some(Reply::LeaseEnded { number, .. }) => Some(*number),
            _ => None,
        };
        let waiting: Vec<u64> = scope
            .waiting
            .iter()
            .filter(|(_, lease)| Some(*lease) == number)
            .map(|(key, _)| *key)
            .collect();
        // The record first: who is told may act on it.
        self.recorder.write(kind)?;
        step();
        for (key, reply) in waiting.iter().zip(told.iter().cycle()) {
            self.control.reply(*key, reply, &[]);
        }
        Ok(())
    }

    /// A scope's supervisor is gone, and with it the scope. Leases whose end it has not proved can
    /// be ended with the cage only: what was leased may have been handed to somebody there.
    fn scope_gone(&mut self, scope: Running) -> Result<(), RunError> {
        let _ = pidfd_send_signal(&scope.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(scope.pidfd.as_fd()), WaitIdOptions::EXITED);
        if !scope.leases.is_empty() {
            self.end_family()?;
            self.control.stopping = Some(Instant::now());
        }
        self.finish_scope(scope, &LeaseEnd::CageKilled)
    }

    fn finish_scope(&mut self, scope: Running, end: &LeaseEnd) -> Result<(), RunError> {
        let milliseconds = scope.born.elapsed().as_millis() as u64;
        for lease in &scope.leases {
            self.recorder.write(EventKind::LeaseEnd {
                number: lease.number,
                end: end.clone(),
                cause: "its scope ended with the cage".into(),
                holders: Vec::new(),
                milliseconds,
            })?;
            let told = Reply::LeaseEnded {
                number: lease.number,
                end: end.clone(),
                holders: Vec::new(),
            };
            for (key, _) in scope.waiting.iter().filter(|(_, n)| *n == lease.number) {
                self.control.reply(*key, &told, &[]);
            }
        }
        if scope.executed {
            self.recorder.write(EventKind::ExecExit {
                number: scope.number,
                ending: Ending::Signalled { signal: SIGKILL },
                milliseconds,
            })?;
        }
        Ok(())
    }

    /// Ends every scope, and waits until they are gone. The cage's own processes are gone already.
    pub(crate) fn finish_scopes(&mut self) -> Result<(), RunError> {
        let scopes = std::mem::take(&mut self.scopes.running);
        for scope in &scopes {
            // It ends its scope when nobody hears it any more.
            let _ = shutdown(scope.channel.as_fd(), Shutdown::Both);
        }
        for scope in scopes {
            let mut fds = [PollFd::new(&scope.pidfd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&PATIENCE));
            let _ = pidfd_send_signal(&scope.pidfd, Signal::KILL);
            let _ = waitid(WaitId::PidFd(scope.pidfd.as_fd()), WaitIdOptions::EXITED);
            let end = match scope.lost {
                true => LeaseEnd::CageKilled,
                false => LeaseEnd::CageEnded,
            };
            self.finish_scope(scope, &end)?;
        }
        Ok(())
    }
}
