//! Evidence of made-up logs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use ironcage_model::EventKind;
use ironcage_report::evidence::{EvidenceReport, Facts, Framework, LogState, Status};
use serde_json::json;

fn facts(events: &[serde_json::Value]) -> Facts {
    let mut facts = Facts::default();
    facts.logs = LogState {
        intact: 1,
        ..LogState::default()
    };
    for event in events {
        facts.add(&serde_json::from_value::<EventKind>(event.clone()).expect("an event"));
    }
    facts
}

fn status(report: &EvidenceReport, id: &str) -> Status {
    let control = report.controls.iter().find(|control| control.id == id);
    control.expect("the control").status
}

#[test]
fn a_control_has_evidence_only_where_its_events_happened() {
    let nothing = EvidenceReport::of(Framework::EuAiAct, facts(&[]), None, 1);
    assert_eq!(status(&nothing, "14(4)(d)"), Status::NoEvents);
    // The allowing arm: the log itself is evidence of record-keeping.
    assert_eq!(status(&nothing, "12(1)"), Status::Evidence);
    assert_eq!(status(&nothing, "14(4)(b)"), Status::NotShown);
    let denied = json!({"event": "question-end", "number": 1, "end": "denied", "asked": 1, "milliseconds": 5});
    let one = EvidenceReport::of(Framework::EuAiAct, facts(&[denied]), None, 1);
    assert_eq!(status(&one, "14(4)(d)"), Status::Evidence);
}

#[test]
fn every_framework_has_controls_with_ids_of_their_own() {
    for framework in Framework::ALL {
        assert_eq!(framework.name().parse::<Framework>(), Ok(framework));
        let report = EvidenceReport::of(framework, facts(&[]), Some(0), 1);
        let mut ids: Vec<_> = report.controls.iter().map(|control| control.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert!(count > 0 && ids.len() == count, "{ids:?}");
    }
    assert!("soc-2".parse::<Framework>().is_err());
}

#[test]
fn a_forged_count_does_not_overflow() {
    let denied = json!({"event": "denied", "syscall": "x", "program": "x", "count": u64::MAX});
    let report = EvidenceReport::of(Framework::Aisvs, facts(&[denied.clone(), denied]), None, 1);
    assert_eq!(status(&report, "9.6.1"), Status::Evidence);
}

#[test]
fn the_ids_of_casf_are_those_of_the_standard() {
    let standard = include_str!("../../../docs/casf/requirements.toml");
    let report = EvidenceReport::of(Framework::Casf, facts(&[]), None, 1);
    for control in &report.controls {
        let line = format!("id = \"{}\"", control.id);
        assert!(
            standard.lines().any(|known| known == line),
            "{}",
            control.id
        );
    }
}
