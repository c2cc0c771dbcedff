//! The words of the ask socket, read from whoever writes them.
#![forbid(unsafe_code)]

use ironcage_control::{
    CageMessage, CageRequest, CageRequestError, CageRequestKind, CageRequestLine, MOST_NAMED,
    ShellLine,
};
use ironcage_model::Right;
use proptest::prelude::*;
use std::path::Component;

fn cage_request(line: &[u8]) -> Result<CageRequest, CageRequestError> {
    match CageMessage::read(line)? {
        CageMessage::Asks(cage_request) => Ok(cage_request),
        CageMessage::Runs(_) => Err(CageRequestError::NotOne),
    }
}

#[test]
fn a_shell_names_what_its_command_names_and_no_more() {
    let read = |line: &str| CageMessage::read(line.as_bytes());
    let good = r#"{"shell": {"name": "bash", "reads": ["/a"], "writes": ["/b"], "contacts": [{"host": "a.com"}]}, "wait": 9}"#;
    let Ok(CageMessage::Runs(shell)) = read(good) else {
        panic!("it makes sense");
    };
    assert_eq!((shell.wait, shell.reads.len(), shell.open), (9, 1, false));
    for line in [
        r#"{"shell": {"name": "bash", "reads": ["a"]}}"#,
        r#"{"shell": {"name": "bash", "reads": ["/a/../b"]}}"#,
        r#"{"shell": {"name": "", "reads": ["/a"]}}"#,
        r#"{"shell": {"name": "../x"}}"#,
        r#"{"shell": {"name": "bash", "argv": []}}"#,
        r#"{"shell": {"name": "bash"}, "read": "/a"}"#,
        r#"{"shell": {"name": "bash"}, "wait": 99999999}"#,
        r#"{"shell": {"name": "bash"}, "shell": {"name": "bash"}}"#,
    ] {
        assert!(read(line).is_err(), "{line}");
    }
    let many = CageRequestLine {
        shell: Some(ShellLine {
            name: "sh".into(),
            reads: vec!["/a".into(); MOST_NAMED + 1],
            ..ShellLine::default()
        }),
        ..CageRequestLine::default()
    };
    assert!(CageMessage::read(&serde_json::to_vec(&many).unwrap()).is_err());
}

#[test]
fn a_line_names_one_thing_and_nothing_that_is_not_known() {
    let read = |line: &str| cage_request(line.as_bytes());
    let cage_request =
        read(r#"{"write": "/srv/a b", "reason": "x", "seconds": 5, "wait": 7}"#).unwrap();
    assert_eq!(cage_request.wait, 7);
    assert_eq!(cage_request.seconds, Some(5));
    assert_eq!(
        cage_request.what,
        CageRequestKind::Path {
            path: "/srv/a b".into(),
            right: Right::Write
        }
    );
    assert!(matches!(
        read(r#"{"host": "example.com:443"}"#).unwrap().what,
        CageRequestKind::Host(_)
    ));
    for line in [
        "",
        "{}",
        "[]",
        r#"{"read": "/a", "write": "/a"}"#,
        r#"{"read": "/a", "read": "/b"}"#,
        r#"{"read": "/a", "approved": true}"#,
        r#"{"read": "a"}"#,
        r#"{"read": "/a/"}"#,
        r#"{"read": "/a/./b"}"#,
        r#"{"read": "/a/../b"}"#,
        r#"{"read": "//a"}"#,
        r#"{"read": "/a\u0000"}"#,
        r#"{"read": "/a", "seconds": 0}"#,
        r#"{"read": "/a", "wait": 86401}"#,
        r#"{"host": "http://example.com/"}"#,
        r#"{"read": "/a"} {"read": "/b"}"#,
    ] {
        let error = read(line).expect_err(line).to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

proptest! {
    #[test]
    fn no_line_is_read_as_more_than_it_may_be(line in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&line)?;
    }

    #[test]
    fn no_line_of_the_right_shape_is_either(
        read in prop::option::of("\\PC{0,40}"),
        write in prop::option::of("(/[a-c.\\x00-\\x1f]{0,4}){0,6}"),
        host in prop::option::of("[a-z0-9.*:\\[\\]-]{0,30}"),
        reason in "\\PC{0,600}",
        seconds in any::<Option<u64>>(),
        wait in any::<Option<u64>>(),
    ) {
        let line = CageRequestLine { read, write, host, reason, seconds, wait, ..CageRequestLine::default() };
        check(&serde_json::to_vec(&line).unwrap())?;
    }
}

fn check(line: &[u8]) -> Result<(), TestCaseError> {
    match cage_request(line) {
        Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
        Ok(cage_request) => {
            prop_assert!(cage_request.wait <= 86_400 && cage_request.reason.chars().count() <= 500);
            if let CageRequestKind::Path { path, .. } = &cage_request.what {
                prop_assert!(path.is_absolute());
                let plain =
                    |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
                prop_assert!(path.components().all(plain));
            }
        }
    }
    Ok(())
}

#[test]
fn the_agent_reads_the_outcome_of_a_request_in_one_line() {
    use ironcage_control::Answered;
    use ironcage_model::{LeaseOutcome, LeaseReason, LeaseSummary, Reason};
    let summary = LeaseSummary {
        what: "/srv/a for reading".into(),
        lease: 3,
        milliseconds: Some(1000),
    };
    let said = || "why".to_owned();
    let reason = || Reason::from(LeaseReason::ApprovalByRule { said: said() });
    let cases = [
        (
            LeaseOutcome::Granted(summary),
            r#"{"answer":"granted","what":"/srv/a for reading","lease":3,"milliseconds":1000}"#,
        ),
        (
            LeaseOutcome::InBase { reason: reason() },
            r#"{"answer":"had","reason":"why","code":"approval-required-by-rule","data":{"said":"why"}}"#,
        ),
        (
            LeaseOutcome::Pending {
                question: 2,
                reason: reason(),
            },
            r#"{"answer":"pending","question":2,"reason":"why","code":"approval-required-by-rule","data":{"said":"why"}}"#,
        ),
        (
            LeaseOutcome::denied(LeaseReason::DeniedByRule { said: said() }),
            r#"{"answer":"denied","reason":"why","code":"lease-denied-by-rule","data":{"said":"why"}}"#,
        ),
    ];
    for (outcome, line) in cases {
        let answer = Answered::Outcome(outcome);
        assert_eq!(serde_json::to_string(&answer).unwrap(), line);
        assert_eq!(serde_json::from_str::<Answered>(line).unwrap(), answer);
    }
    let sent = serde_json::from_str::<Answered>(r#"{"answer":"sent"}"#).unwrap();
    assert_eq!(sent, Answered::Sent);
    assert!(serde_json::from_str::<Answered>(r#"{"answer":"perhaps"}"#).is_err());
}
