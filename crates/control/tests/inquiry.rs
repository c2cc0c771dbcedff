//! The words of the ask socket, read from whoever writes them.
#![forbid(unsafe_code)]

use ironcage_control::{
    InquiredThing, Inquiry, InquiryError, InquiryLine, MOST_NAMED, Said, ShellLine,
};
use ironcage_model::Right;
use proptest::prelude::*;
use std::path::Component;

fn inquiry(line: &[u8]) -> Result<Inquiry, InquiryError> {
    match Said::read(line)? {
        Said::Asks(inquiry) => Ok(inquiry),
        Said::Runs(_) => Err(InquiryError::NotOne),
    }
}

#[test]
fn a_shell_names_what_its_command_names_and_no_more() {
    let read = |line: &str| Said::read(line.as_bytes());
    let good = r#"{"shell": {"name": "bash", "reads": ["/a"], "writes": ["/b"], "contacts": [{"host": "a.com"}]}, "wait": 9}"#;
    let Ok(Said::Runs(shell)) = read(good) else {
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
    let many = InquiryLine {
        shell: Some(ShellLine {
            name: "sh".into(),
            reads: vec!["/a".into(); MOST_NAMED + 1],
            ..ShellLine::default()
        }),
        ..InquiryLine::default()
    };
    assert!(Said::read(&serde_json::to_vec(&many).unwrap()).is_err());
}

#[test]
fn a_line_names_one_thing_and_nothing_that_is_not_known() {
    let read = |line: &str| inquiry(line.as_bytes());
    let inquiry = read(r#"{"write": "/srv/a b", "reason": "x", "seconds": 5, "wait": 7}"#).unwrap();
    assert_eq!(inquiry.wait, 7);
    assert_eq!(inquiry.seconds, Some(5));
    assert_eq!(
        inquiry.what,
        InquiredThing::Path {
            path: "/srv/a b".into(),
            right: Right::Write
        }
    );
    assert!(matches!(
        read(r#"{"host": "example.com:443"}"#).unwrap().what,
        InquiredThing::Host(_)
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
        let line = InquiryLine { read, write, host, reason, seconds, wait, ..InquiryLine::default() };
        check(&serde_json::to_vec(&line).unwrap())?;
    }
}

fn check(line: &[u8]) -> Result<(), TestCaseError> {
    match inquiry(line) {
        Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
        Ok(inquiry) => {
            prop_assert!(inquiry.wait <= 86_400 && inquiry.reason.chars().count() <= 500);
            if let InquiredThing::Path { path, .. } = &inquiry.what {
                prop_assert!(path.is_absolute());
                let plain =
                    |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
                prop_assert!(path.components().all(plain));
            }
        }
    }
    Ok(())
}
