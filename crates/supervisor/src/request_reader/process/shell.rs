//! Commands of shells in the cage: what each names, and whether a scope is asked for, or leases of
//! the cage.

use super::{ClientState, MOST_PATHS, Reader};
use crate::intents::in_base;
use crate::needed::{Names, Need, Needed, Nesting};
use crate::path_lookup::{PathLookup, look_up};
use crate::request_reader::FromReader;
use ironcage_control::{Answered, DeniedLease, GrantRequest, ShellIntent, ShellRequest, pair};
use ironcage_model::{
    Lease, LeaseOutcome, LeaseReason, Reason, Resource, Right, SupervisorReason, Term,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A lease that a command needs, and the path's descriptor.
struct NeededLease {
    resource: Resource,
    grant: GrantRequest,
    handle: Option<OwnedFd>,
}

/// Leases of the cage that a command is to have which leaves something running.
pub(super) struct BackgroundCommand {
    awaited: Vec<AwaitedLease>,
    /// Until when a person's answers are waited for.
    until: Instant,
    /// What it will not have, one line each.
    lacks: Vec<String>,
}

struct AwaitedLease {
    ticket: u64,
    resource: Resource,
    /// The person who has to approve it was asked.
    pending: Option<(u32, Reason)>,
}

impl BackgroundCommand {
    pub(super) fn awaits(&self, ticket: u64) -> bool {
        self.awaited.iter().any(|lease| lease.ticket == ticket)
    }

    /// When the answers of persons were waited for long enough.
    pub(super) fn until(&self) -> Option<Instant> {
        let pending = self.awaited.iter().any(|lease| lease.pending.is_some());
        pending.then_some(self.until)
    }

    /// Takes what came of one of them. Returns the answer once there is one.
    pub(super) fn take(&mut self, ticket: u64, outcome: LeaseOutcome<Lease>) -> Option<Answered> {
        let mut awaited = self.awaited.iter();
        let index = awaited.position(|lease| lease.ticket == ticket)?;
        if let LeaseOutcome::Pending { question, reason } = outcome {
            self.awaited.get_mut(index)?.pending = Some((question, reason));
            return None;
        }
        let lease = self.awaited.swap_remove(index);
        if let LeaseOutcome::Denied { reason } = outcome {
            if lease.pending.is_some() {
                // A person was asked: without it the command is not run.
                return Some(Answered::denied(reason));
            }
            let denied = DeniedLease {
                resource: lease.resource,
                reason,
                ask: false,
            };
            self.lacks.push(denied.to_string());
        }
        let lacks = std::mem::take(&mut self.lacks);
        match self.awaited.is_empty() {
            true => Some(Answered::InCage { lacks }),
            false => {
                self.lacks = lacks;
                None
            }
        }
    }

    /// The answer if no person has given one in time.
    pub(super) fn give_up(&self, now: Instant) -> Option<Answered> {
        let mut pending = self
            .awaited
            .iter()
            .filter_map(|lease| lease.pending.as_ref());
        let (question, because) = pending.next().filter(|_| now >= self.until)?;
        Some(Answered::denied(LeaseReason::StillPending {
            because: because.to_string(),
            question: u64::from(*question),
        }))
    }
}

fn both(some: &[PathBuf], others: &[PathBuf]) -> Vec<PathBuf> {
    some.iter().chain(others).cloned().collect()
}

impl Reader<'_> {
    /// A command of a shell: where anything that it names could be given, a scope is asked for.
    /// What is to be executed goes to the scope's supervisor, and not through here. One that leaves
    /// something running runs in the cage instead, and leases are the cage's.
    pub(super) fn run_shell(&mut self, index: usize, mut inquiry: ShellRequest) {
        if !self.plan.shares_storage() {
            let lacks = Vec::new();
            return self.answer(index, &Answered::InCage { lacks });
        }
        // What may be written is worth a lease, and not worth a person's time.
        let at_once = |path: &PathBuf| self.plan.writes_at_once(path);
        let below = std::mem::take(&mut inquiry.below);
        inquiry.writes.extend(below.into_iter().filter(at_once));
        let nesting = match inquiry.stays {
            true => Nesting::Merged,
            false => Nesting::Allowed,
        };
        let names = Names {
            reads: inquiry.reads.clone(),
            writes: inquiry.writes.clone(),
            contacts: inquiry.contacts.clone(),
        };
        let (leases, mut refused) = self.needs_of(&inquiry, &names, nesting);
        self.refuse_private(&names.reads, &mut refused);
        if leases.is_empty() {
            let lacks = self.record_refused(refused);
            return self.answer(index, &Answered::InCage { lacks });
        }
        match inquiry.stays {
            true => self.lease_to_cage(index, &inquiry, leases, refused),
            false => self.ask_for_scope(index, inquiry, leases, refused),
        }
    }

    /// What a command names and the cage lacks: what could be given, and what could not.
    fn needs_of(
        &self,
        inquiry: &ShellRequest,
        names: &Names,
        nesting: Nesting,
    ) -> (Vec<NeededLease>, Vec<DeniedLease>) {
        let mut needed = Needed::of(self.plan, names, nesting);
        let plan = self.plan;
        needed
            .needs
            .retain(|need| !matches!(need, Need::Host(rule) if in_base(plan, rule)));
        let mut refused = needed.refused;
        let reason = match inquiry.stays {
            true => format!(
                "a command of {} that leaves something running",
                inquiry.name
            ),
            false => format!("a command of {}", inquiry.name),
        };
        let mut leases = Vec::new();
        let mut paths = 0;
        for need in needed.needs {
            let resource = need.resource();
            // A file system that does not answer is waited for here, and not in the supervisor.
            let seen = need.look();
            if seen.is_some_and(|seen| paths >= MOST_PATHS || seen.is_err()) {
                refused.push(DeniedLease {
                    resource,
                    reason: LeaseReason::PathNotInspected {
                        error: "it is not accessible, or too many paths are named".into(),
                    }
                    .into(),
                    ask: false,
                });
                continue;
            }
            let (wanted, handle) = need.target();
            paths += usize::from(handle.is_some());
            let grant = GrantRequest {
                wanted,
                term: Term::UntilRevoked,
                uses: None,
                reason: reason.clone(),
            };
            leases.push(NeededLease {
                resource,
                grant,
                handle,
            });
        }
        (leases, refused)
    }

    /// What is read in the home and not there: most likely the user's own was meant.
    fn refuse_private(&self, reads: &[PathBuf], refused: &mut Vec<DeniedLease>) {
        let in_home = |path: &&PathBuf| self.plan.home().is_some_and(|home| path.starts_with(home));
        for path in reads.iter().filter(in_home) {
            if let PathLookup::Had { passing: true } = look_up(self.plan, path, Right::Read) {
                refused.push(DeniedLease {
                    resource: Resource::Path {
                        path: path.to_string_lossy().into_owned(),
                        right: Right::Read,
                    },
                    reason: LeaseReason::PathPrivate.into(),
                    ask: false,
                });
            }
        }
    }

    /// Puts on record what nobody can give. Returns it in words.
    fn record_refused(&self, refused: Vec<DeniedLease>) -> Vec<String> {
        let lacks = refused.iter().map(DeniedLease::to_string).collect();
        for one in refused {
            let (resource, reason) = (one.resource, one.reason);
            // A supervisor who is gone is noticed later.
            let _ = self
                .link
                .send(&FromReader::Refused { resource, reason }, &[]);
        }
        lacks
    }

    /// Asks for leases of the cage, one by one, as any process in it can.
    fn lease_to_cage(
        &mut self,
        index: usize,
        inquiry: &ShellRequest,
        leases: Vec<NeededLease>,
        refused: Vec<DeniedLease>,
    ) {
        let mut command = BackgroundCommand {
            awaited: Vec::new(),
            until: Instant::now() + Duration::from_secs(inquiry.wait),
            lacks: self.record_refused(refused),
        };
        for needed in leases {
            let NeededLease {
                resource,
                grant,
                handle,
            } = needed;
            self.last += 1;
            let ticket = self.last;
            let asks = FromReader::Asks { ticket, grant };
            let descriptors: Vec<BorrowedFd<'_>> = handle.iter().map(AsFd::as_fd).collect();
            if self.link.send(&asks, &descriptors).is_err() {
                return self.answer(index, &Answered::denied(SupervisorReason::Busy));
            }
            command.awaited.push(AwaitedLease {
                ticket,
                resource,
                pending: None,
            });
        }
        if let Some(client) = self.clients.get_mut(index) {
            client.state = ClientState::Leasing(command);
        }
    }

    fn ask_for_scope(
        &mut self,
        index: usize,
        inquiry: ShellRequest,
        mut leases: Vec<NeededLease>,
        refused: Vec<DeniedLease>,
    ) {
        let mut held = Vec::new();
        if !inquiry.held_reads.is_empty() || !inquiry.held_writes.is_empty() {
            let lacking: Vec<Resource> = leases.into_iter().map(|lease| lease.resource).collect();
            let with_held = Names {
                reads: both(&inquiry.reads, &inquiry.held_reads),
                writes: both(&inquiry.writes, &inquiry.held_writes),
                contacts: inquiry.contacts.clone(),
            };
            // All together, so that one that lies in another comes after it.
            (leases, _) = self.needs_of(&inquiry, &with_held, Nesting::Allowed);
            let all = leases.iter().enumerate();
            let others = all.filter(|(_, lease)| !lacking.contains(&lease.resource));
            held = others.map(|(index, _)| index).collect();
        }
        let (leases, handles): (Vec<_>, Vec<_>) = leases
            .into_iter()
            .map(|needed| (needed.grant, needed.handle))
            .unzip();
        let descriptors: Vec<OwnedFd> = handles.into_iter().flatten().collect();
        let runs = FromReader::Runs {
            shell: ShellIntent {
                shell: inquiry.name,
                refused,
                open: inquiry.open,
                held,
            },
            leases,
            wait: inquiry.wait,
        };
        let Ok((ours, theirs)) = pair() else {
            return self.answer(index, &Answered::denied(SupervisorReason::Busy));
        };
        let mut beside = vec![theirs.as_fd()];
        beside.extend(descriptors.iter().map(AsFd::as_fd));
        if self.link.send(&runs, &beside).is_err() {
            return self.answer(index, &Answered::denied(SupervisorReason::Busy));
        }
        if let Some(client) = self.clients.get_mut(index) {
            client.hand_over(ours.as_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(until: Instant) -> BackgroundCommand {
        let awaited = [7, 8].map(|ticket| AwaitedLease {
            ticket,
            resource: Resource::Path {
                path: format!("/srv/{ticket}"),
                right: Right::Read,
            },
            pending: None,
        });
        BackgroundCommand {
            awaited: awaited.into(),
            until,
            lacks: vec!["before".into()],
        }
    }

    fn in_base() -> LeaseOutcome<Lease> {
        let origin = "a test".into();
        let reason = LeaseReason::InBase { origin }.into();
        LeaseOutcome::InBase { reason }
    }

    fn pending() -> LeaseOutcome<Lease> {
        LeaseOutcome::Pending {
            question: 3,
            reason: LeaseReason::PathPrivate.into(),
        }
    }

    #[test]
    fn a_command_runs_when_each_lease_is_answered_and_lacks_what_nobody_can_give() {
        let now = Instant::now();
        let mut command = command(now);
        assert!(command.awaits(7) && !command.awaits(9));
        let denied = LeaseOutcome::denied(LeaseReason::PathPrivate);
        assert_eq!(command.take(8, denied), None);
        assert!(command.until().is_none() && command.give_up(now).is_none());
        let Some(Answered::InCage { lacks }) = command.take(7, in_base()) else {
            panic!("it does not run");
        };
        assert_eq!(lacks.len(), 2, "{lacks:?}");
        assert!(lacks[1].contains("/srv/8"), "{lacks:?}");
    }

    #[test]
    fn a_command_does_not_run_without_what_a_person_denies_or_does_not_answer() {
        let now = Instant::now();
        let mut denied = command(now + Duration::from_secs(60));
        assert_eq!(denied.take(7, pending()), None);
        assert!(denied.until().is_some() && denied.give_up(now).is_none());
        let answer = denied.take(7, LeaseOutcome::denied(LeaseReason::PathPrivate));
        assert!(matches!(
            answer,
            Some(Answered::Outcome(LeaseOutcome::Denied { .. }))
        ));
        let mut late = command(now);
        assert_eq!(late.take(8, pending()), None);
        let Some(Answered::Outcome(LeaseOutcome::Denied { reason })) = late.give_up(now) else {
            panic!("it waits for ever");
        };
        assert_eq!(reason.code(), Some("lease-still-pending"));
    }
}
