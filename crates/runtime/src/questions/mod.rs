//! The table of a cage's questions: what a person has to say yes to before it is leased.
//!
//! What is asked about is held from the question on: a path by its descriptor. What is approved
//! is that, and nothing that took its place or its name meanwhile. The same asked again joins
//! the question that is open; what was denied is not asked again for a while. There is a bound
//! on how many are open, and each expires.

mod messenger;

use crate::RunError;
use crate::leases::{LeaseOutcome, LeaseRequest, REASON, Requester, look};
use crate::supervise::Supervision;
use ironcage_control::{ApproveRequest, GrantRequest, QuestionDescription, Reply};
use ironcage_layers::live::Identity;
use ironcage_model::{EventKind, LeaseOrigin, Question, QuestionEnd, Resource, Scope, Term};
use messenger::Messenger;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Questions that are open at once.
const MOST: usize = 16;
/// And of them by one kind of asker: nobody's are crowded out by another's.
const MOST_OF_ONE: usize = 8;
/// Questions of one cage within an hour: nobody is worn down by being asked.
const MOST_AN_HOUR: usize = 60;
/// Who waits for the answer to one question.
const MOST_WAITING: usize = 16;
/// Denials that are remembered.
const MOST_REMEMBERED: usize = 64;
/// How long a yes holds for a scope that does not wait for it any more.
const APPROVED: Duration = Duration::from_secs(600);
/// As good as for ever.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The questions of one cage.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: Vec<Open>,
    denied: Vec<Denied>,
    last: u32,
    /// When those of the last hour were asked.
    recent: Vec<Instant>,
    messengers: Vec<Messenger>,
    /// What scopes may have because a person said so.
    approved: Vec<Approved>,
}

/// Something that scopes may have, until when, and how many of them.
#[derive(Debug)]
struct Approved {
    resource: Resource,
    identity: Option<Identity>,
    until: Instant,
    left: Option<u32>,
    term: Term,
}

/// A question that is open.
#[derive(Debug)]
struct Open {
    question: Question,
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
struct Denied {
    resource: Resource,
    reason: String,
    until: Instant,
}

/// What a person is to be asked.
#[derive(Debug)]
pub(crate) struct Raised {
    pub(crate) by: Requester,
    pub(crate) origin: LeaseOrigin,
    pub(crate) resource: Resource,
    pub(crate) identity: Option<Identity>,
    pub(crate) grant: GrantRequest,
    pub(crate) descriptor: Option<OwnedFd>,
    /// Why it is not given without asking.
    pub(crate) because: String,
}

/// So much later, and not beyond what can be told.
fn after(now: Instant, time: Duration) -> Instant {
    now.checked_add(time.min(FAR)).unwrap_or(now)
}

impl Questions {
    /// When the next one expires.
    pub(crate) fn next(&self) -> Option<Instant> {
        let open = self.open.iter().filter(|open| open.approved.is_none());
        open.map(|open| open.until).min()
    }

    /// Those that wait for an answer.
    pub(crate) fn describe(&self, now: Instant) -> Vec<QuestionDescription> {
        let of = |open: &Open| QuestionDescription {
            question: open.question.clone(),
            asked: open.asked,
            milliseconds_left: open.until.saturating_duration_since(now).as_millis() as u64,
            untold: open.untold.clone(),
        };
        let open = self.open.iter().filter(|open| open.approved.is_none());
        open.map(of).collect()
    }

    fn position(&self, number: u32) -> Option<usize> {
        let mut open = self.open.iter();
        open.position(|open| open.question.number == number)
    }

    /// Those who are under way to tell of a question.
    pub(crate) fn messengers(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.messengers.iter().map(Messenger::interest)
    }

    /// How many have been asked so far.
    pub(crate) fn asked(&self) -> u32 {
        self.last
    }

    /// How many were asked within an hour, for this cage and its family.
    pub(crate) fn within_an_hour(&mut self, now: Instant) -> u32 {
        let recent = |at: &Instant| now.duration_since(*at) < Duration::from_secs(3600);
        self.recent.retain(recent);
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    /// So many were asked for others of the family.
    pub(crate) fn count(&mut self, times: u32, now: Instant) {
        let room = MOST_AN_HOUR.saturating_sub(self.recent.len());
        let times = room.min(times as usize);
        self.recent.extend(std::iter::repeat_n(now, times));
    }

    fn remember(&mut self, resource: Resource, reason: String, (now, memory): (Instant, Duration)) {
        self.denied.retain(|denied| denied.until > now);
        if self.denied.len() >= MOST_REMEMBERED {
            self.denied.remove(0);
        }
        self.denied.push(Denied {
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
    ) -> Option<LeaseOutcome> {
        let fits = |known: &&mut Approved| {
            known.resource == *resource
                && known.identity == identity
                && known.until > now
                && known.left != Some(0)
        };
        let found = self.approved.iter_mut().find(fits)?;
        found.left = found.left.map(|left| left.saturating_sub(1));
        Some(LeaseOutcome::Approved {
            term: found.term,
            uses: None,
        })
    }

    /// A scope is gone, and waits for nothing any more.
    pub(crate) fn forget_scope(&mut self, number: u32) {
        let gone =
            |by: &Requester| matches!(by, Requester::Scope { number: of, .. } if *of == number);
        for open in &mut self.open {
            open.waiting.retain(|by| !gone(by));
        }
    }

    fn was_denied(&self, resource: &Resource, now: Instant) -> Option<&Denied> {
        let mut denied = self.denied.iter();
        denied.find(|denied| denied.resource == *resource && denied.until > now)
    }
}

impl Supervision<'_> {
    /// Asks a person, or joins the question that is open.
    pub(crate) fn raise_question(&mut self, raised: Raised, now: Instant) -> Result<(), RunError> {
        let Raised {
            by,
            origin,
            resource,
            identity,
            grant,
            descriptor,
            because,
        } = raised;
        if let Some(denied) = self.questions.was_denied(&resource, now) {
            let reason = match denied.reason.as_str() {
                "" => "it was denied when it was asked for before".to_owned(),
                said => format!("it was denied when it was asked for before: {said}"),
            };
            return self.refuse_lease(by, resource, origin, reason);
        }
        let for_scope = matches!(by, Requester::Scope { .. });
        if for_scope && let Some(yes) = self.questions.take_approval(&resource, identity, now) {
            return self.tell_requester(by, yes);
        }
        let same = |open: &Open| {
            let scopes = matches!(open.question.scope, Scope::Exec { .. });
            open.question.resource == resource && scopes == for_scope
        };
        if let Some(index) = self.questions.open.iter().position(same) {
            let unchanged = |open: &Open| open.identity == identity;
            if let Some(open) = self.questions.open.get_mut(index).filter(|o| unchanged(o)) {
                open.asked = open.asked.saturating_add(1);
                if open.waiting.len() < MOST_WAITING && !open.waiting.contains(&by) {
                    open.waiting.push(by);
                }
                let question = open.question.number;
                return self.tell_requester(by, LeaseOutcome::Asked { question, because });
            }
            // Another file has taken the name: what was asked about is not there any more.
            let reason = "something else is there now";
            self.end_question(index, QuestionEnd::Withdrawn, reason)?;
        }
        let open = &self.questions.open;
        let by_one = open.iter().filter(|open| open.question.origin == origin);
        if open.len() >= MOST || by_one.count() >= MOST_OF_ONE {
            let reason = format!(
                "{because}, and {} questions wait for an answer already; ask again later",
                open.len()
            );
            return self.refuse_lease(by, resource, origin, reason);
        }
        if self.questions.within_an_hour(now) as usize >= MOST_AN_HOUR {
            let reason =
                format!("{because}, and {MOST_AN_HOUR} questions were asked within an hour");
            return self.refuse_lease(by, resource, origin, reason);
        }
        self.questions.recent.push(now);
        self.tell_family_of_questions(1, None);
        self.questions.last = self.questions.last.wrapping_add(1).max(1);
        let number = self.questions.last;
        let announced = self.intents.announced(&resource, now);
        let question = Question {
            number,
            resource,
            scope: match by {
                Requester::Scope { number, .. } => Scope::Exec { number },
                _ => Scope::Cage,
            },
            term: grant.term,
            uses: grant.uses,
            reason: grant.reason.chars().take(REASON).collect(),
            origin,
            because: because.clone(),
            announced,
        };
        let terms = self.plan.leases.as_ref().map(|leases| &leases.questions);
        let expire = terms.and_then(|terms| terms.expire);
        // On record before anybody can answer it.
        self.recorder.write(EventKind::Question(question.clone()))?;
        let told = question.clone();
        self.questions.open.push(Open {
            question,
            grant,
            identity,
            descriptor,
            waiting: vec![by],
            asked: 1,
            born: now,
            until: after(now, expire.unwrap_or(FAR)),
            untold: None,
            approved: None,
        });
        self.send_messengers(&told)?;
        self.tell_requester(
            by,
            LeaseOutcome::Asked {
                question: number,
                because,
            },
        )
    }

    /// Every question that waits for an answer.
    pub(crate) fn list_questions(&mut self, key: u64, now: Instant) {
        let list = self.questions.describe(now);
        self.control.reply(key, &Reply::Questions(list), &[]);
    }

    fn find_question(&mut self, by: Answerer, number: u32) -> Option<usize> {
        let found = self.questions.position(number);
        let found = found.filter(|index| {
            let open = self.questions.open.get(*index);
            open.is_some_and(|open| open.approved.is_none())
        });
        if found.is_none() {
            let reason = format!("no question {number} waits for an answer in this cage");
            self.tell_answerer(by, LeaseOutcome::Refused { reason });
        }
        found
    }

    /// A person says yes. The lease is asked for once more, in the question's name, by what was
    /// held since it was asked.
    pub(crate) fn approve(
        &mut self,
        by: Answerer,
        request: &ApproveRequest,
        now: Instant,
    ) -> Result<(), RunError> {
        let Some(index) = self.find_question(by, request.number) else {
            return Ok(());
        };
        let Some(open) = self.questions.open.get_mut(index) else {
            return Ok(());
        };
        if matches!(open.question.scope, Scope::Exec { .. }) {
            open.approved = Some(by);
            return self.approve_for_scope(index, request, now);
        }
        let of_path = matches!(open.question.resource, Resource::Path { .. });
        if request.uses.is_some() && of_path {
            // An answer that cannot be carried out is none: the question stays.
            let reason = "nobody counts the uses of a path: name a time instead".to_owned();
            self.tell_answerer(by, LeaseOutcome::Refused { reason });
            return Ok(());
        }
        open.approved = Some(by);
        let descriptor = open.descriptor.take();
        let moved = match (&open.question.resource, &descriptor) {
            (Resource::Path { path, right }, Some(handle)) => {
                let seen = look(handle, *right);
                !seen.is_ok_and(|seen| {
                    seen.path == Path::new(path) && Some(seen.identity) == open.identity
                })
            }
            _ => false,
        };
        let grant = GrantRequest {
            term: request.term.unwrap_or(open.grant.term),
            uses: request.uses.or(open.grant.uses),
            ..open.grant.clone()
        };
        let origin = open.question.origin;
        let by = Requester::Question(request.number);
        if moved {
            let reason = "what was asked about is not there any more: it was moved, or replaced";
            let reason = reason.to_owned();
            return self.tell_requester(by, LeaseOutcome::Refused { reason });
        }
        self.request_lease(
            LeaseRequest {
                by,
                origin,
                grant,
                descriptor,
                unannounced: false,
            },
            now,
        )
    }

    /// A person says yes to a question of a scope's. Where no scope waits for it any more, the next
    /// that needs the same has it; where a time was named, each within that time.
    fn approve_for_scope(
        &mut self,
        index: usize,
        request: &ApproveRequest,
        now: Instant,
    ) -> Result<(), RunError> {
        let Some(open) = self.questions.open.get(index) else {
            return Ok(());
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
        let approved = Approved {
            resource: open.question.resource.clone(),
            identity: open.identity,
            until,
            left,
            term,
        };
        let questions = &mut self.questions;
        questions
            .approved
            .retain(|known| known.until > now && known.left != Some(0));
        if questions.approved.len() >= MOST_REMEMBERED {
            questions.approved.remove(0);
        }
        questions.approved.push(approved);
        let outcome = LeaseOutcome::Approved {
            term,
            uses: request.uses,
        };
        self.question_opened(request.number, outcome)
    }

    /// What came of an approved question.
    pub(crate) fn question_opened(
        &mut self,
        number: u32,
        outcome: LeaseOutcome,
    ) -> Result<(), RunError> {
        let Some(index) = self.questions.position(number) else {
            return Ok(());
        };
        let open = self.questions.open.remove(index);
        let (end, reason) = match &outcome {
            LeaseOutcome::Open(_) | LeaseOutcome::InBase { .. } | LeaseOutcome::Approved { .. } => {
                (QuestionEnd::Approved, String::new())
            }
            LeaseOutcome::Asked { because: why, .. } | LeaseOutcome::Refused { reason: why } => {
                (QuestionEnd::NotOpened, why.clone())
            }
        };
        self.record_end(&open, end, reason)?;
        if let Some(by) = open.approved {
            self.tell_answerer(by, outcome.clone());
        }
        self.tell_waiting(&open, &outcome)
    }

    /// A person says no.
    pub(crate) fn deny(
        &mut self,
        by: Answerer,
        number: u32,
        reason: &str,
        now: Instant,
    ) -> Result<(), RunError> {
        let Some(index) = self.find_question(by, number) else {
            return Ok(());
        };
        let terms = self.plan.leases.as_ref().map(|leases| &leases.questions);
        let memory = terms.map_or(Duration::ZERO, |terms| terms.remember);
        let reason: String = reason.chars().take(REASON).collect();
        if let Some(open) = self.questions.open.get(index) {
            let resource = open.question.resource.clone();
            self.questions
                .remember(resource, reason.clone(), (now, memory));
        }
        self.end_question(index, QuestionEnd::Denied, &reason)?;
        if let Answerer::Client(key) = by {
            self.control.reply(key, &Reply::Denied { number }, &[]);
        }
        Ok(())
    }

    /// Tells who answered what came of it.
    fn tell_answerer(&mut self, by: Answerer, outcome: LeaseOutcome) {
        match by {
            Answerer::Client(key) => self.tell_client(key, outcome),
            Answerer::Terminal => self.note_on_prompt(&outcome),
        }
    }

    /// Ends those whose time is up.
    pub(crate) fn look_at_questions(&mut self, now: Instant) -> Result<(), RunError> {
        let late = |open: &Open| open.approved.is_none() && now >= open.until;
        while let Some(index) = self.questions.open.iter().position(late) {
            self.end_question(index, QuestionEnd::Expired, "")?;
        }
        Ok(())
    }

    /// The cage is gone, and nobody can be answered any more.
    pub(crate) fn finish_questions(&mut self) -> Result<(), RunError> {
        self.questions.messengers.clear();
        for open in std::mem::take(&mut self.questions.open) {
            self.record_end(&open, QuestionEnd::CageEnded, String::new())?;
        }
        Ok(())
    }

    fn end_question(
        &mut self,
        index: usize,
        end: QuestionEnd,
        reason: &str,
    ) -> Result<(), RunError> {
        let open = self.questions.open.remove(index);
        // The record first: who is told may act on it.
        self.record_end(&open, end, reason.to_owned())?;
        let reason = match reason {
            "" => end.name().to_owned(),
            // That it is a denial is what it is told as.
            said if end == QuestionEnd::Denied => said.to_owned(),
            said => format!("{}: {said}", end.name()),
        };
        self.tell_waiting(&open, &LeaseOutcome::Refused { reason })
    }

    fn record_end(
        &mut self,
        open: &Open,
        end: QuestionEnd,
        reason: String,
    ) -> Result<(), RunError> {
        self.recorder.write(EventKind::QuestionEnd {
            number: open.question.number,
            end,
            reason,
            asked: open.asked,
            milliseconds: open.born.elapsed().as_millis() as u64,
        })
    }

    fn tell_waiting(&mut self, open: &Open, outcome: &LeaseOutcome) -> Result<(), RunError> {
        for by in &open.waiting {
            self.tell_requester(*by, outcome.clone())?;
        }
        Ok(())
    }
}
