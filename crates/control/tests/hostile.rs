//! The parser meets what nobody would send in good faith: it answers with an error, or with a
//! message that reads back the same; it never panics, hangs or takes more than its bound.
#![forbid(unsafe_code)]

use ironcage_control::frame::{self, FrameError, HEADER, MAX_INLINE, Placement, VERSION};
use ironcage_control::{Bytes, ExecRequest, ExecStreams, Reply, Request, Size};
use ironcage_model::{Ending, SupervisorReason};
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes)
}

fn streams() -> impl Strategy<Value = ExecStreams> {
    prop_oneof![
        any::<bool>().prop_map(|input| ExecStreams::Pipes { input }),
        (any::<u16>(), any::<u16>())
            .prop_map(|(rows, columns)| ExecStreams::Terminal(Size { rows, columns })),
        Just(ExecStreams::Detached),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let exec = (
        prop::collection::vec(bytes(), 0..6),
        prop::collection::vec((bytes(), bytes()), 0..4),
        prop::option::of(bytes()),
        streams(),
    );
    prop_oneof![
        Just(Request::Describe),
        Just(Request::Stats),
        Just(Request::Wait),
        any::<u64>().prop_map(|milliseconds| Request::Stop { milliseconds }),
        exec.prop_map(|(argv, env, cwd, streams)| Request::Exec(ExecRequest {
            argv,
            env,
            cwd,
            streams,
            scope: None,
        })),
        any::<i32>().prop_map(|signal| Request::Signal { signal }),
        Just(Request::Leave),
        Just(Request::Attach),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        any::<u8>().prop_map(|code| Reply::Ended(Ending::Exited { code })),
        any::<u32>().prop_map(|number| Reply::Started { number }),
        any::<i32>().prop_map(|errno| Reply::ExecEnded(Ending::NotExecuted { errno })),
        ".{0,60}".prop_map(|error| Reply::Refused {
            reason: SupervisorReason::RequestInvalid { error }.into()
        }),
        Just(Reply::Stopping),
    ]
}

fn packet<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let mut packet = frame::header(Placement::Inline).to_vec();
    packet.extend(frame::body(message).unwrap_or_default());
    packet
}

fn read<T: serde::de::DeserializeOwned>(packet: &[u8]) -> Result<T, FrameError> {
    match frame::split(packet)? {
        (Placement::Inline, body) => frame::parse(body),
        (Placement::Memory, _) => Err(FrameError::Unsealed),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_sent_is_what_is_read(request in request(), reply in reply()) {
        prop_assert_eq!(read::<Request>(&packet(&request)).expect("its own message"), request);
        prop_assert_eq!(read::<Reply>(&packet(&reply)).expect("its own message"), reply);
    }

    #[test]
    fn random_bytes_are_refused(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read::<Request>(&noise).is_err());
        prop_assert!(read::<Reply>(&noise).is_err());
    }

    #[test]
    fn a_good_header_does_not_make_noise_a_message(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut packet = frame::header(Placement::Inline).to_vec();
        packet.extend(&noise);
        // Noise may be a message by chance only if it reads back as one.
        if let Ok(request) = read::<Request>(&packet) {
            prop_assert!(frame::body(&request).is_ok());
        }
    }

    #[test]
    fn a_message_that_was_damaged_is_an_error_or_another_message(
        request in request(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = packet(&request);
        for (place, value) in changes {
            let place = place.index(packet.len());
            packet[place] = value;
        }
        let _ = read::<Request>(&packet);
        packet.truncate(cut.index(packet.len()));
        // Every body ends with a bracket or a quote that a shorter one lacks.
        if packet.len() < HEADER + 2 {
            prop_assert!(read::<Request>(&packet).is_err());
        } else {
            let _ = read::<Request>(&packet);
        }
    }

    #[test]
    fn a_cut_message_is_refused(request in request(), cut in any::<prop::sample::Index>()) {
        let whole = packet(&request);
        let part = &whole[..cut.index(whole.len())];
        prop_assert!(read::<Request>(part).is_err());
    }

    #[test]
    fn another_version_is_named(version in any::<u16>().prop_filter("another", |v| *v != VERSION)) {
        let mut packet = packet(&Request::Describe);
        packet[2..4].copy_from_slice(&version.to_le_bytes());
        let error = read::<Request>(&packet).expect_err("another version");
        let text = error.to_string();
        prop_assert!(text.contains(&format!("version {version}")) && text.contains("start"), "{}", text);
    }
}

#[test]
fn too_long_is_refused_before_it_is_read_and_the_longest_is_taken() {
    let fits = |length: usize| {
        let body = format!("{:1$}", "\"describe\"", length);
        let mut packet = frame::header(Placement::Inline).to_vec();
        packet.extend(body.into_bytes());
        read::<Request>(&packet)
    };
    assert!(matches!(fits(MAX_INLINE), Ok(Request::Describe)));
    assert!(matches!(fits(MAX_INLINE + 1), Err(FrameError::TooLong)));
}

#[test]
fn nested_brackets_do_not_exhaust_the_stack() {
    for open in ["[", "{\"exec\":"] {
        let body = open.repeat(20_000);
        let mut packet = frame::header(Placement::Inline).to_vec();
        packet.extend(body.into_bytes().into_iter().take(MAX_INLINE));
        assert!(read::<Request>(&packet).is_err());
    }
}

#[test]
fn a_header_that_is_not_known_is_refused() {
    let good = packet(&Request::Describe);
    assert!(read::<Request>(&good).is_ok());
    for (place, value) in [(0, b'X'), (1, b'X'), (4, 2), (5, 1), (6, 1), (7, 1)] {
        let mut packet = good.clone();
        packet[place] = value;
        assert!(read::<Request>(&packet).is_err(), "byte {place}");
    }
}
