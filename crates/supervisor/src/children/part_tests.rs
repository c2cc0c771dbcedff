//! The part without a process: the test is the child's supervisor, at the other end of its socket.

use super::super::parent_link::ChildAnnouncement;
use super::*;
use ironcage_control::pair;

const TICKET: u64 = 5;

fn id(byte: u8) -> CageId {
    CageId::from_entropy([byte; 12])
}

fn start(part: &mut Children, ticket: u64) -> Channel {
    let (ours, theirs) = pair().unwrap();
    // Waiting for what is not a process ends at once, without a status.
    let pidfd = std::fs::File::open("/dev/null").unwrap().into();
    let event = ChildEvent::Started {
        ticket,
        channel: ours,
        pidfd,
    };
    assert!(part.handle(event, Instant::now()).is_empty());
    theirs
}

fn says(part: &mut Children, child: &Channel, ticket: u64, message: &FromChild) -> Vec<Effect> {
    child.send(message, &[]).unwrap();
    part.handle(ChildEvent::Message(ticket), Instant::now())
}

fn announce(number: u8, children: u32) -> FromChild {
    FromChild::Announce(ChildAnnouncement {
        id: id(number),
        command: vec!["sh".into()],
        workspace: "direct".into(),
        children,
    })
}

fn hears(child: &Channel) -> Option<ToChild> {
    match child.receive::<ToChild>(false).unwrap() {
        Some(Packet::Message(message, _)) => Some(message),
        _ => None,
    }
}

#[test]
fn a_child_is_logged_before_it_may_run() {
    let mut part = Children::new(2);
    let child = start(&mut part, TICKET);
    assert!(part.is_one_being_made() && !part.is_full());
    let effects = says(&mut part, &child, TICKET, &announce(1, 1));
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::ChildOpened { .. }),
                Effect::AdmitChild(TICKET)
            ]
        ),
        "{effects:?}"
    );
    assert!(hears(&child).is_none());
    let inherited = InheritedHistory::default();
    let admitted = ChildEvent::Admitted {
        ticket: TICKET,
        inherited,
    };
    part.handle(admitted, Instant::now());
    assert!(matches!(hears(&child), Some(ToChild::Done(_))));
    // It takes a place, and one for the child that it may have.
    assert!(part.is_full() && part.ids() == [id(1)]);
}

#[test]
fn more_grandchildren_than_there_are_places_for_are_denied() {
    let mut part = Children::new(2);
    let child = start(&mut part, TICKET);
    assert!(says(&mut part, &child, TICKET, &announce(1, 2)).is_empty());
    assert!(matches!(hears(&child), Some(ToChild::No { .. })));
    assert!(part.ids().is_empty());
}

#[test]
fn what_a_child_has_and_does_counts_as_its_parents() {
    let mut part = Children::new(2);
    let child = start(&mut part, TICKET);
    says(&mut part, &child, TICKET, &announce(1, 0));
    let taint = Taint {
        private: true,
        untrusted: false,
    };
    let effects = says(&mut part, &child, TICKET, &FromChild::Tainted(taint));
    assert!(matches!(&effects[..], [Effect::TakeOn { taint: taken, .. }] if *taken == taint));
    let effects = says(&mut part, &child, TICKET, &FromChild::Asked);
    let from = TICKET;
    assert_eq!(effects, [Effect::CountRequests { times: 1, from }]);
    let effects = says(&mut part, &child, TICKET, &FromChild::Differed("x".into()));
    assert!(matches!(&effects[..], [Effect::CountDrift(what)] if what.ends_with(": x")));
}

#[test]
fn others_hear_that_a_person_was_asked_and_who_said_so_does_not() {
    let mut part = Children::new(2);
    let (one, other) = (start(&mut part, 1), start(&mut part, 2));
    says(&mut part, &one, 1, &announce(1, 0));
    says(&mut part, &other, 2, &announce(2, 0));
    let event = ChildEvent::Requested {
        times: 3,
        except: Some(1),
    };
    part.handle(event, Instant::now());
    assert!(hears(&one).is_none());
    assert!(matches!(hears(&other), Some(ToChild::Asked(3))));
}

#[test]
fn what_a_child_said_last_is_heard_and_its_end_is_logged_before_it_is_told() {
    let mut part = Children::new(2);
    let child = start(&mut part, TICKET);
    says(&mut part, &child, TICKET, &announce(1, 0));
    child.send(&FromChild::Asked, &[]).unwrap();
    drop(child);
    let effects = part.handle(ChildEvent::Exited(TICKET), Instant::now());
    assert!(
        matches!(
            &effects[..],
            [
                Effect::UncountChild(_),
                Effect::CountRequests { times: 1, .. },
                Effect::TakeOn {
                    taint: Taint::NONE,
                    ..
                },
                Effect::Audit(EventKind::ChildEnded { .. }),
                Effect::ReplyReader {
                    ticket: TICKET,
                    reply: ReaderReply::Ended { .. }
                },
            ]
        ),
        "{effects:?}"
    );
    assert!(!part.is_any());
}

#[test]
fn a_denied_child_is_logged_and_told_and_a_flood_of_them_only_told() {
    let mut part = Children::new(2);
    let now = Instant::now();
    let denied = || ChildEvent::Denied {
        ticket: TICKET,
        reason: SupervisorReason::NoChildren.into(),
    };
    let effects = part.handle(denied(), now);
    assert!(matches!(
        &effects[..],
        [
            Effect::Audit(EventKind::ChildRefused { .. }),
            Effect::DenyChild { ticket: TICKET, .. }
        ]
    ));
    for _ in 1..MOST_RECORDED {
        part.handle(denied(), now);
    }
    let effects = part.handle(denied(), now);
    assert!(matches!(&effects[..], [Effect::DenyChild { .. }]));
    assert_eq!(part.unrecorded(), 1);
}
