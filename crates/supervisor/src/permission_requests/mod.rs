//! Permission requests: what a person has to approve before it is leased.
//!
//! The resource is held from the request on: a path by its descriptor. The approval is for
//! that, and nothing that took its place or its name meanwhile. The same asked again joins the
//! request that is pending; what was denied is not asked again for a while. There is a bound on how
//! many are pending, and each expires.
//!
//! A part of the supervisor: it owns the pending requests and returns what follows as effects.

mod notifier;

use crate::RunError;
use crate::effects::Effect;
use crate::leases::{LeaseRequest, REASON, Requester, look};
use crate::supervise::Supervision;
use ironcage_control::{ApproveRequest, GrantRequest, PermissionRequestDescription, Reply};
use ironcage_layers::live::Identity;
use ironcage_model::{
    EventKind, GrantedLease, LeaseOrigin, LeaseReason, PermissionRequest, PermissionRequestEnd,
    Reason, RequestOutcome, Resource, Scope, SupervisorReason, Term,
};
use ironcage_plan::PermissionRequestTerms;
use notifier::Notifier;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Questions that are open at once.
const MOST: usize = 16;
/// And of them by one kind of asker: nobody's are crowded out by another's.
const MOST_OF_ONE: usize = 8;
/// Questions of one cage within an hour: nobody is worn down by being asked.
const MOST_AN_HOUR: usize = 60;
/// And of them by one kind of requester, so that junk of one leaves the others some.
const MOST_AN_HOUR_OF_ONE: usize = 40;
/// Who waits for the answer to one question.
const MOST_WAITING: usize = 16;
/// Denials that are remembered.
const MOST_REMEMBERED: usize = 64;
/// How long a yes holds for a scope that does not wait for it any more.
const APPROVED: Duration = Duration::from_secs(600);
/// As good as for ever.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The permission requests of one cage.
#[derive(Debug, Default)]
pub(crate) struct PermissionRequests {
    /// When each expires; `None` is never.
    expire: Option<Duration>,
    /// How long a denial is remembered.
    memory: Duration,
    open: Vec<PendingRequest>,
    denied: Vec<RecentDenial>,
    last: u32,
    /// When those of the last hour were asked, and by whom, where it was in this cage.
    recent: Vec<(Instant, Option<LeaseOrigin>)>,
    notifiers: Vec<Notifier>,
    /// What scopes may have because a person said so.
    approved: Vec<RecentApproval>,
}

/// Something that scopes may have, until when, and how many of them.
#[derive(Debug)]
struct RecentApproval {
    resource: Resource,
    identity: Option<Identity>,
    until: Instant,
    left: Option<u32>,
    term: Term,
}

/// A request that waits for a person.
#[derive(Debug)]
struct PendingRequest {
    question: PermissionRequest,
    grant: GrantRequest,
    /// What a path was when it was asked about, and is to be when it is opened.
    identity: Option<Identity>,
    /// What it is about, held since then.
    descriptor: Option<OwnedFd>,
    waiting: Vec<Requester>,
    asked: u32,
    born: Instant,
    until: Instant,
    /// Why somebody was not told of it who should have been.
    untold: Option<String>,
    /// Who approved it, while the lease is being opened.
    approved: Option<Answerer>,
}

/// Who answers a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answerer {
    /// A client at the control socket.
    Client(u64),
    /// The person at the terminal of the run.
    Terminal,
}

/// Something that was denied.
#[derive(Debug)]
struct RecentDenial {
    resource: Resource,
    reason: String,
    until: Instant,
}

/// What a person is to be asked.
#[derive(Debug)]
pub(crate) struct NewRequest {
    pub(crate) by: Requester,
    pub(crate) origin: LeaseOrigin,
    pub(crate) resource: Resource,
    pub(crate) identity: Option<Identity>,
    pub(crate) grant: GrantRequest,
    pub(crate) descriptor: Option<OwnedFd>,
    /// Why it is not given without asking.
    pub(crate) because: Reason,
    /// Whether the model announced it.
    pub(crate) announced: Option<String>,
}

/// So much later, and not beyond what can be told.
fn after(now: Instant, time: Duration) -> Instant {
    now.checked_add(time.min(FAR)).unwrap_or(now)
}

impl PermissionRequests {
    pub(crate) fn new(terms: Option<&PermissionRequestTerms>) -> Self {
        PermissionRequests {
            expire: terms.and_then(|terms| terms.expire),
            memory: terms.map_or(Duration::ZERO, |terms| terms.remember),
            ..PermissionRequests::default()
        }
    }

    /// When the next one expires.
    pub(crate) fn next(&self) -> Option<Instant> {
        let open = self.open.iter().filter(|open| open.approved.is_none());
        open.map(|open| open.until).min()
    }

    /// Those that wait for an answer.
    pub(crate) fn describe(&self, now: Instant) -> Vec<PermissionRequestDescription> {
        let of = |open: &PendingRequest| PermissionRequestDescription {
            question: open.question.clone(),
            asked: open.asked,
            milliseconds_left: open.until.saturating_duration_since(now).as_millis() as u64,
            untold: open.untold.clone(),
        };
        let open = self.open.iter().filter(|open| open.approved.is_none());
        open.map(of).collect()
    }

    pub(crate) fn any_waits(&self) -> bool {
        self.open.iter().any(|open| open.approved.is_none())
    }

    fn position(&self, number: u32) -> Option<usize> {
        let mut open = self.open.iter();
        open.position(|open| open.question.number == number)
    }

    /// Those who are under way to tell of a question.
    pub(crate) fn notifiers(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.notifiers.iter().map(Notifier::interest)
    }

    /// How many have been asked so far.
    pub(crate) fn asked(&self) -> u32 {
        self.last
    }

    /// How many were asked within an hour, for this cage and its family.
    pub(crate) fn within_an_hour(&mut self, now: Instant) -> u32 {
        let hour = Duration::from_secs(3600);
        self.recent.retain(|(at, _)| now.duration_since(*at) < hour);
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    /// The bound that another question of this origin would exceed.
    fn too_many_within_an_hour(&mut self, origin: LeaseOrigin, now: Instant) -> Option<usize> {
        if self.within_an_hour(now) as usize >= MOST_AN_HOUR {
            return Some(MOST_AN_HOUR);
        }
        let of_one = self.recent.iter().filter(|(_, by)| *by == Some(origin));
        (of_one.count() >= MOST_AN_HOUR_OF_ONE).then_some(MOST_AN_HOUR_OF_ONE)
    }

    /// So many were asked for others of the family.
    pub(crate) fn count(&mut self, times: u32, now: Instant) {
        let room = MOST_AN_HOUR.saturating_sub(self.recent.len());
        let times = room.min(times as usize);
        self.recent.extend(std::iter::repeat_n((now, None), times));
    }

    fn remember(&mut self, resource: Resource, reason: String, (now, memory): (Instant, Duration)) {
        self.denied.retain(|denied| denied.until > now);
        if self.denied.len() >= MOST_REMEMBERED {
            self.denied.remove(0);
        }
        self.denied.push(RecentDenial {
            resource,
            reason,
            until: after(now, memory),
        });
    }

    /// Whether a person has said that a scope may have this.
    fn take_approval(
        &mut self,
        resource: &Resource,
        identity: Option<Identity>,
        now: Instant,
    ) -> Option<RequestOutcome> {
        let fits = |known: &&mut RecentApproval| {
            known.resource == *resource
                && known.identity == identity
                && known.until > now
                && known.left != Some(0)
        };
        let found = self.approved.iter_mut().find(fits)?;
        found.left = found.left.map(|left| left.saturating_sub(1));
        Some(RequestOutcome::Granted(GrantedLease::ForScope {
            term: found.term,
            uses: None,
        }))
    }

    /// A scope is gone, and waits for nothing any more.
    pub(crate) fn forget_scope(&mut self, number: u32) {
        let gone =
            |by: &Requester| matches!(by, Requester::Scope { number: of, .. } if *of == number);
        for open in &mut self.open {
            open.waiting.retain(|by| !gone(by));
        }
    }

    fn was_denied(&self, resource: &Resource, now: Instant) -> Option<&RecentDenial> {
        let mut denied = self.denied.iter();
        denied.find(|denied| denied.resource == *resource && denied.until > now)
    }

    /// Asks a person, or joins the request that is pending.
    pub(crate) fn raise(&mut self, new: NewRequest, now: Instant) -> Vec<Effect> {
        let NewRequest {
            by,
            origin,
            resource,
            identity,
            grant,
            descriptor,
            because,
            announced,
        } = new;
        let report = |outcome| Effect::Report {
            requester: by,
            outcome,
        };
        let deny = |resource: Resource, reason: LeaseReason| Effect::DenyLease {
            requester: by,
            resource,
            origin,
            reason: reason.into(),
        };
        if let Some(denied) = self.was_denied(&resource, now) {
            let said = match denied.reason.as_str() {
                "" => String::new(),
                said => format!(": {said}"),
            };
            return vec![deny(resource, LeaseReason::DeniedBefore { said })];
        }
        let for_scope = matches!(by, Requester::Scope { .. });
        if for_scope && let Some(yes) = self.take_approval(&resource, identity, now) {
            return vec![report(yes)];
        }
        let same = |open: &PendingRequest| {
            let scopes = matches!(open.question.scope, Scope::Exec { .. });
            open.question.resource == resource && scopes == for_scope
        };
        let mut effects = Vec::new();
        if let Some(index) = self.open.iter().position(same) {
            let unchanged = |open: &PendingRequest| open.identity == identity;
            if let Some(open) = self.open.get_mut(index).filter(|open| unchanged(open)) {
                open.asked = open.asked.saturating_add(1);
                if open.waiting.len() < MOST_WAITING && !open.waiting.contains(&by) {
                    open.waiting.push(by);
                }
                return vec![report(RequestOutcome::Pending {
                    question: open.question.number,
                    reason: because,
                })];
            }
            // Another file has taken the name: what was asked about is not there any more.
            let reason = "something else is there now";
            effects.extend(self.end(index, PermissionRequestEnd::Withdrawn, reason, now));
        }
        let open = &self.open;
        let by_one = open.iter().filter(|open| open.question.origin == origin);
        if open.len() >= MOST || by_one.count() >= MOST_OF_ONE {
            let reason = LeaseReason::TooManyPending {
                because: because.to_string(),
                limit: open.len() as u64,
            };
            effects.push(deny(resource, reason));
            return effects;
        }
        if let Some(most) = self.too_many_within_an_hour(origin, now) {
            let reason = LeaseReason::TooManyQuestions {
                because: because.to_string(),
                limit: most as u64,
            };
            effects.push(deny(resource, reason));
            return effects;
        }
        self.recent.push((now, Some(origin)));
        self.last = self.last.wrapping_add(1).max(1);
        let question = PermissionRequest {
            number: self.last,
            resource,
            scope: match by {
                Requester::Scope { number, .. } => Scope::Exec { number },
                _ => Scope::Cage,
            },
            term: grant.term,
            uses: grant.uses,
            reason: grant.reason.chars().take(REASON).collect(),
            origin,
            because: because.to_string(),
            code: because.code().map(str::to_owned),
            announced,
        };
        effects.extend([
            Effect::TellRelativesOfRequest,
            // On record before anybody can answer it.
            Effect::Audit(EventKind::Question(question.clone())),
            Effect::Notify(question.clone()),
            report(RequestOutcome::Pending {
                question: question.number,
                reason: because,
            }),
        ]);
        self.open.push(PendingRequest {
            question,
            grant,
            identity,
            descriptor,
            waiting: vec![by],
            asked: 1,
            born: now,
            until: after(now, self.expire.unwrap_or(FAR)),
            untold: None,
            approved: None,
        });
        effects
    }

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
                outcome,
            }]
        })
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
        if matches!(open.question.scope, Scope::Exec { .. }) {
            open.approved = Some(by);
            return self.approve_for_scope(index, request, now);
        }
        let of_path = matches!(open.question.resource, Resource::Path { .. });
        if request.uses.is_some() && of_path {
            // An answer that cannot be carried out does not count: the request stays.
            let kind = "path".into();
            let outcome = RequestOutcome::denied(LeaseReason::UsesNotCounted { kind });
            return vec![Effect::ReportToPerson {
                person: by,
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
    /// that needs the same has it; where a time was named, each within that time.
    fn approve_for_scope(
        &mut self,
        index: usize,
        request: &ApproveRequest,
        now: Instant,
    ) -> Vec<Effect> {
        let Some(open) = self.open.get(index) else {
            return Vec::new();
        };
        let term = request.term.unwrap_or(open.grant.term);
        let waits = open
            .waiting
            .iter()
            .any(|by| matches!(by, Requester::Scope { .. }));
        let (until, left) = match (request.term.and_then(Term::duration), request.uses) {
            (Some(time), None) => (after(now, time), None),
            (time, uses) => {
                let time = time.unwrap_or(APPROVED);
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
        if let Some(open) = self.open.get(index) {
            let resource = open.question.resource.clone();
            self.remember(resource, reason.clone(), (now, self.memory));
        }
        let mut effects = self.end(index, PermissionRequestEnd::Denied, &reason, now);
        if let Answerer::Client(client) = by {
            let reply = Reply::Denied { number };
            effects.push(Effect::Reply { client, reply });
        }
        effects
    }

    /// Ends those whose time is up.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Effect> {
        let late = |open: &PendingRequest| open.approved.is_none() && now >= open.until;
        let mut effects = Vec::new();
        while let Some(index) = self.open.iter().position(late) {
            effects.extend(self.end(index, PermissionRequestEnd::Expired, "", now));
        }
        effects
    }

    /// The cage is gone, and nobody can be answered any more.
    pub(crate) fn finish(&mut self, now: Instant) -> Vec<Effect> {
        self.notifiers.clear();
        let open = std::mem::take(&mut self.open).into_iter();
        open.map(|open| open.ended(PermissionRequestEnd::CageEnded, String::new(), now))
            .collect()
    }

    fn end(
        &mut self,
        index: usize,
        end: PermissionRequestEnd,
        reason: &str,
        now: Instant,
    ) -> Vec<Effect> {
        let open = self.open.remove(index);
        // The audit log first: who is told may act on it.
        let mut effects = vec![open.ended(end, reason.to_owned(), now)];
        let said = match reason {
            "" => end.name().to_owned(),
            // That it is a denial is what it is told as.
            said if end == PermissionRequestEnd::Denied => said.to_owned(),
            said => format!("{}: {said}", end.name()),
        };
        let reason = match end {
            PermissionRequestEnd::Denied => LeaseReason::DeniedByOperator { said },
            _ => LeaseReason::NotAnswered { how: said },
        };
        effects.extend(open.reports(&RequestOutcome::denied(reason)));
        effects
    }

    /// Nobody could be told of a request.
    fn untold(&mut self, number: u32, how: &str, why: &str) -> Effect {
        let (how, error) = (how.to_owned(), why.to_owned());
        let reason = Reason::from(SupervisorReason::RequestNotTold { how, error });
        let mut open = self.open.iter_mut();
        if let Some(open) = open.find(|open| open.question.number == number) {
            open.untold = Some(reason.to_string());
        }
        Effect::Audit(EventKind::QuestionUntold { number, reason })
    }
}

impl PendingRequest {
    fn ended(&self, end: PermissionRequestEnd, reason: String, now: Instant) -> Effect {
        Effect::Audit(EventKind::QuestionEnd {
            number: self.question.number,
            end,
            reason,
            asked: self.asked,
            milliseconds: now.saturating_duration_since(self.born).as_millis() as u64,
        })
    }

    fn reports(&self, outcome: &RequestOutcome) -> Vec<Effect> {
        let waiting = self.waiting.iter();
        let report = |requester: &Requester| Effect::Report {
            requester: *requester,
            outcome: outcome.clone(),
        };
        waiting.map(report).collect()
    }
}

impl Supervision<'_> {
    /// Asks a person.
    pub(crate) fn raise_request(&mut self, new: NewRequest, now: Instant) -> Result<(), RunError> {
        let effects = self.permission_requests.raise(new, now);
        self.apply(effects, now)
    }

    /// Every request that waits for a person.
    pub(crate) fn list_questions(&mut self, key: u64, now: Instant) {
        let list = self.permission_requests.describe(now);
        self.control.reply(key, &Reply::Questions(list), &[]);
    }

    /// A person says yes.
    pub(crate) fn approve(
        &mut self,
        by: Answerer,
        request: &ApproveRequest,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.permission_requests.approve(by, request, now);
        self.apply(effects, now)
    }

    /// Asks for the lease that a person approved.
    pub(crate) fn request_approved(&mut self, number: u32, now: Instant) -> Result<(), RunError> {
        let Some(request) = self.permission_requests.take_approved(number) else {
            return Ok(());
        };
        if self.permission_requests.has_moved(&request, number) {
            let outcome = RequestOutcome::denied(LeaseReason::PathReplaced);
            return self.tell_requester(request.by, outcome);
        }
        self.request_lease(request, now)
    }

    /// A person says no.
    pub(crate) fn deny(
        &mut self,
        by: Answerer,
        number: u32,
        reason: &str,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.permission_requests.deny(by, number, reason, now);
        self.apply(effects, now)
    }

    /// Tells the person who answered what came of it.
    pub(crate) fn tell_answerer(&mut self, by: Answerer, outcome: RequestOutcome) {
        match by {
            Answerer::Client(key) => self.tell_client(key, outcome),
            Answerer::Terminal => {
                if let RequestOutcome::Denied { reason } = &outcome {
                    self.prompting.note_denial(reason);
                }
            }
        }
    }

    /// Ends those whose time is up.
    pub(crate) fn look_at_questions(&mut self, now: Instant) -> Result<(), RunError> {
        let effects = self.permission_requests.tick(now);
        self.apply(effects, now)
    }

    /// The cage is gone, and nobody can be answered any more.
    pub(crate) fn finish_questions(&mut self) -> Result<(), RunError> {
        let now = Instant::now();
        let effects = self.permission_requests.finish(now);
        self.apply(effects, now)
    }
}

#[cfg(test)]
mod tests;
