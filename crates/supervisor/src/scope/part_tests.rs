//! The part without a process: the test is the scope's supervisor, at the other end of its socket.

use super::super::link::{ScopeNeeds, ScopePermissionRequest, ScopeTaint};
use super::*;
use ironcage_control::{GrantRequest, LeaseTarget, pair};
use ironcage_model::{Approver, LeaseOrigin, Resource, Scope, SupervisorReason, Taint, Term};

const NUMBER: u32 = 3;
const CLIENT: u64 = 7;

fn started() -> (Scopes, Channel) {
    let mut part = Scopes::default();
    let (ours, theirs) = pair().unwrap();
    let event = ScopeEvent::Started {
        number: NUMBER,
        command: vec!["sh".into()],
        shell: true,
        channel: ours,
        // Waiting for what is not a process ends at once.
        pidfd: std::fs::File::open("/dev/null").unwrap().into(),
    };
    assert!(part.handle(event, Instant::now()).is_empty());
    (part, theirs)
}

fn report(part: &mut Scopes, scope: &Channel, report: &FromScope) -> Vec<Effect> {
    scope.send(report, &[]).unwrap();
    part.handle(ScopeEvent::Report(NUMBER), Instant::now())
}

fn hears(scope: &Channel) -> Option<ToScope> {
    match scope.receive::<ToScope>(false).unwrap() {
        Some(Packet::Message(message, _)) => Some(message),
        _ => None,
    }
}

fn resource() -> Resource {
    Resource::Host {
        rule: "a.com".parse().unwrap(),
    }
}

fn lease() -> FromScope {
    FromScope::Record(Box::new(EventKind::Lease(Lease {
        number: 9,
        resource: resource(),
        scope: Scope::Exec { number: NUMBER },
        term: Term::UntilRevoked,
        uses: None,
        reason: String::new(),
        origin: LeaseOrigin::Shell,
        approver: Approver::Policy,
    })))
}

#[test]
fn a_lease_is_marked_and_logged_before_its_scope_goes_on() {
    let (mut part, scope) = started();
    let effects = report(&mut part, &scope, &lease());
    assert!(
        matches!(
            &effects[..],
            [
                Effect::ForgetScopeRequests(NUMBER),
                Effect::MarkLeased(_),
                Effect::Audit(EventKind::Lease(_)),
                Effect::AnswerScope(NUMBER),
            ]
        ),
        "{effects:?}"
    );
    assert!(hears(&scope).is_none());
    part.handle(ScopeEvent::Done(NUMBER), Instant::now());
    assert!(matches!(hears(&scope), Some(ToScope::Done)));
    assert!(part.has_lease(Some(9)) && !part.has_lease(Some(8)));
}

#[test]
fn who_takes_a_lease_back_is_told_after_its_end_is_logged() {
    let (mut part, scope) = started();
    report(&mut part, &scope, &lease());
    assert_eq!(part.revoke(CLIENT, Some(9)), [9]);
    assert!(matches!(hears(&scope), Some(ToScope::End)));
    let ended = FromScope::Record(Box::new(EventKind::LeaseEnd {
        number: 9,
        end: LeaseEnd::Revoked,
        cause: LeaseEndCause::TimeUp.into(),
        holders: Vec::new(),
        milliseconds: 1,
    }));
    let effects = report(&mut part, &scope, &ended);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::ForgetScopeRequests(_),
                Effect::Audit(EventKind::LeaseEnd { number: 9, .. }),
                Effect::Reply {
                    client: CLIENT,
                    reply: Reply::LeaseEnded { number: 9, .. }
                },
                Effect::AnswerScope(_),
            ]
        ),
        "{effects:?}"
    );
    assert!(!part.has_lease(None));
}

#[test]
fn a_scope_is_made_only_when_it_is_admitted() {
    let (mut part, scope) = started();
    let brings = ScopeTaint {
        taint: Taint::NONE,
        by: String::new(),
        leads_out: true,
        wished: false,
        writes: Vec::new(),
    };
    let effects = report(
        &mut part,
        &scope,
        &FromScope::Make(Box::new(brings.clone())),
    );
    let number = NUMBER;
    assert_eq!(effects.last(), Some(&Effect::AdmitScope { number, brings }));
    assert!(!part.is_one_being_made() && part.way_out().is_none());
    let denied = ScopeEvent::Denied {
        number,
        reason: SupervisorReason::Stopping.into(),
    };
    assert!(part.handle(denied, Instant::now()).is_empty());
    assert!(matches!(hears(&scope), Some(ToScope::Against(_))));
    let leads_out = true;
    let admitted = ScopeEvent::Admitted { number, leads_out };
    let effects = part.handle(admitted, Instant::now());
    assert_eq!(effects, [Effect::AnswerScope(NUMBER)]);
    assert!(part.is_one_being_made());
    assert_eq!(part.way_out(), Some(NUMBER));
    part.handle(ScopeEvent::EndWaysOut, Instant::now());
    assert!(matches!(hears(&scope), Some(ToScope::End)));
}

#[test]
fn a_permission_request_waits_for_its_answer_and_for_no_other() {
    let (mut part, scope) = started();
    let request = ScopePermissionRequest {
        ticket: 1,
        resource: resource(),
        identity: None,
        grant: GrantRequest {
            wanted: LeaseTarget::Other(resource()),
            term: Term::UntilRevoked,
            uses: None,
            reason: String::new(),
        },
        origin: LeaseOrigin::Shell,
        because: LeaseReason::RequestRate.into(),
    };
    let needs = ScopeNeeds {
        command: "cat x".into(),
        requests: vec![request],
    };
    let effects = report(&mut part, &scope, &FromScope::Ask(Box::new(needs)));
    assert!(
        matches!(
            &effects[..],
            [
                Effect::ForgetScopeRequests(NUMBER),
                Effect::AskForScope { number: NUMBER, .. }
            ]
        ),
        "{effects:?}"
    );
    let outcome = RequestOutcome::Granted(GrantedLease::ForScope {
        term: Term::UntilRevoked,
        uses: None,
    });
    let answered = |number| ScopeEvent::Answered {
        number,
        ticket: 1,
        outcome: outcome.clone(),
    };
    part.handle(answered(NUMBER + 1), Instant::now());
    assert!(hears(&scope).is_none());
    part.handle(answered(NUMBER), Instant::now());
    let yes = matches!(
        hears(&scope),
        Some(ToScope::Answered {
            ticket: 1,
            said: PersonAnswer::Yes { .. }
        })
    );
    assert!(yes);
}

#[test]
fn a_scope_that_is_gone_with_an_open_lease_takes_the_cage_along() {
    let (mut part, scope) = started();
    report(&mut part, &scope, &lease());
    drop(scope);
    let effects = part.handle(ScopeEvent::Report(NUMBER), Instant::now());
    assert!(
        matches!(
            &effects[..],
            [
                Effect::ForgetScopeRequests(_),
                Effect::KillCageForScope,
                Effect::GuestLeft(_),
                Effect::Audit(EventKind::LeaseEnd {
                    end: LeaseEnd::CageKilled,
                    ..
                }),
            ]
        ),
        "{effects:?}"
    );
    let (mut part, scope) = started();
    drop(scope);
    let effects = part.handle(ScopeEvent::Report(NUMBER), Instant::now());
    assert!(
        matches!(
            &effects[..],
            [Effect::ForgetScopeRequests(_), Effect::GuestLeft(_)]
        ),
        "{effects:?}"
    );
    assert!(!part.is_any());
}
