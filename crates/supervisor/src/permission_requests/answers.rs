//! Answers to permission requests, and their effects.

use super::{APPROVED, Answerer, FAR, MOST_REMEMBERED, PermissionRequests, RecentApproval, after};
use crate::effects::Effect;
use crate::leases::{LeaseRequest, REASON, Requester, look};
use ironcage_control::{ApproveRequest, Reply};
use ironcage_model::{
    GrantedLease, LeaseReason, PermissionRequestEnd, RequestOutcome, Resource, Scope, Term,
};
use std::path::Path;
use std::time::{Duration, Instant};

impl PermissionRequests {
    /// The pending request that a person answers; else that there is none.
    fn find(&self, by: Answerer, number: u32) -> Result<usize, Vec<Effect>> {
        let found = self.position(number).filter(|index| {
            let open = self.open.get(*index);
            open.is_some_and(|open| open.approved.is_none())
        });
        found.ok_or_else(|| {
            let question = number.into();
            let outcome = RequestOutcome::denied(LeaseReason::NoSuchQuestion { question });
            vec![Effect::ReportToPerson {
                person: by,
                number,
                outcome,
            }]
        })
    }

    /// The numbers of the requests that are answered with this one: it, and those that the same
    /// command raised with it.
    fn answered_with(&self, index: usize) -> Vec<u32> {
        let Some(named) = self.open.get(index).map(|open| &open.question) else {
            return Vec::new();
        };
        let others = self.open.iter().filter(|open| {
            open.question.answered_as() == named.answered_as()
                && open.question.number != named.number
                && open.approved.is_none()
        });
        let others = others.map(|open| open.question.number);
        others.chain([named.number]).collect()
    }

    /// A person says yes.
    pub(crate) fn approve(
        &mut self,
        by: Answerer,
        request: &ApproveRequest,
        now: Instant,
    ) -> Vec<Effect> {
        let index = match self.find(by, request.number) {
            Ok(index) => index,
            Err(effects) => return effects,
        };
        let Some(open) = self.open.get_mut(index) else {
            return Vec::new();
        };
        let of_key = matches!(open.question.resource, Resource::Key { .. });
        if of_key || matches!(open.question.scope, Scope::Exec { .. }) {
            open.approved = Some(by);
            let mut effects = Vec::new();
            // The one that was named last, for who answered is told what came of that one.
            for number in self.answered_with(index) {
                let request = ApproveRequest {
                    number,
                    ..request.clone()
                };
                effects.extend(self.approve_for_scope(&request, now));
            }
            return effects;
        }
        let of_path = matches!(open.question.resource, Resource::Path { .. });
        if request.uses.is_some() && of_path {
            // An answer that cannot be carried out does not count: the request stays.
            let kind = "path".into();
            let outcome = RequestOutcome::denied(LeaseReason::UsesNotCounted { kind });
            return vec![Effect::ReportToPerson {
                person: by,
                number: request.number,
                outcome,
            }];
        }
        open.approved = Some(by);
        open.grant.term = request.term.unwrap_or(open.grant.term);
        open.grant.uses = request.uses.or(open.grant.uses);
        vec![Effect::RequestApproved(request.number)]
    }

    /// The lease that a person approved, to be asked for once more in the request's name, by what
    /// was held since it was asked for.
    pub(crate) fn take_approved(&mut self, number: u32) -> Option<LeaseRequest> {
        let index = self.position(number)?;
        let open = self.open.get_mut(index)?;
        Some(LeaseRequest {
            by: Requester::Approved(number),
            origin: open.question.origin,
            grant: open.grant.clone(),
            descriptor: open.descriptor.take(),
            unannounced: false,
        })
    }

    /// Whether what was asked for is not there any more.
    pub(crate) fn has_moved(&self, request: &LeaseRequest, number: u32) -> bool {
        let open = self.position(number).and_then(|index| self.open.get(index));
        let Some(open) = open else {
            return true;
        };
        match (&open.question.resource, &request.descriptor) {
            (Resource::Path { path, right }, Some(handle)) => {
                let seen = look(handle, *right);
                !seen.is_ok_and(|seen| {
                    seen.path == Path::new(path) && Some(seen.identity) == open.identity
                })
            }
            _ => false,
        }
    }

    /// A person says yes to a request of a scope's. Where no scope waits for it any more, the next
    /// that needs the same has it; where a time was named, each within that time, and where it is
    /// the run's, each of the run.
    fn approve_for_scope(&mut self, request: &ApproveRequest, now: Instant) -> Vec<Effect> {
        let index = self.position(request.number);
        let Some(open) = index.and_then(|index| self.open.get(index)) else {
            return Vec::new();
        };
        let term = request.term.unwrap_or(open.grant.term);
        let waits = open
            .waiting
            .iter()
            .any(|by| matches!(by, Requester::Scope { .. } | Requester::KeyUse(_)));
        let (until, left) = match (request.term, request.uses) {
            (Some(Term::UntilRevoked), None) => (after(now, FAR), None),
            (Some(Term::Milliseconds(time)), None) => {
                (after(now, Duration::from_millis(time)), None)
            }
            (time, uses) => {
                let time = time.and_then(Term::duration).unwrap_or(APPROVED);
                let uses = uses.unwrap_or(1);
                (
                    after(now, time),
                    Some(uses.saturating_sub(u32::from(waits))),
                )
            }
        };
        let approved = RecentApproval {
            resource: open.question.resource.clone(),
            identity: open.identity,
            until,
            left,
            term,
        };
        self.approved
            .retain(|known| known.until > now && known.left != Some(0));
        if self.approved.len() >= MOST_REMEMBERED {
            self.approved.remove(0);
        }
        self.approved.push(approved);
        let outcome = RequestOutcome::Granted(GrantedLease::ForScope {
            term,
            uses: request.uses,
        });
        self.opened(request.number, outcome, now)
    }

    /// What came of an approved request.
    pub(crate) fn opened(
        &mut self,
        number: u32,
        outcome: RequestOutcome,
        now: Instant,
    ) -> Vec<Effect> {
        let Some(index) = self.position(number) else {
            return Vec::new();
        };
        let open = self.open.remove(index);
        let (end, reason) = match &outcome {
            RequestOutcome::Granted(_) | RequestOutcome::InBase { .. } => {
                (PermissionRequestEnd::Approved, String::new())
            }
            RequestOutcome::Pending { reason, .. } | RequestOutcome::Denied { reason } => {
                (PermissionRequestEnd::NotOpened, reason.to_string())
            }
        };
        let mut effects = vec![open.ended(end, reason, now)];
        effects.extend(open.approved.map(|person| Effect::ReportToPerson {
            person,
            number,
            outcome: outcome.clone(),
        }));
        effects.extend(open.reports(&outcome));
        effects
    }

    /// A person says no.
    pub(crate) fn deny(
        &mut self,
        by: Answerer,
        number: u32,
        reason: &str,
        now: Instant,
    ) -> Vec<Effect> {
        let index = match self.find(by, number) {
            Ok(index) => index,
            Err(effects) => return effects,
        };
        let reason: String = reason.chars().take(REASON).collect();
        let mut effects = Vec::new();
        for number in self.answered_with(index) {
            let Some((index, open)) = self
                .position(number)
                .and_then(|index| Some((index, self.open.get(index)?)))
            else {
                continue;
            };
            let resource = open.question.resource.clone();
            self.remember(resource, reason.clone(), (now, self.memory));
            effects.extend(self.end(index, PermissionRequestEnd::Denied, &reason, now));
        }
        if let Answerer::Client(client) = by {
            let reply = Reply::Denied { number };
            effects.push(Effect::Reply { client, reply });
        }
        effects
    }
}
