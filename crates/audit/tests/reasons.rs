//! Reasons in the audit log: with a code since there are codes, and read without one as before.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_model::{Ending, EventKind, LeaseReason, PermissionRequest, Reason, StartCode};
use serde_json::{Value, json};

fn refused(mut fields: Value) -> Reason {
    fields["event"] = json!("lease-refused");
    fields["resource"] = json!({"kind": "host", "rule": "a.com"});
    fields["origin"] = json!("ask");
    match serde_json::from_value(fields).unwrap() {
        EventKind::LeaseRefused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_without_codes_still_reads() {
    let reason = refused(json!({"reason": "outside of the ceiling"}));
    assert_eq!(reason.code(), None);
    assert_eq!(reason.to_string(), "outside of the ceiling");
    let exit = json!({"event": "exit", "ending": "failed", "reason": "no", "milliseconds": 3});
    let EventKind::Exit { ending, .. } = serde_json::from_value(exit).unwrap() else {
        panic!("an exit");
    };
    assert!(matches!(&ending, Ending::Failed { reason } if reason.code().is_none()));
    let message = json!({
        "event": "message", "channel": "c", "from": "c0123456789ab", "to": "c0123456789ac",
        "bytes": 3, "verdict": "sent",
    });
    let message: EventKind = serde_json::from_value(message).unwrap();
    assert!(matches!(message, EventKind::Message { reason: None, .. }));
    let question = json!({
        "number": 1, "resource": {"kind": "host", "rule": "a.com"}, "scope": "cage",
        "term": "until-revoked", "reason": "", "origin": "ask", "because": "it is asked for",
    });
    let question: PermissionRequest = serde_json::from_value(question).unwrap();
    assert_eq!(question.code, None);
}

#[test]
fn a_code_of_another_version_is_kept_with_its_data() {
    let written = json!({
        "reason": "too late", "code": "lease-too-late", "data": {"by": 3, "what": "it"},
    });
    let reason = refused(written.clone());
    assert_eq!(reason.code(), Some("lease-too-late"));
    assert_eq!(serde_json::to_value(&reason).unwrap(), written);
    // The data of a known code that does not fit is not guessed at.
    let odd = refused(json!({"reason": "x", "code": "lease-overlaps", "data": {"lease": "one"}}));
    assert!(matches!(odd, Reason::Recorded { .. }));
}

#[test]
fn a_reason_is_read_as_it_was_written() {
    let lease = Reason::from(LeaseReason::Overlaps {
        lease: 3,
        resource: "write /a\u{1b}b".into(),
    });
    let start = Reason::Start {
        code: StartCode::NoUserNamespace,
        text: "cannot make the namespaces of the cage".into(),
    };
    let unit = Reason::from(LeaseReason::NoCeiling);
    for reason in [lease, start, unit] {
        let written = serde_json::to_value(&reason).unwrap();
        assert_eq!(written["code"].as_str(), reason.code());
        assert_eq!(refused(written), reason);
    }
}
