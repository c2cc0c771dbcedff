//! Who may ask for a lease of the cage's own, and how each is told what came of it: the one way
//! in, whoever asks.

use super::table::{NewLease, Opening};
use super::{LeaseSubject, REASON};
use crate::RunError;
use crate::intents::IntentEvent;
use crate::permission_requests::NewRequest;
use crate::scope::ScopeEvent;
use crate::supervise::{Supervision, failed};
use crate::taint;
use ironcage_control::{GrantRequest, LeaseTarget, Reply};
use ironcage_lease::life::EndingRules;
use ironcage_lease::{Decision, History, LeaseTerms, RequestedLease, decide};
use ironcage_model::{
    EventKind, GrantedLease, Holders, Lease, LeaseOrigin, LeaseOutcome, LeaseReason, Reason,
    Resource, Scope, SupervisorReason, Taint,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Who asked for a lease, and is told what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A client at the control socket: the user of the cage.
    Client(u64),
    /// A question that a person has approved, by its number; who had asked is told through it.
    Question(u32),
    /// Somebody in the cage, by the request reader's number for their request.
    Inside(u64),
    /// A call in a model's answer, by its number.
    Call(u32),
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

pub(crate) type RequestOutcome = LeaseOutcome<GrantedLease>;

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
    /// Somebody asks for a lease. Whatever stands against it is told, and is on record.
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
        let before = self.requests.count(now);
        let wished = origin == LeaseOrigin::Operator || matches!(by, Requester::Question(_));
        if !wished && !self.requests.spend(now) {
            return self.tell_requester(by, RequestOutcome::denied(LeaseReason::RequestRate));
        }
        let subject = match LeaseSubject::look(&grant.wanted, descriptor.as_ref()) {
            Ok(subject) => subject,
            Err(refused) => {
                return self.tell_requester(by, RequestOutcome::denied(refused.1));
            }
        };
        if origin != LeaseOrigin::Operator
            && let Some(open) = self.leases.open_for(&subject.resource)
        {
            // Who asks once more has what they ask for.
            let open = LeaseOutcome::Granted(GrantedLease::Open(open.clone()));
            return self.tell_requester(by, open);
        }
        let asked = RequestedLease {
            what: subject.wanted(),
            term: grant.term,
            uses: grant.uses,
            scope: Scope::Cage,
            origin,
            approved: matches!(by, Requester::Question(_)),
        };
        let taint = match self.plan.taint.is_some() {
            true => self.tainted(now)?,
            false => Taint::NONE,
        };
        let history = History {
            taint,
            open: self.leases.all().cloned().collect(),
            asked: before,
            distrusted: self.intents.is_distrusted(),
            unannounced,
        };
        let decision = decide(self.plan, &asked, &history);
        let LeaseSubject {
            resource: named,
            seen,
        } = subject;
        let given = match decision {
            Decision::Granted(given) => given,
            Decision::InBase { reason } => {
                return self.tell_requester(by, LeaseOutcome::InBase { reason });
            }
            Decision::Pending { reason, .. } => {
                let announced = self.intents.announced(&named, now);
                let new = NewRequest {
                    by,
                    origin,
                    resource: named,
                    identity: seen.map(|seen| seen.identity),
                    grant,
                    descriptor,
                    because: reason,
                    announced,
                };
                return self.raise_request(new, now);
            }
            Decision::Denied { reason } => return self.refuse_lease(by, named, origin, reason),
        };
        if self.control.stop_deadline().is_some() {
            return self.tell_requester(by, RequestOutcome::denied(SupervisorReason::Stopping));
        }
        if let Resource::Path { path, .. } = &given.resource
            && (self.scopes.is_one_being_made() || self.children.is_one_being_made())
            && self.plan.is_shared(Path::new(path))
        {
            // It would be cloned along, and its end proved without the clone.
            return self.refuse_lease(by, named, origin, LeaseReason::StartInProgress.into());
        }
        let brings = taint::brought(self.plan, &given.resource);
        let brings = brings.map_err(failed("read what is known of a place"))?;
        // Where a person said yes, what leads out is closed meanwhile.
        if !wished && let Some(reason) = self.against_meeting(brings, now)? {
            return self.refuse_lease(by, named, origin, reason.into());
        }
        let LeaseTerms {
            resource,
            term,
            uses,
            approver,
            ..
        } = given;
        let opening = Opening {
            identity: seen.map(|seen| seen.identity),
            descriptor,
        };
        // Whatever stands against it in the host is found before it is on record.
        let mechanism = match self.mechanism_for(&resource, &opening) {
            Ok(found) => found,
            Err(reason) => return self.refuse_lease(by, resource, origin, reason),
        };
        // Before it is open: who reads what comes of it finds the mark.
        self.take_on(brings, &format!("it was leased {resource}"), now)?;
        self.mark_leased(&resource, now)?;
        let lease = Lease {
            number: self.leases.reserve(1),
            resource,
            scope: Scope::Cage,
            term,
            uses,
            reason: grant.reason.chars().take(REASON).collect(),
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
            let handle = match &grant.wanted {
                LeaseTarget::Path { .. } => descriptors.next(),
                LeaseTarget::Other(_) => None,
            };
            let subject = LeaseSubject::look(&grant.wanted, handle);
            subject.is_ok_and(|subject| self.leases.open_for(&subject.resource).is_some())
        })
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
            Requester::Question(number) => {
                let now = Instant::now();
                let effects = self.permission_requests.opened(number, outcome, now);
                self.apply(effects, now)
            }
            Requester::Inside(ticket) => {
                self.reply_inside(ticket, outcome);
                Ok(())
            }
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
