//! Where private data meets untrusted content, no way out is given unasked; and what marks a cage
//! never gives it more than it would have without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../plan/tests/made_up/mod.rs"]
mod made_up;

use ironcage_host::Privilege;
use ironcage_lease::{Decision, History, RequestedLease, RequestedResource, decide};
use ironcage_model::{
    Approver, Extent, LeaseOrigin, LimitKind, Mark, Resource, Scope, Taint, Term,
};
use ironcage_plan::{Item, LeasePart, Marking, Plan, UntrustedHost};
use ironcage_policy::FlagLayer;
use made_up::{host, plan_of, request};
use proptest::prelude::*;

fn part(extent: Extent, mark: Mark) -> Item<LeasePart> {
    Item {
        what: LeasePart {
            extent,
            mark,
            bundle: None,
        },
        origin: "test".into(),
    }
}

fn plan(others: Vec<Item<LeasePart>>) -> Plan {
    let (request, host) = (request(), host(Privilege::User));
    let mut plan = plan_of("coding-agent", FlagLayer::default(), &request, &host).unwrap();
    plan.bounds.pids.what.value = 10;
    let leases = plan.leases.as_mut().unwrap();
    leases.paths.clear();
    leases.others = others;
    plan
}

fn item<T>(what: T) -> Item<T> {
    Item {
        what,
        origin: "test".into(),
    }
}

/// A cage that can be given one of each kind, with this mark; a.test is not trusted.
fn marked(mark: Mark, ask: bool) -> Plan {
    let rule = |text: &str| Extent::Host(text.parse().unwrap());
    let mut plan = plan(vec![
        part(rule("a.test"), mark),
        part(rule("b.test"), mark),
        part(Extent::Secret("ONE".into()), mark),
        part(Extent::Socket("/run/a".into()), mark),
        part(Extent::Port("*".parse().unwrap()), mark),
        part(
            Extent::Limit {
                limit: LimitKind::Pids,
                value: 100,
            },
            mark,
        ),
    ]);
    plan.taint = Some(Marking {
        private: Vec::new(),
        untrusted: vec![item(UntrustedHost {
            host: "a.test".parse().unwrap(),
        })],
        ask,
        start: Taint::NONE,
    });
    plan
}

fn resources() -> Vec<Resource> {
    let host = |text: &str| Resource::Host {
        rule: text.parse().unwrap(),
    };
    vec![
        host("a.test"),
        host("b.test"),
        Resource::Secret { name: "ONE".into() },
        Resource::Socket {
            path: "/run/a".into(),
        },
        Resource::Port {
            publish: "22:80".parse().unwrap(),
        },
        Resource::Limit {
            limit: LimitKind::Pids,
            value: 50,
        },
    ]
}

fn decided(
    plan: &Plan,
    resource: &Resource,
    (origin, approved): (LeaseOrigin, bool),
    taint: Taint,
) -> Decision {
    let asked = RequestedLease {
        what: RequestedResource::Other(resource),
        term: Term::UntilRevoked,
        uses: None,
        scope: Scope::Cage,
        origin,
        approved,
    };
    let history = History {
        taint,
        ..History::default()
    };
    decide(plan, &asked, &history)
}

#[test]
fn with_one_of_them_or_unasked_a_way_out_is_given_and_with_both_it_is_asked_for() {
    for (private, untrusted, ask) in [
        (false, false, true),
        (true, false, true),
        (false, true, true),
        (true, true, true),
        (true, true, false),
    ] {
        let plan = marked(Mark::Auto, ask);
        let taint = Taint { private, untrusted };
        for resource in resources() {
            // The untrusted host would bring the second itself.
            let host = matches!(&resource, Resource::Host { rule } if rule.to_string() == "a.test");
            let meets = private && (untrusted || host);
            let decision = decided(&plan, &resource, (LeaseOrigin::Ask, false), taint);
            match ask && meets && resource.leads_out() {
                true => assert!(
                    matches!(decision, Decision::Pending { .. }),
                    "{resource} {decision:?}"
                ),
                false => assert!(
                    matches!(decision, Decision::Granted(_)),
                    "{resource} {decision:?}"
                ),
            }
        }
    }
}

fn any_origin() -> impl Strategy<Value = LeaseOrigin> {
    prop::sample::select(
        &[
            LeaseOrigin::Operator,
            LeaseOrigin::Ask,
            LeaseOrigin::ToolCall,
            LeaseOrigin::Answer,
            LeaseOrigin::Shell,
        ][..],
    )
}

proptest! {
    #[test]
    fn no_way_out_is_given_unasked_where_both_meet_and_nothing_is_given_for_being_marked(
        mark in prop::sample::select(&[Mark::Auto, Mark::Always, Mark::Ask, Mark::Deny][..]),
        ask in any::<bool>(),
        (private, untrusted) in any::<(bool, bool)>(),
        which in 0..6_usize,
        origin in any_origin(),
        approved in any::<bool>(),
    ) {
        let plan = marked(mark, ask);
        let resource = &resources()[which];
        let taint = Taint { private, untrusted };
        let wished = approved || origin == LeaseOrigin::Operator;
        let decision = decided(&plan, resource, (origin, approved), taint);
        let unmarked = decided(&plan, resource, (origin, approved), Taint::NONE);
        let meets = taint.with(plan.taint_of(resource)).meets();
        if let Decision::Granted(given) = &decision {
            let Decision::Granted(without) = &unmarked else {
                return Err(TestCaseError::fail(format!("given for being marked: {resource}")));
            };
            prop_assert_eq!((&given.resource, given.term), (&without.resource, without.term));
            if ask && meets && resource.leads_out() {
                prop_assert!(wished, "given unasked: {}", resource);
                // Else it would be closed as one that nobody has allowed.
                prop_assert_eq!(given.approver, Approver::Operator);
            }
        } else if matches!(&unmarked, Decision::Granted(_)) {
            // The one reason for which it may be taken from it.
            prop_assert!(matches!(&decision, Decision::Pending { .. }), "{:?}", decision);
            prop_assert!(ask && meets && resource.leads_out() && !wished);
        }
    }
}
