//! One case for each way through a life, then rules that hold in every order of events.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use ironcage_model::{Holders, LeaseEnd, LeaseEndCause, Term};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const GRACE: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
const CLOSE: LeaseEffect = LeaseEffect::Close { grace_over: false };
const CLOSE_NOW: LeaseEffect = LeaseEffect::Close { grace_over: true };
const BUSY: LeaseEvent = LeaseEvent::Released(Release::Busy);
const REVOKED: LeaseEvent = LeaseEvent::Released(Release::Revoked);
const TAKE_BACK: LeaseEvent = LeaseEvent::TakenBack {
    cause: LeaseEndCause::Revoked,
};

fn cage(holders: Holders) -> EndingRules {
    EndingRules::of_cage(GRACE, holders)
}

fn open(rules: EndingRules, term: Term, now: Instant) -> LeaseLife {
    let mut life = LeaseLife::requested(rules, term, now);
    assert_eq!(life.handle(LeaseEvent::Decided, now), [LeaseEffect::Record]);
    assert_eq!(life.handle(LeaseEvent::Recorded, now), [LeaseEffect::Open]);
    assert_eq!(life.phase(), LeasePhase::Opening);
    assert_eq!(
        life.handle(LeaseEvent::Opened, now),
        [LeaseEffect::ReportOpen]
    );
    assert_eq!(life.phase(), LeasePhase::Open);
    life
}

fn ended(effects: &[LeaseEffect]) -> Option<(LeaseEnd, LeaseEndCause)> {
    effects.iter().find_map(|effect| match effect {
        LeaseEffect::End { end, cause, .. } => Some((end.clone(), *cause)),
        _ => None,
    })
}

#[test]
fn a_lease_that_nobody_uses_is_revoked_at_once() {
    let now = Instant::now();
    let mut life = open(cage(Holders::Kill), Term::UntilRevoked, now);
    assert_eq!(life.next(), None);
    assert_eq!(life.handle(TAKE_BACK, now), [CLOSE]);
    assert_eq!(life.phase(), LeasePhase::Ending);
    let effects = life.handle(REVOKED, now + SECOND);
    assert_eq!(
        ended(&effects),
        Some((LeaseEnd::Revoked, LeaseEndCause::Revoked))
    );
    assert_eq!(life.phase(), LeasePhase::Over);
}

#[test]
fn a_term_ends_the_lease() {
    let now = Instant::now();
    let mut life = open(cage(Holders::Kill), Term::Milliseconds(1000), now);
    assert_eq!(life.until(), Some(now + SECOND));
    assert!(life.handle(LeaseEvent::Tick, now).is_empty());
    assert_eq!(life.handle(LeaseEvent::Tick, now + SECOND), [CLOSE]);
    let effects = life.handle(REVOKED, now + SECOND);
    assert_eq!(
        ended(&effects),
        Some((LeaseEnd::Revoked, LeaseEndCause::TimeUp))
    );
}

#[test]
fn holders_have_a_grace_then_are_expelled_while_the_cage_stands_still() {
    let mut now = Instant::now();
    let mut life = open(cage(Holders::Kill), Term::UntilRevoked, now);
    assert_eq!(life.handle(TAKE_BACK, now), [CLOSE]);
    let over = now + GRACE;
    let mut tries = 0;
    loop {
        let effects = life.handle(BUSY, now);
        if !effects.is_empty() {
            assert_eq!(effects, [LeaseEffect::Freeze, LeaseEffect::Expel]);
            break;
        }
        assert!(now < over);
        now = life.next().unwrap();
        let grace_over = now >= over;
        let effects = life.handle(LeaseEvent::Tick, now);
        assert_eq!(effects, [LeaseEffect::Close { grace_over }]);
        tries += 1;
    }
    assert!(tries > 10, "{tries}");
    assert!(life.is_expelling());
    let effects = life.handle(REVOKED, now);
    assert_eq!(effects.first(), Some(&LeaseEffect::Resume));
    assert_eq!(
        ended(&effects),
        Some((LeaseEnd::Revoked, LeaseEndCause::Revoked))
    );
}

#[test]
fn what_is_held_after_an_expulsion_ends_with_the_cage() {
    let now = Instant::now();
    let mut life = open(cage(Holders::Kill), Term::UntilRevoked, now);
    life.handle(TAKE_BACK, now);
    life.handle(BUSY, now + GRACE);
    let effects = life.handle(BUSY, now + GRACE);
    assert_eq!(effects, [LeaseEffect::Resume, LeaseEffect::KillCage]);
    let effects = life.handle(LeaseEvent::CageKilled, now + GRACE);
    assert_eq!(
        ended(&effects),
        Some((LeaseEnd::CageKilled, LeaseEndCause::Revoked))
    );
}

#[test]
fn holders_that_are_kept_are_waited_for() {
    let mut now = Instant::now();
    let mut life = open(cage(Holders::Keep), Term::UntilRevoked, now);
    life.handle(TAKE_BACK, now);
    now += GRACE;
    for _ in 0..100 {
        assert_eq!(life.handle(BUSY, now), [LeaseEffect::Leave]);
        assert!(life.handle(BUSY, now).is_empty());
        now = life.next().unwrap();
        assert_eq!(life.handle(LeaseEvent::Tick, now), [CLOSE_NOW]);
    }
    let release = LeaseEvent::Released(Release::ClosedToNewOpens);
    let effects = life.handle(release, now);
    assert_eq!(
        ended(&effects),
        Some((LeaseEnd::ClosedToNewOpens, LeaseEndCause::Revoked))
    );
}

#[test]
fn a_scope_searches_the_cage_for_holders_and_kills_it_where_none_is_found() {
    let mut now = Instant::now();
    let rules = EndingRules::of_scope(Holders::Kill);
    let mut life = open(rules, Term::UntilRevoked, now);
    assert_eq!(life.handle(TAKE_BACK, now), [CLOSE_NOW]);
    let search = LeaseEffect::Search { kill: true };
    assert_eq!(
        life.handle(BUSY, now),
        [LeaseEffect::Freeze, search.clone()]
    );
    let mut rounds = 0;
    loop {
        assert_eq!(life.handle(LeaseEvent::Searched, now), [CLOSE_NOW]);
        rounds += 1;
        let effects = life.handle(BUSY, now);
        if !effects.is_empty() {
            assert_eq!(effects, [LeaseEffect::Resume, LeaseEffect::KillCage]);
            break;
        }
        now = life.next().unwrap();
        let again = life.handle(LeaseEvent::Tick, now);
        assert_eq!(again, std::slice::from_ref(&search));
    }
    assert_eq!(rounds, 20);
}

#[test]
fn a_scope_that_keeps_holders_names_them_and_expels_only_who_writes() {
    let now = Instant::now();
    let rules = EndingRules::of_scope(Holders::Keep);
    let leaving = [LeaseEffect::Search { kill: false }, LeaseEffect::Leave];
    let mut life = open(rules, Term::UntilRevoked, now);
    life.handle(TAKE_BACK, now);
    assert_eq!(life.handle(BUSY, now), leaving);
    let release = LeaseEvent::Released(Release::ClosedToNewOpens);
    assert!(ended(&life.clone().handle(release, now)).is_some());
    let expelling = [LeaseEffect::Freeze, LeaseEffect::Search { kill: true }];
    assert_eq!(life.handle(BUSY, now), expelling);
}

#[test]
fn what_is_taken_back_before_it_is_open_ends_as_soon_as_it_is() {
    let now = Instant::now();
    let mut life = LeaseLife::requested(cage(Holders::Kill), Term::UntilRevoked, now);
    life.handle(LeaseEvent::Decided, now);
    life.handle(LeaseEvent::Recorded, now);
    assert!(life.lasts());
    assert!(life.handle(TAKE_BACK, now).is_empty());
    assert!(!life.lasts());
    let effects = life.handle(LeaseEvent::Opened, now);
    assert_eq!(effects, [LeaseEffect::ReportOpen, CLOSE]);
    assert_eq!(
        ended(&life.handle(REVOKED, now)),
        Some((LeaseEnd::Revoked, LeaseEndCause::Revoked))
    );
}

#[test]
fn a_mechanism_that_is_gone_ends_what_it_held_and_one_that_is_silent_does_not() {
    let now = Instant::now();
    let gone = LeaseEvent::MechanismEnded {
        cause: LeaseEndCause::ProxyEnded,
    };
    let mut life = open(cage(Holders::Kill), Term::UntilRevoked, now);
    let mut silent = life.clone();
    assert_eq!(
        ended(&life.handle(gone, now)),
        Some((LeaseEnd::Revoked, LeaseEndCause::ProxyEnded))
    );
    silent.handle(TAKE_BACK, now);
    let late = silent.next().unwrap();
    let effects = silent.handle(LeaseEvent::Tick, late);
    assert_eq!(effects, [LeaseEffect::GiveUpMechanism]);
    let effects = silent.handle(LeaseEvent::MechanismLost, late);
    assert_eq!(effects, [LeaseEffect::KillCage]);
    let mut life = LeaseLife::requested(cage(Holders::Kill), Term::UntilRevoked, now);
    life.handle(LeaseEvent::Decided, now);
    life.handle(LeaseEvent::Recorded, now);
    assert_eq!(
        ended(&life.handle(gone, now)),
        Some((LeaseEnd::NotOpened, LeaseEndCause::ProxyEnded))
    );
}

fn event() -> impl Strategy<Value = LeaseEvent> {
    prop_oneof![
        1 => Just(LeaseEvent::Decided),
        1 => Just(LeaseEvent::Denied),
        1 => Just(LeaseEvent::Recorded),
        1 => Just(LeaseEvent::Opened),
        1 => Just(LeaseEvent::NotOpened { cause: LeaseEndCause::NotOpened }),
        1 => Just(TAKE_BACK),
        1 => Just(REVOKED),
        1 => Just(LeaseEvent::Released(Release::ClosedToNewOpens)),
        4 => Just(BUSY),
        2 => Just(LeaseEvent::Searched),
        4 => Just(LeaseEvent::Tick),
        1 => Just(LeaseEvent::MechanismEnded { cause: LeaseEndCause::NotOpened }),
        1 => Just(LeaseEvent::MechanismLost),
        1 => Just(LeaseEvent::CageEnded),
        1 => Just(LeaseEvent::CageKilled),
    ]
}

fn rules() -> impl Strategy<Value = EndingRules> {
    let holders = prop_oneof![Just(Holders::Keep), Just(Holders::Kill)];
    (holders, any::<bool>(), 0..3_u64).prop_map(|(holders, scope, grace)| match scope {
        true => EndingRules::of_scope(holders),
        false => EndingRules::of_cage(Duration::from_secs(grace), holders),
    })
}

fn term() -> impl Strategy<Value = Term> {
    prop_oneof![
        Just(Term::UntilRevoked),
        (0..5_000_u64).prop_map(Term::Milliseconds)
    ]
}

/// An event, and how long after the one before it comes, in milliseconds.
type Step = (LeaseEvent, u64);

proptest! {
    #[test]
    fn no_order_of_events_breaks_a_rule(
        rules in rules(),
        term in term(),
        begun in any::<bool>(),
        steps in prop::collection::vec((event(), 0..40_000_u64), 0..60),
    ) {
        let mut now = Instant::now();
        let mut life = LeaseLife::requested(rules, term, now);
        let mut steps: Vec<Step> = steps;
        if begun {
            // Deep enough that the random rest begins with an open lease.
            let first = [LeaseEvent::Decided, LeaseEvent::Recorded, LeaseEvent::Opened];
            steps.splice(0..0, first.map(|event| (event, 0)));
        }
        let (mut recorded, mut opened, mut frozen, mut over) = (false, false, false, false);
        for (event, later) in steps {
            now += Duration::from_millis(later);
            let was_over = over;
            let effects = life.handle(event, now);
            prop_assert!(!over || effects.is_empty(), "{effects:?} after the end");
            for effect in effects {
                match effect {
                    LeaseEffect::Record => {
                        prop_assert!(!recorded, "recorded twice");
                        recorded = true;
                    }
                    LeaseEffect::Open => {
                        prop_assert!(recorded && event == LeaseEvent::Recorded);
                        prop_assert!(!opened, "opened twice");
                        opened = true;
                    }
                    LeaseEffect::ReportOpen => prop_assert!(opened),
                    LeaseEffect::Freeze => {
                        prop_assert!(!frozen, "frozen twice");
                        frozen = true;
                    }
                    LeaseEffect::Resume => frozen = false,
                    LeaseEffect::Expel | LeaseEffect::Search { kill: true } => {
                        prop_assert!(frozen, "killing in a cage that runs");
                    }
                    LeaseEffect::End { end, .. } => {
                        prop_assert!(recorded && !over);
                        over = true;
                        // Only the word of what holds it proves the end of a lease.
                        let by = match end {
                            LeaseEnd::Revoked => matches!(event, REVOKED | LeaseEvent::MechanismEnded { .. }),
                            LeaseEnd::ClosedToNewOpens => {
                                event == LeaseEvent::Released(Release::ClosedToNewOpens)
                            }
                            LeaseEnd::NotOpened => {
                                matches!(event, LeaseEvent::NotOpened { .. } | LeaseEvent::MechanismEnded { .. })
                            }
                            LeaseEnd::CageEnded => event == LeaseEvent::CageEnded,
                            LeaseEnd::CageKilled => event == LeaseEvent::CageKilled,
                        };
                        prop_assert!(by, "{end:?} by {event:?}");
                    }
                    LeaseEffect::Close { .. }
                    | LeaseEffect::Leave
                    | LeaseEffect::Search { kill: false }
                    | LeaseEffect::GiveUpMechanism
                    | LeaseEffect::KillCage => prop_assert!(opened),
                }
            }
            prop_assert_eq!(over, opened && life.phase() == LeasePhase::Over);
            if life.phase() == LeasePhase::Ending {
                prop_assert!(life.next().is_some(), "an end that nothing drives on");
            }
            // With the cage ends whoever stands still in it.
            if over && !was_over && event != LeaseEvent::CageEnded {
                prop_assert!(!frozen, "over, and the cage stands still");
            }
        }
    }

    /// However often holders are found, each lease comes to its end in bounded time where they are not kept.
    #[test]
    fn an_end_that_is_driven_comes_to_an_end(rules in rules(), busy in 0..200_u32) {
        let mut now = Instant::now();
        let mut life = open(rules, Term::UntilRevoked, now);
        let mut left = busy;
        let mut work = life.handle(TAKE_BACK, now);
        let begun = now;
        while life.phase() != LeasePhase::Over {
            let mut next = Vec::new();
            for effect in work {
                let event = match effect {
                    LeaseEffect::Close { .. } | LeaseEffect::Leave | LeaseEffect::Expel => {
                        left = left.saturating_sub(1);
                        if left > 0 { BUSY } else { REVOKED }
                    }
                    LeaseEffect::Search { kill: true } => LeaseEvent::Searched,
                    LeaseEffect::KillCage => LeaseEvent::CageKilled,
                    _ => continue,
                };
                next.extend(life.handle(event, now));
            }
            if next.is_empty() && life.phase() != LeasePhase::Over {
                now = life.next().unwrap();
                next = life.handle(LeaseEvent::Tick, now);
            }
            work = next;
        }
        let limit = match rules.holders {
            Holders::Kill => rules.grace + SECOND,
            Holders::Keep => rules.grace + SECOND * busy,
        };
        prop_assert!(now.duration_since(begun) <= limit, "{:?}", now.duration_since(begun));
    }
}
