//! Requests for leases of the cage, and the replies to each kind of requester: the one way
//! in, whoever asks.

use super::decision::{RequestFacts, RequestGrant, RequestTarget, decide_request};
use super::table::{NewLease, Opening};
use super::{LeaseSubject, REASON};
use crate::RunError;
use crate::intents::IntentEvent;
use crate::permission_requests::NewRequest;
use crate::scope::ScopeEvent;
use crate::supervise::{Supervision, failed};
use crate::taint;
use ironcage_control::{GrantRequest, Reply};
use ironcage_lease::LeaseTerms;
use ironcage_lease::life::EndingRules;
use ironcage_model::{
    EventKind, GrantedLease, Holders, Lease, LeaseOrigin, LeaseOutcome, LeaseReason, Reason,
    RequestOutcome, Resource, Scope, Taint,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Who asked for a lease, and is told what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A client at the control socket: the user of the cage.
    Client(u64),
    /// A permission request that a person approved, by its number. Its requesters are told through
    /// it.
    Approved(u32),
    /// Somebody in the cage, by the request reader's number for their request.
    Inside(u64),
    /// A call in a model's answer, by its number.
    Call(u32),
    /// A use of a key, by the key filter's number for it.
    KeyUse(u64),
    /// A scope, whose supervisor opens by itself what a person says yes to.
    Scope { number: u32, ticket: u32 },
}

/// A request for a lease of the cage's own.
#[derive(Debug)]
pub(crate) struct LeaseRequest {
    pub(crate) by: Requester,
    pub(crate) origin: LeaseOrigin,
    pub(crate) grant: GrantRequest,
    /// Of the path, or the listening socket of the port.
    pub(crate) descriptor: Option<OwnedFd>,
    /// Whether the model's words named other places, and that counts.
    pub(crate) unannounced: bool,
}

/// A lease of the cage that the ceiling grants, before it is open.
struct DecidedLease {
    by: Requester,
    origin: LeaseOrigin,
    /// The resource as the request named it: the decision may grant less.
    named: Resource,
    terms: LeaseTerms,
    reason: String,
    opening: Opening,
}

/// Whether what is open gives what is asked for.
pub(super) fn covers(open: &Resource, wanted: &Resource) -> bool {
    match (open, wanted) {
        (
            Resource::Path { path, right },
            Resource::Path {
                path: inner,
                right: less,
            },
        ) => Path::new(inner).starts_with(path) && less <= right,
        (open, wanted) => open == wanted,
    }
}

/// Longest name of something refused that is put on record, in characters.
const LONGEST_NAME: usize = 300;

/// The same with a name that is not longer than a line of the record needs.
pub(crate) fn shortened(resource: Resource) -> Resource {
    match resource {
        Resource::Path { path, right } => {
            let path = match path.char_indices().nth(LONGEST_NAME) {
                Some((end, _)) => format!("{}...", path.get(..end).unwrap_or_default()),
                None => path,
            };
            Resource::Path { path, right }
        }
        other => other,
    }
}

impl Supervision<'_> {
    /// Handles a request for a lease: collects the facts, has it decided, and carries that out.
    pub(crate) fn request_lease(
        &mut self,
        request: LeaseRequest,
        now: Instant,
    ) -> Result<(), RunError> {
        let LeaseRequest {
            by,
            origin,
            grant,
            descriptor,
            unannounced,
        } = request;
        let asked = self.requests.count(now);
        if !by.is_operators(origin) && !self.requests.spend(now) {
            return self.tell_requester(by, RequestOutcome::denied(LeaseReason::RequestRate));
        }
        let subject = match LeaseSubject::look(&grant.wanted, descriptor.as_ref()) {
            Ok(subject) => subject,
            Err(refused) => {
                return self.tell_requester(by, RequestOutcome::denied(refused.1));
            }
        };
        let taint = match self.plan.taint.is_some() {
            true => self.tainted(now)?,
            false => Taint::NONE,
        };
        let facts = RequestFacts {
            plan: self.plan,
            open: self.leases.all().cloned().collect(),
            covering: self.leases.open_for(&subject.resource).cloned(),
            asked,
            distrusted: self.intents.is_distrusted(),
            taint,
            stopping: self.control.stop_deadline().is_some(),
            clone_in_progress: self.clones_leases()
                && (self.scopes.is_one_being_made() || self.children.is_one_being_made()),
        };
        let target = RequestTarget {
            by,
            origin,
            grant: &grant,
            subject: &subject,
            unannounced,
        };
        let decision = decide_request(&target, facts);
        let LeaseSubject { resource, seen } = subject;
        if seen.as_ref().is_some_and(|seen| seen.name.is_some()) {
            // Another request could name one beside it while it is open.
            let error = "only a command in a scope is leased one name of a directory".into();
            let reason = LeaseReason::PathNotInspected { error }.into();
            return self.refuse_lease(by, resource, origin, reason);
        }
        let opening = Opening {
            identity: seen.map(|seen| seen.identity),
            descriptor,
        };
        match decision {
            LeaseOutcome::Granted(RequestGrant::AlreadyOpen(open)) => {
                self.tell_requester(by, LeaseOutcome::Granted(GrantedLease::Open(open)))
            }
            LeaseOutcome::Granted(RequestGrant::New(terms)) => {
                let decided = DecidedLease {
                    by,
                    origin,
                    named: resource,
                    terms,
                    reason: grant.reason,
                    opening,
                };
                self.open_decided(decided, now)
            }
            LeaseOutcome::InBase { reason } => {
                self.tell_requester(by, LeaseOutcome::InBase { reason })
            }
            LeaseOutcome::Pending { reason, .. } => {
                let new = NewRequest {
                    by,
                    origin,
                    announced: self.intents.announced(&resource, now),
                    resource,
                    identity: opening.identity,
                    grant,
                    descriptor: opening.descriptor,
                    because: reason,
                };
                self.raise_request(new, now)
            }
            LeaseOutcome::Denied { reason } => self.refuse_lease(by, resource, origin, reason),
        }
    }

    /// Opens a lease that the ceiling grants, unless the taint rules or the host stand against it.
    fn open_decided(&mut self, decided: DecidedLease, now: Instant) -> Result<(), RunError> {
        let DecidedLease {
            by,
            origin,
            named,
            terms,
            reason,
            opening,
        } = decided;
        let brings = taint::brought(self.plan, &terms.resource);
        let brings = brings.map_err(failed("read what is known of a place"))?;
        // Where a person approved it, the ways out of the cage are closed instead.
        if !by.is_operators(origin)
            && let Some(reason) = self.against_meeting(brings, now)?
        {
            return self.refuse_lease(by, named, origin, reason.into());
        }
        let LeaseTerms {
            resource,
            term,
            uses,
            approver,
            ..
        } = terms;
        // Before the audit log has it: what the host refuses was never a lease.
        let mechanism = match self.mechanism_for(&resource, &opening) {
            Ok(found) => found,
            Err(reason) => return self.refuse_lease(by, resource, origin, reason),
        };
        // Before it is open: whoever reads through the lease finds the mark.
        self.take_on(brings, &format!("it was leased {resource}"), now)?;
        self.mark_leased(&resource, now)?;
        let lease = Lease {
            number: self.leases.reserve(1),
            resource,
            scope: Scope::Cage,
            term,
            uses,
            reason: reason.chars().take(REASON).collect(),
            origin,
            approver,
        };
        let leases = self.plan.leases.as_ref();
        let (grace, holders) = leases.map_or((Duration::ZERO, Holders::Kill), |leases| {
            (leases.grace, leases.holders)
        });
        let new = NewLease {
            lease,
            requester: by,
            mechanism,
            opening,
            rules: EndingRules::of_cage(grace, holders),
        };
        let effects = self.leases.add(new, now);
        self.apply(effects, now)
    }

    /// Whether open leases of the cage's give all that is asked for.
    pub(crate) fn has_leases_for(&self, wanted: &[GrantRequest], descriptors: &[OwnedFd]) -> bool {
        let mut descriptors = descriptors.iter();
        wanted.iter().all(|grant| {
            let handle = match grant.wanted.has_path() {
                true => descriptors.next(),
                false => None,
            };
            let subject = LeaseSubject::look(&grant.wanted, handle);
            subject.is_ok_and(|subject| self.leases.open_for(&subject.resource).is_some())
        })
    }

    /// What is wanted, without what is only wanted where an open lease of the cage's gives it.
    pub(crate) fn without_unheld(
        &self,
        wanted: Vec<GrantRequest>,
        descriptors: Vec<OwnedFd>,
        only_if_held: &[usize],
    ) -> (Vec<GrantRequest>, Vec<OwnedFd>) {
        let mut handles = descriptors.into_iter();
        let (mut left, mut beside) = (Vec::new(), Vec::new());
        for (index, grant) in wanted.into_iter().enumerate() {
            let handle = match grant.wanted.has_path() {
                true => handles.next(),
                false => None,
            };
            let is_held = || {
                let subject = LeaseSubject::look(&grant.wanted, handle.as_ref());
                subject.is_ok_and(|subject| self.leases.open_for(&subject.resource).is_some())
            };
            if !only_if_held.contains(&index) || is_held() {
                left.push(grant);
                beside.extend(handle);
            }
        }
        (left, beside)
    }

    /// Tells that a lease was not given, and puts it on record.
    pub(crate) fn refuse_lease(
        &mut self,
        by: Requester,
        resource: Resource,
        origin: LeaseOrigin,
        reason: Reason,
    ) -> Result<(), RunError> {
        self.write_refusal(resource, origin, reason.clone())?;
        self.tell_requester(by, LeaseOutcome::Denied { reason })
    }

    /// Puts on record what was refused before it could be asked for.
    pub(crate) fn record_refusal(
        &mut self,
        resource: Resource,
        origin: LeaseOrigin,
        reason: Reason,
        now: Instant,
    ) -> Result<(), RunError> {
        self.requests.count(now);
        match self.requests.spend(now) {
            true => self.write_refusal(resource, origin, reason),
            false => Ok(()),
        }
    }

    fn write_refusal(
        &mut self,
        resource: Resource,
        origin: LeaseOrigin,
        reason: Reason,
    ) -> Result<(), RunError> {
        let Some(unrecorded) = self.requests.take_unrecorded() else {
            return Ok(());
        };
        self.audit.write(EventKind::LeaseRefused {
            resource: shortened(resource),
            origin,
            reason,
            unrecorded,
        })
    }

    /// Tells a client at the control socket.
    pub(crate) fn tell_client(&mut self, key: u64, outcome: RequestOutcome) {
        self.control.reply(key, &Reply::Lease(outcome), &[]);
    }

    /// Tells whoever asked what came of it: the one place for all of them.
    pub(crate) fn tell_requester(
        &mut self,
        by: Requester,
        outcome: RequestOutcome,
    ) -> Result<(), RunError> {
        match by {
            Requester::Client(key) => {
                self.tell_client(key, outcome);
                Ok(())
            }
            Requester::Approved(number) => {
                let now = Instant::now();
                let effects = self.permission_requests.opened(number, outcome, now);
                self.apply(effects, now)
            }
            Requester::Inside(ticket) => {
                self.reply_inside(ticket, outcome);
                Ok(())
            }
            Requester::KeyUse(ticket) => self.key_answered(ticket, outcome),
            Requester::Call(call) => {
                self.intent_event(IntentEvent::Answered { call, outcome }, Instant::now())
            }
            Requester::Scope { number, ticket } => {
                let event = ScopeEvent::Answered {
                    number,
                    ticket,
                    outcome,
                };
                self.scope_event(event, Instant::now())
            }
        }
    }
}
