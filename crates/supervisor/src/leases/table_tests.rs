//! The part without a process: which effects follow from which events.

use super::*;
use crate::leases::mechanism::ProxyLease;
use ironcage_model::{Approver, Holders, Right, Scope};

const CLIENT: u64 = 7;

fn lease(number: u32, resource: Resource) -> Lease {
    Lease {
        number,
        resource,
        scope: Scope::Cage,
        term: Term::UntilRevoked,
        uses: Some(2),
        reason: "test".into(),
        origin: LeaseOrigin::Ask,
        approver: Approver::Policy,
    }
}

fn path(path: &str) -> Resource {
    Resource::Path {
        path: path.into(),
        right: Right::Read,
    }
}

fn socket(path: &str) -> (Resource, LeaseMechanism) {
    let mechanism = LeaseMechanism::Proxy {
        serial: 0,
        what: ProxyLease::Socket(path.into()),
    };
    let path = path.into();
    (Resource::Socket { path }, mechanism)
}

/// Adds a lease, and opens it.
fn open(leases: &mut Leases, resource: Resource, mechanism: LeaseMechanism, now: Instant) -> u32 {
    let number = leases.reserve(1);
    let new = NewLease {
        lease: lease(number, resource),
        requester: Requester::Client(CLIENT),
        mechanism,
        opening: Opening {
            identity: None,
            descriptor: None,
        },
        rules: EndingRules::of_cage(Duration::from_secs(1), Holders::Kill),
    };
    let effects = leases.add(new, now);
    let [
        Effect::Audit(EventKind::Lease(_)),
        Effect::LeaseRecorded(recorded),
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!(*recorded, number);
    let effects = leases.handle(number, LeaseEvent::Recorded, now);
    assert_eq!(effects, [Effect::OpenLease(number)]);
    let effects = leases.handle(number, LeaseEvent::Opened, now);
    assert!(
        matches!(
            &effects[..],
            [Effect::Report {
                outcome: RequestOutcome::Granted(_),
                ..
            }]
        ),
        "{effects:?}"
    );
    number
}

fn end(effect: &Effect) -> Option<&LeaseEnd> {
    match effect {
        Effect::Audit(EventKind::LeaseEnd { end, .. }) => Some(end),
        _ => None,
    }
}

#[test]
fn whoever_revokes_a_lease_is_told_after_the_audit_log() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let number = open(&mut leases, path("/srv/a"), LeaseMechanism::Mount, now);
    assert_eq!(leases.revoke(9, Some(number + 1), now).0, 0);
    let (count, effects) = leases.revoke(9, Some(number), now);
    let grace_over = false;
    assert_eq!(count, 1);
    assert_eq!(effects, [Effect::CloseLease { number, grace_over }]);
    assert_eq!(leases.meet(&path("/srv/a/b")), LeaseMatch::Ending);
    let effects = leases.released(number, Progress::Revoked, Vec::new(), now);
    assert_eq!(effects.first().and_then(end), Some(&LeaseEnd::Revoked));
    assert!(matches!(&effects[1..], [Effect::Reply { client: 9, .. }]));
    assert!(!leases.is_any());
    assert_eq!(leases.meet(&path("/srv/a/b")), LeaseMatch::None);
}

#[test]
fn a_lost_helper_kills_the_cage_only_where_it_held_something() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let (resource, mechanism) = socket("/run/a.sock");
    open(&mut leases, resource, mechanism, now);
    assert!(leases.helper_lost(now).is_empty());
    open(&mut leases, path("/srv/a"), LeaseMechanism::Mount, now);
    assert_eq!(leases.helper_lost(now), [Effect::KillCage]);
    let effects = leases.end_with_cage(LeaseEvent::CageKilled, now);
    let ends: Vec<&LeaseEnd> = effects.iter().filter_map(end).collect();
    assert_eq!(ends, [&LeaseEnd::CageKilled, &LeaseEnd::CageKilled]);
}

#[test]
fn what_the_egress_proxy_held_ends_with_it_and_mounts_do_not() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let mount = open(&mut leases, path("/srv/a"), LeaseMechanism::Mount, now);
    let (resource, mechanism) = socket("/run/a.sock");
    open(&mut leases, resource, mechanism, now);
    let effects = leases.proxy_ended(now);
    let close = Effect::CloseSocketProxy("/run/a.sock".into());
    assert_eq!(effects.first(), Some(&close));
    assert_eq!(effects.get(1).and_then(end), Some(&LeaseEnd::Revoked));
    assert_eq!(leases.all().map(|l| l.number).collect::<Vec<_>>(), [mount]);
}

#[test]
fn uses_are_counted_while_a_lease_is_open() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let (resource, mechanism) = socket("/run/a.sock");
    let number = open(&mut leases, resource.clone(), mechanism, now);
    let is_it = |found: &Resource| *found == resource;
    assert!(leases.take_use(is_it));
    assert!(leases.take_use(is_it));
    assert!(!leases.take_use(is_it));
    let (resource, mechanism) = socket("/run/b.sock");
    open(&mut leases, resource.clone(), mechanism, now);
    leases.handle(
        number + 1,
        LeaseEvent::TakenBack {
            cause: LeaseEndCause::Revoked,
        },
        now,
    );
    assert!(!leases.take_use(|found| *found == resource));
}

#[test]
fn who_asked_for_what_cannot_be_opened_is_told_why() {
    let (mut leases, now) = (Leases::default(), Instant::now());
    let number = leases.reserve(1);
    let new = NewLease {
        lease: lease(number, path("/srv/a")),
        requester: Requester::Client(CLIENT),
        mechanism: LeaseMechanism::Mount,
        opening: Opening {
            identity: None,
            descriptor: None,
        },
        rules: EndingRules::of_cage(Duration::from_secs(1), Holders::Kill),
    };
    leases.add(new, now);
    leases.handle(number, LeaseEvent::Recorded, now);
    let reason = ironcage_model::Reason::from(ironcage_model::LeaseReason::PathReplaced);
    let effects = leases.not_opened(number, reason.clone(), now);
    assert_eq!(effects.first().and_then(end), Some(&LeaseEnd::NotOpened));
    let report = Effect::Report {
        requester: Requester::Client(CLIENT),
        outcome: RequestOutcome::Denied { reason },
    };
    assert_eq!(effects.get(1), Some(&report));
}
