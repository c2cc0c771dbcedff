//! Permission requests: what a person has to approve before it is leased.
//!
//! The resource is held from the request on: a path by its descriptor. The approval is for
//! that, and nothing that took its place or its name meanwhile. The same asked again joins the
//! request that is pending; what was denied is not asked again for a while. There is a bound on how
//! many are pending, and each expires.
//!
//! The needs of one command are asked for together: the requests share a group, count as one question,
//! and one answer is for all of them.
//!
//! A part of the supervisor: it owns the pending requests and returns what follows as effects.

mod answers;
mod notifier;
mod serving;

use crate::effects::Effect;
use crate::leases::{REASON, Requester};
use ironcage_control::{GrantRequest, PermissionRequestDescription};
use ironcage_layers::live::Identity;
use ironcage_model::{
    EventKind, GrantedLease, LeaseOrigin, LeaseReason, PermissionRequest, PermissionRequestEnd,
    Reason, RequestOutcome, Resource, Scope, SupervisorReason, Term,
};
use ironcage_plan::PermissionRequestTerms;
use notifier::Notifier;
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Questions that are open at once.
const MOST: usize = 16;
/// And of them by one kind of asker: nobody's are crowded out by another's.
const MOST_OF_ONE: usize = 8;
/// Questions of one cage within an hour: nobody is worn down by being asked.
const MOST_AN_HOUR: usize = 60;
/// And of them by one kind of requester, so that junk of one leaves the others some.
const MOST_AN_HOUR_OF_ONE: usize = 40;
/// Requests that one command can raise together: a person reads all of them at once.
const MOST_TOGETHER: usize = 16;
/// Characters of a command that a person is shown.
const COMMAND: usize = 500;
/// Who waits for the answer to one question.
const MOST_WAITING: usize = 16;
/// Denials that are remembered.
const MOST_REMEMBERED: usize = 1024;
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

/// The requests that are raised together, as far as they are.
#[derive(Debug, Default)]
struct RaisedGroup {
    /// What a person is to be told of, as one question.
    untold: Vec<PermissionRequest>,
    /// The command that needs them, where one does.
    command: Option<String>,
    /// The number of the first, once there is one.
    first: Option<u32>,
    count: usize,
    /// Whether there is more than one.
    shared: bool,
}

/// A command as a person is shown it, of bounded length. That something is missing is shown too.
fn shown_command(command: &str) -> String {
    let mut shown: String = command.chars().take(COMMAND).collect();
    let missing = command.chars().count().saturating_sub(COMMAND);
    if missing > 0 {
        shown.push_str(&format!(" ... and {missing} characters more"));
    }
    shown
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

    /// Asks a person for all that one command needs, or joins requests that are pending. Where one
    /// of them was denied before, nobody is asked for the others: the command would not run.
    pub(crate) fn raise(
        &mut self,
        all: Vec<NewRequest>,
        command: Option<&str>,
        now: Instant,
    ) -> Vec<Effect> {
        let shared = all.len() > 1;
        let denied = |new: &NewRequest| self.was_denied(&new.resource, now).is_some();
        let hopeless = shared && all.iter().any(denied);
        let mut group = RaisedGroup {
            command: command.map(shown_command),
            shared,
            ..RaisedGroup::default()
        };
        let mut effects = Vec::new();
        for new in all {
            if hopeless && self.was_denied(&new.resource, now).is_none() {
                let how = "something else that the command needs was denied".into();
                effects.push(Effect::Report {
                    requester: new.by,
                    outcome: RequestOutcome::denied(LeaseReason::NotAnswered { how }),
                });
                continue;
            }
            effects.extend(self.raise_one(new, &mut group, now));
        }
        if !group.untold.is_empty() {
            effects.push(Effect::Notify(group.untold));
        }
        effects
    }

    /// How many answers the pending requests need, and how many of them those of this origin.
    fn questions(&self, origin: LeaseOrigin) -> (usize, usize) {
        let answers = |of: &dyn Fn(&PermissionRequest) -> bool| {
            let questions = self.open.iter().map(|open| &open.question);
            let matching = questions.filter(|question| of(question));
            let answers: BTreeSet<u32> = matching.map(PermissionRequest::answered_as).collect();
            answers.len()
        };
        (answers(&|_| true), answers(&|one| one.origin == origin))
    }

    /// The bound that another request would exceed, and whether it is one of the last hour.
    fn too_many(
        &mut self,
        origin: LeaseOrigin,
        group: &RaisedGroup,
        because: &Reason,
        now: Instant,
    ) -> Option<LeaseReason> {
        let because = || because.to_string();
        if group.first.is_some() {
            let limit = MOST_TOGETHER;
            return (group.count >= limit).then(|| LeaseReason::TooManyPending {
                because: because(),
                limit: limit as u64,
            });
        }
        let (all, by_one) = self.questions(origin);
        if all >= MOST || by_one >= MOST_OF_ONE {
            return Some(LeaseReason::TooManyPending {
                because: because(),
                limit: all as u64,
            });
        }
        let most = self.too_many_within_an_hour(origin, now)?;
        Some(LeaseReason::TooManyQuestions {
            because: because(),
            limit: most as u64,
        })
    }

    fn raise_one(&mut self, new: NewRequest, group: &mut RaisedGroup, now: Instant) -> Vec<Effect> {
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
        // One approval is for one use, in either case: nothing is opened by it.
        let for_one_use = for_scope || matches!(by, Requester::KeyUse(_));
        if for_one_use && let Some(yes) = self.take_approval(&resource, identity, now) {
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
        if let Some(reason) = self.too_many(origin, group, &because, now) {
            effects.push(deny(resource, reason));
            return effects;
        }
        if group.first.is_none() {
            self.recent.push((now, Some(origin)));
        }
        self.last = self.last.wrapping_add(1).max(1);
        let first = *group.first.get_or_insert(self.last);
        group.count += 1;
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
            command: group.command.clone(),
            group: group.shared.then_some(first),
        };
        effects.extend([
            Effect::TellRelativesOfRequest,
            // On record before anybody can answer it.
            Effect::Audit(EventKind::Question(question.clone())),
            report(RequestOutcome::Pending {
                question: question.number,
                reason: because,
            }),
        ]);
        group.untold.push(question.clone());
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

#[cfg(test)]
mod tests;
