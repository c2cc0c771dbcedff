//! Decides a request for a lease of the cage's own, from the ceiling and from what the other parts
//! of the supervisor know at that moment. Pure: the loop collects the facts and opens the lease.

use super::LeaseSubject;
use super::requests::Requester;
use ironcage_control::GrantRequest;
use ironcage_lease::{History, LeaseTerms, RequestedLease, decide};
use ironcage_model::{
    Lease, LeaseOrigin, LeaseOutcome, LeaseReason, Resource, Scope, SupervisorReason, Taint,
};
use ironcage_plan::Plan;
use std::path::Path;

/// The state of the cage that a request is judged by.
pub(super) struct RequestFacts<'a> {
    pub(super) plan: &'a Plan,
    pub(super) open: Vec<Lease>,
    /// The open lease that already gives all of what is requested.
    pub(super) covering: Option<Lease>,
    /// Requests that came before it within the second.
    pub(super) asked: u32,
    /// The cage did what its model did not announce: nothing is given at once.
    pub(super) distrusted: bool,
    pub(super) taint: Taint,
    pub(super) stopping: bool,
    /// A scope or a child is being built from the cage's own mounts, where leases are open.
    pub(super) clone_in_progress: bool,
}

/// A request whose target was looked at.
pub(super) struct RequestTarget<'a> {
    pub(super) by: Requester,
    pub(super) origin: LeaseOrigin,
    pub(super) grant: &'a GrantRequest,
    pub(super) subject: &'a LeaseSubject,
    pub(super) unannounced: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum RequestGrant {
    AlreadyOpen(Lease),
    New(LeaseTerms),
}

/// The permission request has no number yet.
pub(super) type RequestDecision = LeaseOutcome<RequestGrant, ()>;

impl Requester {
    /// A person approved this request.
    pub(super) fn is_approved(self) -> bool {
        matches!(self, Requester::Approved(_))
    }

    /// The operator wants this lease, by asking for it or by approving it.
    pub(super) fn is_operators(self, origin: LeaseOrigin) -> bool {
        origin == LeaseOrigin::Operator || self.is_approved()
    }
}

/// Why a lease of the whole cage is asked for where a judge is named: it would have to be waited for,
/// and this supervisor waits for nothing.
fn unjudged(plan: &Plan, origin: LeaseOrigin) -> Option<String> {
    let leases = plan
        .leases
        .as_ref()
        .filter(|leases| !leases.judge.is_empty());
    let judged = leases.is_some() && origin != LeaseOrigin::Operator;
    judged.then(|| "is asked about commands in scopes only".to_owned())
}

pub(super) fn decide_request(
    target: &RequestTarget<'_>,
    facts: RequestFacts<'_>,
) -> RequestDecision {
    if target.origin != LeaseOrigin::Operator
        && let Some(open) = facts.covering
    {
        return LeaseOutcome::Granted(RequestGrant::AlreadyOpen(open));
    }
    let requested = RequestedLease {
        what: target.subject.wanted(),
        term: target.grant.term,
        uses: target.grant.uses,
        scope: Scope::Cage,
        origin: target.origin,
        approved: target.by.is_approved(),
    };
    let history = History {
        taint: facts.taint,
        open: facts.open,
        asked: facts.asked,
        distrusted: facts.distrusted,
        unannounced: target.unannounced,
        judge_asks: unjudged(facts.plan, target.origin),
    };
    let terms = match decide(facts.plan, &requested, &history) {
        LeaseOutcome::Granted(terms) => terms,
        other => return other.map(RequestGrant::New),
    };
    if facts.stopping {
        return LeaseOutcome::denied(SupervisorReason::Stopping);
    }
    if let Resource::Path { path, .. } = &terms.resource
        && facts.clone_in_progress
        && facts.plan.is_shared(Path::new(path))
    {
        // The scope or child would clone the mount, and the end of the lease would be proved
        // without the clone.
        return LeaseOutcome::denied(LeaseReason::StartInProgress);
    }
    LeaseOutcome::Granted(RequestGrant::New(terms))
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
