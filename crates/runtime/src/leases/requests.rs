//! Who may ask for a lease of the cage's own, and how each is told what came of it: the one way
//! in, whoever asks.

use super::means::{Means, Ready, Told};
use super::{Held, PATIENCE, REASON, Stage, facts};
use crate::RunError;
use crate::questions::Raised;
use crate::supervise::{Supervision, failed};
use crate::taint;
use ironcage_cedar::decide;
use ironcage_control::{GrantRequest, Reply, Wanted};
use ironcage_lease::{Asked, AskedPath, Decision, Given, History, MOST_ASKED};
use ironcage_model::{EventKind, Lease, LeaseOrigin, Resource, Scope, Taint, Term};
use ironcage_sys::faults::lease_step as step;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Who asked for a lease, and is told what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A client at the control socket: the user of the cage.
    Client(u64),
    /// A question that a person has approved, by its number; who had asked is told through it.
    Question(u32),
    /// Somebody in the cage, by the clerk's number for their request.
    Asker(u64),
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

/// What came of it.
#[derive(Debug, Clone)]
pub(crate) enum LeaseOutcome {
    /// It is open.
    Open(Lease),
    /// The cage has it anyway.
    InBase { reason: String },
    /// A person is asked; what they say is told later.
    Asked { question: u32, because: String },
    /// A person has said yes, for a scope: what it is, opens the scope itself.
    Approved { term: Term, uses: Option<u32> },
    /// It was not given.
    Refused { reason: String },
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
fn shortened(resource: Resource) -> Resource {
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
        let refused = |reason: String| LeaseOutcome::Refused { reason };
        let before = self.leases.pace.count(now);
        let wished = origin == LeaseOrigin::Operator || matches!(by, Requester::Question(_));
        if !wished && !self.leases.pace.spend(now) {
            let reason = "too much was asked for within a short time; ask again later";
            return self.tell_requester(by, refused(reason.into()));
        }
        let seen = match (&grant.wanted, &descriptor) {
            (Wanted::Path { .. }, None) => {
                let reason = "nothing was named: the path comes as a descriptor";
                return self.tell_requester(by, refused(reason.into()));
            }
            (Wanted::Path { right }, Some(handle)) => match facts::look(handle, *right) {
                Ok(seen) => Some(seen),
                Err(error) => {
                    let reason = format!("it cannot be looked at: {error}");
                    return self.tell_requester(by, refused(reason));
                }
            },
            (Wanted::Other(_), _) => None,
        };
        let (what, named) = match (&grant.wanted, &seen) {
            (Wanted::Path { right }, Some(seen)) => (
                ironcage_lease::Wanted::Path(AskedPath {
                    path: &seen.path,
                    right: *right,
                    facts: seen.facts.clone(),
                }),
                Resource::Path {
                    path: seen.path.to_string_lossy().into_owned(),
                    right: *right,
                },
            ),
            (Wanted::Other(resource), _) => {
                (ironcage_lease::Wanted::Other(resource), resource.clone())
            }
            (Wanted::Path { .. }, None) => return Ok(()),
        };
        if origin != LeaseOrigin::Operator
            && let Some(open) = self.open_lease_for(&named)
        {
            // Who asks once more has what they ask for.
            let open = LeaseOutcome::Open(open.clone());
            return self.tell_requester(by, open);
        }
        let asked = Asked {
            what,
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
            open: self.leases.held.iter().map(|h| h.lease.clone()).collect(),
            asked: before,
            distrusted: self.intents.is_distrusted(),
            unannounced,
        };
        let given = match decide(self.plan, &asked, &history) {
            Decision::Give { given, .. } => given,
            Decision::Base { reason } => {
                return self.tell_requester(by, LeaseOutcome::InBase { reason });
            }
            Decision::Ask { reason } => {
                let raised = Raised {
                    by,
                    origin,
                    resource: named,
                    identity: seen.map(|seen| seen.identity),
                    grant,
                    descriptor,
                    because: reason,
                };
                return self.raise_question(raised, now);
            }
            Decision::Refuse { reason } => return self.refuse_lease(by, named, origin, reason),
        };
        if self.control.stopping.is_some() {
            let reason = "the cage is being stopped".to_owned();
            return self.tell_requester(by, refused(reason));
        }
        if let Resource::Path { path, .. } = &given.resource
            && (self.scopes.is_one_being_made() || self.children.is_one_being_made())
            && self.plan.is_shared(Path::new(path))
        {
            // It would be cloned along, and its end proved without the clone.
            let reason =
                "a scope or a child is being made at this moment, which would share it; ask again";
            return self.refuse_lease(by, named, origin, reason.to_owned());
        }
        let brings = taint::brought(self.plan, &given.resource);
        let brings = brings.map_err(failed("read what is known of a place"))?;
        // Where a person said yes, what leads out is closed meanwhile.
        if !wished && let Some(reason) = self.against_meeting(brings, now)? {
            return self.refuse_lease(by, named, origin, reason);
        }
        let Given {
            resource,
            term,
            uses,
            approver,
        } = given;
        self.leases.last = self.leases.last.wrapping_add(1).max(1);
        let number = self.leases.last;
        let asked = Ready {
            number,
            identity: seen.map(|seen| seen.identity),
            descriptor,
        };
        // Whatever stands against it in the host is found before it is on record.
        let means = match self.means_of(&resource, &asked) {
            Ok(found) => found,
            Err(reason) => return self.refuse_lease(by, resource, origin, reason),
        };
        // Before it is open: who reads what comes of it finds the mark.
        self.take_on(brings, &format!("it was leased {resource}"), now)?;
        self.mark_leased(&resource)?;
        let lease = Lease {
            number,
            resource,
            scope: Scope::Cage,
            term,
            uses,
            reason: grant.reason.chars().take(REASON).collect(),
            origin,
            approver,
        };
        // On record before anything is open: whoever kills us now leaves no lease that the
        // record does not know.
        self.recorder.write(EventKind::Lease(lease.clone()))?;
        step();
        self.leases.held.push(Held {
            lease,
            born: now,
            until: None,
            stage: Stage::Opening {
                asked: by,
                by: now + PATIENCE,
            },
            // The door counts what goes through it by itself.
            left: match &means {
                Means::Door {
                    what: Told::Port(_) | Told::Socket(_),
                    ..
                } => uses,
                _ => None,
            },
            means,
            waiting: Vec::new(),
            cause: "it could not be opened",
            holders: Vec::new(),
        });
        self.open_lease(&asked, now)
    }

    /// Whether open leases of the cage's give all that is asked for.
    pub(crate) fn has_leases_for(&self, wanted: &[GrantRequest], descriptors: &[OwnedFd]) -> bool {
        let mut descriptors = descriptors.iter();
        wanted.iter().all(|grant| {
            let resource = match &grant.wanted {
                Wanted::Other(resource) => resource.clone(),
                Wanted::Path { right } => {
                    let handle = descriptors.next();
                    let seen = handle.and_then(|handle| facts::look(handle, *right).ok());
                    let Some(seen) = seen else { return false };
                    let path = seen.path.to_string_lossy().into_owned();
                    Resource::Path {
                        path,
                        right: *right,
                    }
                }
            };
            self.open_lease_for(&resource).is_some()
        })
    }

    /// The open lease that gives what is asked for.
    fn open_lease_for(&self, wanted: &Resource) -> Option<&Lease> {
        let mut held = self.leases.held.iter();
        let found =
            held.find(|held| held.stage == Stage::Open && covers(&held.lease.resource, wanted));
        found.map(|held| &held.lease)
    }

    /// Tells that a lease was not given, and puts it on record.
    pub(crate) fn refuse_lease(
        &mut self,
        by: Requester,
        resource: Resource,
        origin: LeaseOrigin,
        reason: String,
    ) -> Result<(), RunError> {
        self.write_refusal(resource, origin, reason.clone())?;
        self.tell_requester(by, LeaseOutcome::Refused { reason })
    }

    /// Puts on record what was refused before it could be asked for.
    pub(crate) fn record_refusal(
        &mut self,
        resource: Resource,
        origin: LeaseOrigin,
        reason: String,
        now: Instant,
    ) -> Result<(), RunError> {
        self.leases.pace.count(now);
        match self.leases.pace.spend(now) {
            true => self.write_refusal(resource, origin, reason),
            false => Ok(()),
        }
    }

    fn write_refusal(
        &mut self,
        resource: Resource,
        origin: LeaseOrigin,
        reason: String,
    ) -> Result<(), RunError> {
        // However many ask: a record that nobody can read through tells nothing.
        let pace = &mut self.leases.pace;
        if pace.asked > MOST_ASKED {
            pace.unrecorded = pace.unrecorded.saturating_add(1);
            return Ok(());
        }
        self.recorder.write(EventKind::LeaseRefused {
            resource: shortened(resource),
            origin,
            reason,
            unrecorded: std::mem::take(&mut pace.unrecorded),
        })
    }

    /// Tells a client at the control socket.
    pub(crate) fn tell_client(&mut self, key: u64, outcome: LeaseOutcome) {
        let reply = match outcome {
            LeaseOutcome::Open(lease) => Reply::Granted(lease),
            LeaseOutcome::InBase { reason } => Reply::InBase { reason },
            LeaseOutcome::Approved { .. } => Reply::Approved,
            LeaseOutcome::Asked { question, because } => Reply::Refused {
                reason: format!("{because}: this is question {question}"),
            },
            LeaseOutcome::Refused { reason } => Reply::Refused { reason },
        };
        self.control.reply(key, &reply, &[]);
    }

    /// Tells whoever asked what came of it: the one place for all of them.
    pub(crate) fn tell_requester(
        &mut self,
        by: Requester,
        outcome: LeaseOutcome,
    ) -> Result<(), RunError> {
        match by {
            Requester::Client(key) => {
                self.tell_client(key, outcome);
                Ok(())
            }
            Requester::Question(number) => self.question_opened(number, outcome),
            Requester::Asker(ticket) => {
                self.tell_asker(ticket, outcome);
                Ok(())
            }
            Requester::Call(number) => self.call_answered(number, outcome, Instant::now()),
            Requester::Scope { number, ticket } => {
                self.tell_scope(number, ticket, outcome);
                Ok(())
            }
        }
    }
}
