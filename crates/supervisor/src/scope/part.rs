//! The scopes of one cage: a part of its supervisor. It owns the connections to the scopes'
//! supervisors and keeps account of their leases.

use super::link::{FromScope, PersonAnswer, ToScope};
use crate::effects::Effect;
use ironcage_control::{Channel, ExecDescription, LeaseDescription, LeaseState, Packet, Reply};
use ironcage_model::{Ending, EventKind, GrantedLease, Lease, LeaseEnd, LeaseReason, Reason};
use ironcage_model::{LeaseEndCause, RequestOutcome};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::net::{Shutdown, shutdown};
use ironcage_sys::rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use ironcage_watchdog::Guest;
use libc::SIGKILL;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// How long a scope may take to end with its cage, before its supervisor is killed, and the scope
/// with it.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Something that the scopes have to know.
#[derive(Debug)]
pub(crate) enum ScopeEvent {
    /// The supervisor of a scope was forked.
    Started {
        number: u32,
        command: Vec<String>,
        /// Whether a shell in the cage asked for it.
        shell: bool,
        channel: Channel,
        pidfd: OwnedFd,
    },
    /// A scope's supervisor reports something.
    Report(u32),
    /// What a scope's supervisor asked for is done.
    Done(u32),
    /// A scope may be made.
    Admitted {
        number: u32,
        /// Whether something could leave by it, and no person has allowed that.
        leads_out: bool,
    },
    Denied {
        number: u32,
        reason: Reason,
    },
    /// What came of a permission request of a scope's.
    Answered {
        number: u32,
        ticket: u32,
        outcome: RequestOutcome,
    },
    /// They are to stand still, or not any more.
    Pause(bool),
    /// Those that shells in the cage opened are to end.
    EndOfShells,
    /// Those by which something could leave are to end.
    EndWaysOut,
}

/// The scopes of one cage.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    running: Vec<RunningScope>,
}

/// A scope that is being made, runs, or is being ended.
#[derive(Debug)]
struct RunningScope {
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
    /// Process list, storage and segments of what it uses, which is to be counted.
    places: Option<Vec<OwnedFd>>,
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

    /// Tells every one to stand still, or not any more.
    fn pause(&self, paused: bool) {
        for scope in &self.running {
            // One that is gone stands still.
            let _ = scope.channel.send(&ToScope::Pause(paused), &[]);
        }
    }

    /// How many shells in the cage asked for.
    pub(crate) fn count_of_shells(&self) -> usize {
        self.running.iter().filter(|scope| scope.shell).count()
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
                let _ = scope.channel.send(&ToScope::End, &[]);
            }
        }
        numbers
    }
}

impl Scopes {
    /// Ends those that shells in the cage opened.
    fn end_those_of_shells(&self) {
        for scope in self.running.iter().filter(|scope| scope.shell) {
            // One that is gone has ended.
            let _ = scope.channel.send(&ToScope::End, &[]);
        }
    }

    /// The number of a scope by which something could leave, and which no person allowed that.
    pub(crate) fn way_out(&self) -> Option<u32> {
        let mut scopes = self.running.iter();
        let found = scopes.find(|scope| scope.leads_out && !scope.over);
        found.map(|scope| scope.number)
    }

    /// What a scope has counted, by its number. The descriptors are handed over.
    pub(crate) fn take_places(&mut self, number: u32) -> Option<Vec<OwnedFd>> {
        self.get(number)?.places.take()
    }

    fn get(&mut self, number: u32) -> Option<&mut RunningScope> {
        let mut scopes = self.running.iter_mut();
        scopes.find(|scope| scope.number == number)
    }

    /// Says something to a scope's supervisor. One that is gone shows when it is looked at next.
    fn tell(&mut self, number: u32, message: &ToScope) {
        if let Some(scope) = self.get(number) {
            let _ = scope.channel.send(message, &[]);
        }
    }

    pub(crate) fn handle(&mut self, event: ScopeEvent, now: Instant) -> Vec<Effect> {
        match event {
            ScopeEvent::Started {
                number,
                command,
                shell,
                channel,
                pidfd,
            } => self.running.push(RunningScope {
                number,
                command,
                shell,
                born: now,
                channel,
                pidfd,
                leases: Vec::new(),
                waiting: Vec::new(),
                made: false,
                begun: false,
                executed: false,
                over: false,
                leads_out: false,
                lost: false,
                places: None,
            }),
            ScopeEvent::Report(number) => return self.report(number),
            ScopeEvent::Done(number) => self.tell(number, &ToScope::Done),
            ScopeEvent::Admitted { number, leads_out } => {
                if let Some(scope) = self.get(number) {
                    (scope.made, scope.leads_out) = (true, leads_out);
                }
                return vec![Effect::AnswerScope(number)];
            }
            ScopeEvent::Denied { number, reason } => self.tell(number, &ToScope::Against(reason)),
            ScopeEvent::Answered {
                number,
                ticket,
                outcome,
            } => self.tell(number, &answer(ticket, outcome)),
            ScopeEvent::Pause(paused) => self.pause(paused),
            ScopeEvent::EndOfShells => self.end_those_of_shells(),
            ScopeEvent::EndWaysOut => {
                for scope in self.running.iter().filter(|scope| scope.leads_out) {
                    // One that is gone has ended.
                    let _ = scope.channel.send(&ToScope::End, &[]);
                }
            }
        }
        Vec::new()
    }

    /// Takes what a scope's supervisor reports.
    fn report(&mut self, number: u32) -> Vec<Effect> {
        let Some(scope) = self.get(number) else {
            return Vec::new();
        };
        let report = scope.channel.receive::<FromScope>(false);
        if matches!(report, Ok(None)) {
            return Vec::new();
        }
        // Who says something else does not wait for an answer any more; and says it before its own
        // client is told.
        let mut effects = vec![Effect::ForgetScopeRequests(number)];
        match report {
            Ok(None) => {}
            Ok(Some(Packet::Message(FromScope::Record(kind), _))) => {
                effects.extend(scope.record(*kind));
            }
            Ok(Some(Packet::Message(FromScope::Freeze, _))) => effects.push(Effect::FreezeCage),
            Ok(Some(Packet::Message(FromScope::Resume, _))) => effects.push(Effect::ResumeCage),
            Ok(Some(Packet::Message(FromScope::EndCage, _))) => {
                scope.lost = true;
                effects.push(Effect::KillCageForScope);
            }
            Ok(Some(Packet::Message(FromScope::Make(brings), _))) => {
                let brings = *brings;
                effects.push(Effect::AdmitScope { number, brings });
                return effects;
            }
            Ok(Some(Packet::Message(FromScope::Count, places))) => {
                scope.places = Some(places);
                effects.push(Effect::CountScope(number));
            }
            Ok(Some(Packet::Message(FromScope::Ask(needs), _))) => {
                let needs = *needs;
                effects.push(Effect::AskForScope { number, needs });
                return effects;
            }
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => {
                effects.extend(self.gone(number));
                return effects;
            }
        }
        effects.push(Effect::AnswerScope(number));
        effects
    }

    /// A scope's supervisor is gone, and with it the scope. Leases whose end it has not proved can
    /// be ended with the cage only: what was leased may have been handed to somebody there.
    fn gone(&mut self, number: u32) -> Vec<Effect> {
        let mut running = self.running.iter();
        let Some(index) = running.position(|scope| scope.number == number) else {
            return Vec::new();
        };
        let scope = self.running.swap_remove(index);
        let _ = pidfd_send_signal(&scope.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(scope.pidfd.as_fd()), WaitIdOptions::EXITED);
        let mut effects = Vec::new();
        if !scope.leases.is_empty() {
            effects.push(Effect::KillCageForScope);
        }
        effects.extend(scope.finish(&LeaseEnd::CageKilled));
        effects
    }

    /// Ends every scope, and waits until they are gone. The cage's own processes are gone already.
    pub(crate) fn finish(&mut self) -> Vec<Effect> {
        let scopes = std::mem::take(&mut self.running);
        for scope in &scopes {
            // It ends its scope when nobody hears it any more.
            let _ = shutdown(scope.channel.as_fd(), Shutdown::Both);
        }
        let mut effects = Vec::new();
        for scope in scopes {
            let mut fds = [PollFd::new(&scope.pidfd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&PATIENCE));
            let _ = pidfd_send_signal(&scope.pidfd, Signal::KILL);
            let _ = waitid(WaitId::PidFd(scope.pidfd.as_fd()), WaitIdOptions::EXITED);
            let end = match scope.lost {
                true => LeaseEnd::CageKilled,
                false => LeaseEnd::CageEnded,
            };
            effects.extend(scope.finish(&end));
        }
        effects
    }
}

impl RunningScope {
    /// Something in the scope is to be put on record.
    fn record(&mut self, kind: EventKind) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut replies = Vec::new();
        match &kind {
            EventKind::Lease(lease) => {
                // Before it is open: who reads what comes of it finds the mark.
                effects.push(Effect::MarkLeased(lease.resource.clone()));
                self.leases.push(lease.clone());
            }
            EventKind::LeaseEnd {
                number,
                end,
                holders,
                ..
            } => {
                self.leases.retain(|lease| lease.number != *number);
                let reply = Reply::LeaseEnded {
                    number: *number,
                    end: end.clone(),
                    holders: holders.clone(),
                };
                replies = self.replies(*number, &reply);
            }
            EventKind::Exec { command, .. } => {
                (self.begun, self.executed) = (true, true);
                self.command.clone_from(command);
            }
            EventKind::ExecExit { .. } => {
                self.executed = false;
                self.over = true;
            }
            _ => {}
        }
        // The audit log first: who is told may act on it.
        effects.push(Effect::Audit(kind));
        effects.extend(replies);
        effects
    }

    /// Tells those who wait for the end of a lease.
    fn replies(&self, lease: u32, reply: &Reply) -> Vec<Effect> {
        let waiting = self.waiting.iter().filter(|(_, number)| *number == lease);
        let replies = waiting.map(|(client, _)| Effect::Reply {
            client: *client,
            reply: reply.clone(),
        });
        replies.collect()
    }

    /// Its processes are gone: what is open on record ends.
    fn finish(self, end: &LeaseEnd) -> Vec<Effect> {
        let milliseconds = self.born.elapsed().as_millis() as u64;
        let mut effects = vec![Effect::GuestLeft(Guest::Scope(self.number))];
        for lease in &self.leases {
            effects.push(Effect::Audit(EventKind::LeaseEnd {
                number: lease.number,
                end: end.clone(),
                cause: LeaseEndCause::ScopeEndedWithCage.into(),
                holders: Vec::new(),
                milliseconds,
            }));
            let told = Reply::LeaseEnded {
                number: lease.number,
                end: end.clone(),
                holders: Vec::new(),
            };
            effects.extend(self.replies(lease.number, &told));
        }
        if self.executed {
            effects.push(Effect::Audit(EventKind::ExecExit {
                number: self.number,
                ending: Ending::Signalled { signal: SIGKILL },
                milliseconds,
            }));
        }
        effects
    }
}

/// What a scope's supervisor is told of its permission request.
fn answer(ticket: u32, outcome: RequestOutcome) -> ToScope {
    let said = match outcome {
        RequestOutcome::Pending { question, .. } => return ToScope::Asked { ticket, question },
        RequestOutcome::Granted(GrantedLease::ForScope { term, uses }) => {
            PersonAnswer::Yes { term, uses }
        }
        RequestOutcome::Denied { reason } | RequestOutcome::InBase { reason } => {
            PersonAnswer::No { reason }
        }
        // Nothing is opened for a scope but by itself.
        RequestOutcome::Granted(GrantedLease::Open(lease)) => PersonAnswer::No {
            reason: LeaseReason::Overlaps {
                lease: lease.number.into(),
                resource: lease.resource.to_string(),
            }
            .into(),
        },
    };
    ToScope::Answered { ticket, said }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
