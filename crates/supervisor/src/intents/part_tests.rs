//! The part without a process: which effects follow from which events.

use super::*;
use ironcage_control::DeniedLease;
use ironcage_model::{Lease, LeaseReason, Protocol, Scope};

const DRIFT: Drift = Drift {
    shorten: 1,
    ask: 2,
    freeze: 3,
};

fn intents() -> Intents<'static> {
    Intents::with(Some(IntentPolicy {
        longest: Some(Duration::from_secs(60)),
        drift: DRIFT,
        narrowed: None,
    }))
}

fn intent(id: &str) -> Intent {
    Intent {
        id: Some(id.into()),
        tool: "fetch".into(),
        reads: Vec::new(),
        writes: Vec::new(),
        removes: Vec::new(),
        contacts: Vec::new(),
        open: false,
        shell: false,
        denied: None,
    }
}

fn host(text: &str) -> HostRule {
    text.parse().unwrap()
}

fn needs(hosts: &[&str]) -> CallNeeds {
    let rules: Vec<HostRule> = hosts.iter().map(|text| host(text)).collect();
    CallNeeds {
        hosts: rules.clone(),
        needed: Needed {
            needs: rules.into_iter().map(Need::Host).collect(),
            ..Needed::default()
        },
        asks_itself: false,
    }
}

fn begin(part: &mut Intents<'_>, id: &str, needs: CallNeeds) -> Vec<Effect> {
    let intent = intent(id);
    part.handle(IntentEvent::Needs { intent, needs }, Instant::now())
}

fn lease(number: u32, approver: Approver) -> RequestOutcome {
    RequestOutcome::Granted(GrantedLease::Open(Lease {
        number,
        resource: Resource::Host {
            rule: host("a.com"),
        },
        scope: Scope::Cage,
        term: Term::UntilRevoked,
        uses: None,
        reason: String::new(),
        origin: LeaseOrigin::Answer,
        approver,
    }))
}

fn denied(name: &str) -> IntentEvent {
    IntentEvent::Traffic(Traffic {
        verdict: NetworkVerdict::Denied,
        rule: None,
        host: name.into(),
        port: 443,
        protocol: Protocol::Tls,
        address: None,
        request: None,
        status: None,
        reason: None,
        connections: 1,
        sent: 0,
        received: 0,
    })
}

#[test]
fn a_call_is_looked_up_and_without_a_policy_for_leases_it_is_not() {
    let now = Instant::now();
    let announced = || IntentEvent::Announced(intent("1"));
    let effects = intents().handle(announced(), now);
    assert_eq!(effects, [Effect::LookUpNeeds(intent("1"))]);
    assert!(Intents::with(None).handle(announced(), now).is_empty());
}

#[test]
fn more_calls_than_can_be_told_apart_are_logged_and_not_looked_up() {
    let now = Instant::now();
    let mut part = intents();
    for number in 0..MOST_CALLS {
        begin(&mut part, &number.to_string(), CallNeeds::default());
    }
    let announced =
        |part: &mut Intents<'_>, now| part.handle(IntentEvent::Announced(intent("more")), now);
    let effects = announced(&mut part, now);
    assert!(matches!(
        &effects[..],
        [Effect::Audit(EventKind::IntentUnread { times: 1, .. })]
    ));
    // Those whose time is up leave room.
    let later = now + Duration::from_secs(61);
    let effects = announced(&mut part, later);
    assert_eq!(effects, [Effect::LookUpNeeds(intent("more"))]);
}

#[test]
fn what_a_call_needs_is_logged_before_it_is_asked_for() {
    let mut part = intents();
    let mut needs = needs(&["a.com"]);
    needs.needed.refused.push(DeniedLease {
        resource: Resource::Socket { path: "x".into() },
        reason: LeaseReason::HostNotNamable.into(),
        ask: false,
    });
    let effects = begin(&mut part, "1", needs);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::Intent(record)),
                Effect::LogDenial { .. },
                Effect::MeetNeed { call: 1, need: 1 },
            ] if record.needs.len() == 2
        ),
        "{effects:?}"
    );
    let met = |meeting| IntentEvent::Met {
        call: 1,
        need: 1,
        meeting,
    };
    let effects = part.handle(met(LeaseMatch::None), Instant::now());
    assert_eq!(effects, [Effect::RequestNeed { call: 1, need: 1 }]);
    let request = part.take_request(1, 1, Instant::now()).unwrap();
    assert_eq!(request.by, Requester::Call(1));
    assert_eq!(request.grant.term, Term::Milliseconds(60_000));
    // It is asked for once.
    assert!(part.take_request(1, 1, Instant::now()).is_none());
}

#[test]
fn a_need_waits_for_a_lease_that_is_ending_and_is_met_again_with_time() {
    let now = Instant::now();
    let mut part = intents();
    begin(&mut part, "1", needs(&["a.com"]));
    let met = |meeting| IntentEvent::Met {
        call: 1,
        need: 1,
        meeting,
    };
    assert!(part.handle(IntentEvent::Tick, now).is_empty());
    assert!(part.handle(met(LeaseMatch::Ending), now).is_empty());
    let again = [Effect::MeetNeed { call: 1, need: 1 }];
    assert_eq!(part.handle(IntentEvent::Tick, now), again);
    assert!(part.handle(met(LeaseMatch::Ending), now).is_empty());
    assert_eq!(part.handle(IntentEvent::Tick, now), again);
    let effects = part.handle(met(LeaseMatch::None), now);
    assert_eq!(effects, [Effect::RequestNeed { call: 1, need: 1 }]);
}

#[test]
fn a_lease_ends_with_the_last_call_that_needs_it() {
    let now = Instant::now();
    let mut part = intents();
    begin(&mut part, "1", needs(&["a.com"]));
    begin(&mut part, "2", needs(&["a.com"]));
    let opening = IntentEvent::Opening { call: 1, lease: 9 };
    part.handle(opening, now);
    let shared = IntentEvent::Met {
        call: 2,
        need: 2,
        meeting: LeaseMatch::Has {
            lease: 9,
            origin: LeaseOrigin::Answer,
        },
    };
    assert!(part.handle(shared, now).is_empty());
    let returned = |id: &str| IntentEvent::Returned(vec![id.into()]);
    assert!(part.handle(returned("1"), now).is_empty());
    let effects = part.handle(returned("2"), now);
    assert!(matches!(&effects[..], [Effect::EndLease { number: 9, .. }]));
}

#[test]
fn what_opens_after_its_call_is_over_ends_at_once_unless_a_person_allowed_it() {
    let now = Instant::now();
    let mut part = intents();
    let answered = |approver| IntentEvent::Answered {
        call: 1,
        outcome: lease(4, approver),
    };
    let effects = part.handle(answered(Approver::Policy), now);
    assert!(matches!(&effects[..], [Effect::EndLease { number: 4, .. }]));
    assert!(part.handle(answered(Approver::Operator), now).is_empty());
    begin(&mut part, "1", CallNeeds::default());
    assert!(part.handle(answered(Approver::Policy), now).is_empty());
}

#[test]
fn each_host_that_no_call_named_lowers_the_trust_once_until_the_cage_is_frozen() {
    let now = Instant::now();
    let mut part = intents();
    // Nothing is announced, so nothing differs.
    assert!(part.handle(denied("evil.com"), now).is_empty());
    begin(&mut part, "1", needs(&["a.com"]));
    assert!(part.handle(denied("a.com"), now).is_empty());
    let effects = part.handle(denied("evil.com"), now);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::Drift { number: 1, .. }),
                Effect::TellParentOfDrift(_),
                Effect::TellChildrenOfTrust(Trust::Shortened),
            ]
        ),
        "{effects:?}"
    );
    assert!(part.handle(denied("evil.com"), now).is_empty());
    part.handle(denied("evil.net"), now);
    assert!(part.is_distrusted());
    let effects = part.handle(denied("evil.org"), now);
    assert_eq!(effects.last(), Some(&Effect::FreezeForReview));
    assert_eq!(
        part.handle(IntentEvent::Tick, now),
        [Effect::FreezeForReview]
    );
    part.handle(IntentEvent::Reviewed, now);
    assert!(part.handle(IntentEvent::Tick, now).is_empty());
    assert_eq!(part.trust(), Trust::Asked);
}

#[test]
fn an_address_is_announced_by_its_own_rule_and_not_by_one_that_begins_alike() {
    let now = Instant::now();
    let mut part = intents();
    begin(
        &mut part,
        "1",
        needs(&["192.0.2.45:443", "[2001:db8::1]:443"]),
    );
    assert!(part.handle(denied("192.0.2.45"), now).is_empty());
    assert!(part.handle(denied("2001:db8::1"), now).is_empty());
    let effects = part.handle(denied("192.0.2.4"), now);
    assert!(matches!(
        effects.first(),
        Some(Effect::Audit(EventKind::Drift { number: 1, .. }))
    ));
}

#[test]
fn a_child_is_trusted_no_further_than_its_parent() {
    let now = Instant::now();
    let mut part = intents();
    let effects = part.handle(IntentEvent::ParentTrust(Trust::Asked), now);
    assert_eq!(effects, [Effect::TellChildrenOfTrust(Trust::Asked)]);
    assert!(
        part.handle(IntentEvent::ParentTrust(Trust::Full), now)
            .is_empty()
    );
    assert_eq!(part.trust(), Trust::Asked);
}

#[test]
fn removals_are_recorded_up_to_a_bound() {
    let now = Instant::now();
    let mut part = intents();
    let removing = || Intent {
        removes: vec!["/home/ann".into(), "relative".into()],
        ..intent("1")
    };
    let effects = part.handle(IntentEvent::Announced(removing()), now);
    assert!(matches!(
        &effects[..],
        [Effect::RecordRemoval { path, .. }, Effect::LookUpNeeds(_)] if path == "/home/ann"
    ));
    for _ in 1..MOST_REMOVALS {
        part.handle(IntentEvent::Announced(removing()), now);
    }
    let effects = part.handle(IntentEvent::Announced(removing()), now);
    assert!(matches!(&effects[..], [Effect::LookUpNeeds(_)]));
}

#[test]
fn denied_calls_are_recorded_up_to_a_bound_and_looked_up_never() {
    let now = Instant::now();
    let mut part = intents();
    let denied = || Intent {
        denied: Some(Box::new(ironcage_model::DeniedCall {
            reason: ironcage_model::ToolReason::Denied {
                tool: "fetch".into(),
            }
            .into(),
            rule: "tools.deny: fetch".into(),
        })),
        ..intent("1")
    };
    for _ in 0..MOST_DENIED {
        let effects = part.handle(IntentEvent::Announced(denied()), now);
        let [Effect::Audit(EventKind::ToolCall(call))] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(call.rule, "tools.deny: fetch");
    }
    assert!(
        part.handle(IntentEvent::Announced(denied()), now)
            .is_empty()
    );
    let effects = part.handle(IntentEvent::Announced(intent("2")), now);
    assert!(matches!(&effects[..], [Effect::LookUpNeeds(_)]));
}
