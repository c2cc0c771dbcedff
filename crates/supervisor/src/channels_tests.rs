//! The part without a process: which effects follow from which events.

use super::*;
use ironcage_model::CageId;

fn end(size: u32, rate: u32, queue: u32) -> ChannelEnd {
    let (socket, _) = ironcage_control::pair().unwrap();
    let what = ChannelRequest {
        name: "tasks".into(),
        role: ChannelRole::Send,
        peer: CageId::from_entropy([7; 12]),
        schema: "{}".into(),
        size,
        rate,
        queue,
    };
    ChannelEnd::new(1, what, socket)
}

#[test]
fn each_limit_refuses_by_itself_and_the_rate_begins_anew_after_a_minute() {
    let now = Instant::now();
    assert!(end(4, 1, 1).against(4, now).is_none());
    assert!(end(4, 1, 1).against(5, now).is_some());
    let mut full = end(4, 9, 2);
    full.on_the_way = 2;
    assert!(full.against(1, now).is_some());
    full.on_the_way = 1;
    assert!(full.against(1, now).is_none());
    let mut fast = end(4, 2, 9);
    assert!(fast.against(1, now).is_none());
    fast.counted = 2;
    assert!(fast.against(1, now + WINDOW / 2).is_some());
    assert!(fast.against(1, now + WINDOW).is_none());
}

fn facts(id: &CageId) -> Facts<'_> {
    Facts {
        id,
        taint: Taint::NONE,
        now: Instant::now(),
    }
}

fn opened(role: ChannelRole, facts: &Facts<'_>) -> (Channels, Channel) {
    let mut channels = Channels::new(1);
    let (ours, theirs) = ironcage_control::pair().unwrap();
    let event = ChannelEvent::Open {
        client: 7,
        request: ChannelRequest {
            role,
            ..end(10, 2, 2).what
        },
        descriptors: vec![ours.as_fd().try_clone_to_owned().unwrap()],
    };
    let effects = channels.handle(event, facts);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::Audit(EventKind::ChannelOpened { .. }),
                Effect::ReaderSchema { .. },
                Effect::Reply {
                    client: 7,
                    reply: Reply::ChannelChanged
                }
            ]
        ),
        "{effects:?}"
    );
    (channels, theirs)
}

#[test]
fn a_message_is_handed_out_only_when_the_loop_says_so_and_brings_its_taint_first() {
    let id = CageId::from_entropy([1; 12]);
    let facts = facts(&id);
    let (mut channels, theirs) = opened(ChannelRole::Receive, &facts);
    let receive = |ticket| ChannelEvent::Receive {
        ticket,
        name: "tasks".into(),
        waits: true,
    };
    assert!(channels.handle(receive(1), &facts).is_empty());
    let carried = ChannelPacket::Message {
        text: "\"a\"".into(),
        taint: Taint::NONE,
    };
    theirs.send(&carried, &[]).unwrap();
    let serial = 1;
    let effects = channels.handle(ChannelEvent::Ready { serial }, &facts);
    let taint = Taint::NONE;
    let channel = serial;
    assert_eq!(effects, [Effect::DeliverMessage { channel, taint }]);
    // Held back until it is tried again.
    assert!(channels.handle(ChannelEvent::HoldBack, &facts).is_empty());
    let effects = channels.handle(ChannelEvent::TryAgain, &facts);
    assert_eq!(effects, [Effect::DeliverMessage { channel, taint }]);
    let effects = channels.handle(ChannelEvent::Deliver { serial }, &facts);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::TakeOn { .. },
                Effect::Audit(EventKind::Message { .. }),
                Effect::ReplyReader {
                    ticket: 1,
                    reply: ReaderReply::Message { .. }
                }
            ]
        ),
        "{effects:?}"
    );
    // Who waits when the other end goes is told, and the channel is closed.
    channels.handle(receive(2), &facts);
    drop(theirs);
    let effects = channels.handle(ChannelEvent::Ready { serial }, &facts);
    assert!(
        matches!(
            &effects[..],
            [
                Effect::ReplyReader { ticket: 2, .. },
                Effect::Audit(EventKind::ChannelClosed { .. })
            ]
        ),
        "{effects:?}"
    );
}

#[test]
fn a_refused_message_is_recorded_and_does_not_go() {
    let id = CageId::from_entropy([1; 12]);
    let facts = facts(&id);
    let (mut channels, theirs) = opened(ChannelRole::Send, &facts);
    let mismatch = SupervisorReason::MessageType {
        error: "at /".into(),
    };
    let mismatch = Reason::from(mismatch);
    let mut send = |message, bytes| {
        let event = ChannelEvent::Send {
            ticket: 1,
            name: "tasks".into(),
            bytes,
            message,
        };
        match &channels.handle(event, &facts)[..] {
            [
                Effect::Audit(EventKind::Message { verdict, .. }),
                Effect::ReplyReader { .. },
            ] => *verdict,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(send(Ok("1".into()), 11), MessageVerdict::Refused);
    assert_eq!(send(Err(mismatch), 1), MessageVerdict::Refused);
    assert!(theirs.receive::<ChannelPacket>(false).unwrap().is_none());
    assert_eq!(send(Ok("1".into()), 1), MessageVerdict::Sent);
    assert!(theirs.receive::<ChannelPacket>(false).unwrap().is_some());
}

#[test]
fn a_cage_has_as_many_channels_as_its_policy_allows() {
    let id = CageId::from_entropy([1; 12]);
    let facts = facts(&id);
    let (mut channels, _theirs) = opened(ChannelRole::Send, &facts);
    let (ours, _) = ironcage_control::pair().unwrap();
    let event = ChannelEvent::Open {
        client: 7,
        request: ChannelRequest {
            name: "other".into(),
            ..end(10, 2, 2).what
        },
        descriptors: vec![ours.as_fd().try_clone_to_owned().unwrap()],
    };
    let effects = channels.handle(event, &facts);
    assert!(
        matches!(
            &effects[..],
            [Effect::Reply {
                reply: Reply::Refused { .. },
                ..
            }]
        ),
        "{effects:?}"
    );
}
