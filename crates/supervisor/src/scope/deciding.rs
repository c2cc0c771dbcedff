//! Decides the needs of a scope: each is given, refused, or put before a person, together with
//! the others that are.

use super::judge::{LeaseJudge, LeaseOpinion};
use super::leases::ScopeLease;
use super::link::PersonAnswer;
use crate::RunError;
use crate::leases::{LeaseSubject, REASON, SeenPath};
use crate::supervise::failed;
use crate::taint::brought;
use ironcage_control::{DeniedLease, GrantRequest, LeaseTarget};
use ironcage_lease::life::{EndingRules, LeaseLife};
use ironcage_lease::{Decision, History, LeaseTerms, RequestedLease, decide};
use ironcage_model::{
    Approver, Holders, Lease, LeaseOrigin, LeaseReason, Resource, Right, Scope, Taint,
};
use ironcage_plan::Plan;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// What a scope's leases are decided by.
pub(super) struct LeaseDecider<'a> {
    pub(super) plan: &'a Plan,
    pub(super) origin: LeaseOrigin,
    pub(super) exec: u32,
    /// The number of its first lease.
    pub(super) first: u32,
    /// Whether nothing is given at once in this cage any more.
    pub(super) distrusted: bool,
    /// What the cage may have come into contact with.
    pub(super) taint: Taint,
    /// What may have anything asked for or denied that would be given at once.
    pub(super) judge: Option<LeaseJudge<'a>>,
    /// Whether the command does not run without all of it.
    pub(super) all_or_nothing: bool,
}

/// A need that a person has to approve.
pub(super) struct NeedToAsk<'a> {
    pub(super) not_given: DeniedLease,
    pub(super) grant: &'a GrantRequest,
    pub(super) seen: Option<SeenPath>,
}

/// What a person said to a need, and what it was then.
struct AnsweredNeed {
    said: PersonAnswer,
    seen: Option<SeenPath>,
}

/// Decides what a scope gets: what is given, and what is not. `ask` has a person asked about what
/// is given only then: all of it at once, and once more only about what needs a person because of
/// what was approved.
pub(super) fn decide_all(
    deciding: &LeaseDecider<'_>,
    asked: &[GrantRequest],
    descriptors: Vec<OwnedFd>,
    mut ask: impl FnMut(&[NeedToAsk<'_>]) -> Result<Vec<PersonAnswer>, RunError>,
) -> Result<(Vec<ScopeLease>, Vec<DeniedLease>), RunError> {
    let mut descriptors = descriptors.into_iter();
    let mut handles: Vec<Option<OwnedFd>> = Vec::new();
    for request in asked {
        handles.push(match request.wanted {
            LeaseTarget::Path { .. }
            | LeaseTarget::Name { .. }
            | LeaseTarget::Other(Resource::Port { .. }) => descriptors.next(),
            LeaseTarget::Other(_) => None,
        });
    }
    let mut answers: Vec<Option<AnsweredNeed>> = asked.iter().map(|_| None).collect();
    loop {
        let mut round = DecidedNeeds::default();
        for (index, request) in asked.iter().enumerate() {
            let handle = handles.get(index).and_then(Option::as_ref);
            let answer = answers.get(index).and_then(Option::as_ref);
            deciding.decide_need(index, request, (handle, answer), &mut round)?;
        }
        if deciding.all_or_nothing && !round.refused.is_empty() {
            // Nobody is asked for a command that will not run.
            let to_ask = round.to_ask.into_iter();
            round.refused.extend(to_ask.map(|(_, need)| need.not_given));
            return Ok((Vec::new(), round.refused));
        }
        if round.to_ask.is_empty() {
            let mut leases = Vec::new();
            for (index, mut lease) in round.leases {
                let handle = handles.get_mut(index).and_then(Option::take);
                lease.listener = handle.filter(|_| lease.seen.is_none());
                leases.push(lease);
            }
            return Ok((leases, round.refused));
        }
        let (indices, needs): (Vec<usize>, Vec<NeedToAsk<'_>>) = round.to_ask.into_iter().unzip();
        let mut said = ask(&needs)?.into_iter();
        for (index, need) in indices.into_iter().zip(needs) {
            // Each has an answer, and is so asked for once.
            let reason = need.not_given.reason;
            let said = said.next().unwrap_or(PersonAnswer::No { reason });
            let seen = need.seen;
            if let Some(answer) = answers.get_mut(index) {
                *answer = Some(AnsweredNeed { said, seen });
            }
        }
    }
}

/// What is decided of the needs of one scope, as far as it is.
#[derive(Default)]
struct DecidedNeeds<'a> {
    /// Each with the place of its need.
    leases: Vec<(usize, ScopeLease)>,
    refused: Vec<DeniedLease>,
    to_ask: Vec<(usize, NeedToAsk<'a>)>,
}

/// A yes holds for the file that the person read about, not for one that took its name since.
fn for_what_was_read(
    decided: Decision,
    now: Option<&SeenPath>,
    before: Option<&SeenPath>,
) -> Decision {
    let identity = |seen: Option<&SeenPath>| seen.map(|seen| (seen.path.clone(), seen.identity));
    match decided {
        Decision::Granted(_) if identity(now) != identity(before) => {
            Decision::denied(LeaseReason::PathReplaced)
        }
        other => other,
    }
}

/// Whether what is written lies in what is read. A scope can have both: its leases end together,
/// this one first.
fn nests(around: &Resource, wanted: &Resource) -> bool {
    match (around, wanted) {
        (
            Resource::Path {
                path: around,
                right: Right::Read,
            },
            Resource::Path {
                path,
                right: Right::Write,
            },
        ) => path != around && Path::new(path).starts_with(around),
        _ => false,
    }
}

impl LeaseDecider<'_> {
    /// Decides one need, after those before it.
    fn decide_need<'a>(
        &self,
        index: usize,
        request: &'a GrantRequest,
        (handle, answer): (Option<&OwnedFd>, Option<&AnsweredNeed>),
        round: &mut DecidedNeeds<'a>,
    ) -> Result<(), RunError> {
        let (resource, seen, decided) = self.decide_judged(request, handle, &round.leases, false);
        let not_given = |reason, ask| DeniedLease {
            resource,
            reason,
            ask,
        };
        let (seen, decided) = match (decided, answer) {
            (Decision::Pending { reason, .. }, None) => {
                let need = NeedToAsk {
                    not_given: not_given(reason, true),
                    grant: request,
                    seen,
                };
                round.to_ask.push((index, need));
                return Ok(());
            }
            (Decision::Pending { .. }, Some(answer)) => match &answer.said {
                PersonAnswer::Yes { term, .. } => {
                    let request = GrantRequest {
                        term: *term,
                        ..request.clone()
                    };
                    let (_, now, again) = self.decide_judged(&request, handle, &round.leases, true);
                    let before = answer.seen.as_ref();
                    let again = for_what_was_read(again, now.as_ref(), before);
                    (now, again)
                }
                PersonAnswer::No { reason } => {
                    // A person could have given it: no command runs without.
                    round.refused.push(not_given(reason.clone(), true));
                    return Ok(());
                }
            },
            (decided, _) => (seen, decided),
        };
        match decided {
            Decision::InBase { .. } => {}
            Decision::Granted(given) => {
                let number = self.first.wrapping_add(round.leases.len() as u32);
                let lease = self.lease(number, given, seen, &request.reason)?;
                round.leases.push((index, lease));
            }
            Decision::Pending { reason, .. } => round.refused.push(not_given(reason, true)),
            Decision::Denied { reason } => round.refused.push(not_given(reason, false)),
        }
        Ok(())
    }

    fn lease(
        &self,
        number: u32,
        given: LeaseTerms,
        seen: Option<SeenPath>,
        reason: &str,
    ) -> Result<ScopeLease, RunError> {
        let lease = Lease {
            number,
            resource: given.resource,
            scope: Scope::Exec { number: self.exec },
            term: given.term,
            uses: given.uses,
            reason: reason.chars().take(REASON).collect(),
            origin: self.origin,
            approver: given.approver,
        };
        let leases = self.plan.leases.as_ref();
        let holders = leases.map_or(Holders::Kill, |leases| leases.holders);
        let rules = EndingRules::of_scope(holders);
        let brings = brought(self.plan, &lease.resource);
        Ok(ScopeLease {
            life: LeaseLife::requested(rules, lease.term, Instant::now()),
            brings: brings.map_err(failed("read what is known of a place"))?,
            lease,
            listener: None,
            seen,
            mounts: Vec::new(),
            holders: Vec::new(),
            failure: None,
            misplaced: None,
        })
    }

    /// Decides one need. Where it would be given at once, the judge of the policy is heard.
    fn decide_judged(
        &self,
        request: &GrantRequest,
        handle: Option<&OwnedFd>,
        leases: &[(usize, ScopeLease)],
        approved: bool,
    ) -> (Resource, Option<SeenPath>, Decision) {
        let decided = self.decide_one(request, handle, (leases, None), approved);
        let (resource, seen, decision) = decided;
        let at_once =
            matches!(&decision, Decision::Granted(terms) if terms.approver == Approver::Policy);
        match self.judge.as_ref().filter(|_| at_once) {
            None => (resource, seen, decision),
            Some(judge) => match judge.judge(&resource, request) {
                LeaseOpinion::Allow => (resource, seen, decision),
                LeaseOpinion::Ask(said) => {
                    self.decide_one(request, handle, (leases, Some(said)), approved)
                }
                LeaseOpinion::Deny(said) => {
                    let denied = Decision::denied(LeaseReason::DeniedByJudge { said });
                    (resource, seen, denied)
                }
            },
        }
    }

    fn decide_one(
        &self,
        request: &GrantRequest,
        handle: Option<&OwnedFd>,
        (leases, judge_asks): (&[(usize, ScopeLease)], Option<String>),
        approved: bool,
    ) -> (Resource, Option<SeenPath>, Decision) {
        let subject = match LeaseSubject::look(&request.wanted, handle) {
            Ok(subject) => subject,
            Err(refused) => {
                let (resource, reason) = *refused;
                return (resource, None, Decision::denied(reason));
            }
        };
        let asked = RequestedLease {
            what: subject.wanted(),
            term: request.term,
            uses: request.uses,
            scope: Scope::Exec { number: self.exec },
            origin: self.origin,
            approved,
        };
        let history = History {
            open: leases
                .iter()
                .filter(|(_, lease)| !nests(&lease.lease.resource, &subject.resource))
                .map(|(_, lease)| lease.lease.clone())
                .collect(),
            asked: 0,
            distrusted: self.distrusted,
            unannounced: false,
            judge_asks,
            taint: leases
                .iter()
                .fold(self.taint, |taint, (_, lease)| taint.with(lease.brings)),
        };
        let decision = decide(self.plan, &asked, &history);
        let LeaseSubject { resource, seen } = subject;
        (resource, seen, decision)
    }
}
