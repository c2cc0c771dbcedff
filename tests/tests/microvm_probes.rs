//! The containment suite at the level `microvm`, and in the place of QEMU. Each probe boots a machine: a few of them
//! here, every one in a full run.

use crate::microvm::set_up;
use ironcage_tests::{Running, Stage, Who, either, only_in_full};
use serde_json::Value;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(3600);

/// One for files, processes, sockets, the network, system calls, the environment and what is left.
const SHORT: [&str; 7] = [
    "FS-01", "FS-02", "PR-06", "IP-01", "NE-01", "SE-01", "LF-02",
];
/// The same without what takes a process of one's own, which QEMU cannot start.
const AS_VMM: [&str; 9] = [
    "FS-01", "FS-02", "FS-03", "PR-01", "PR-06", "IP-01", "NE-01", "SY-01", "SE-01",
];

/// Surfaces that are open in a guest, and why. No effect is.
const OPEN: &[(&str, &str)] = &[];

fn probe(stage: &Stage, against: &str, names: &[&str]) -> Value {
    let mut command = stage.ironcage(["probe", "run", "--json", "--against", against]);
    // The suite puts its own over it, in a mount namespace of its own.
    let home = match stage.who() {
        Who::Root => "/root",
        Who::User => "/home/ironcage-test",
    };
    command.args(names).env("HOME", home);
    let ran = Running::start(&mut command).finish(DEADLINE);
    serde_json::from_slice(&ran.bytes).unwrap_or_else(|_| panic!("no report: {ran:?}"))
}

/// That nothing got through but the exceptions, each of which is still one.
#[track_caller]
fn holds(report: &Value, every: bool) {
    let rows = report["rows"].as_array().expect("rows");
    assert!(!rows.is_empty());
    let mut wrong = Vec::new();
    for row in rows {
        let (id, verdict) = (
            row["id"].as_str().expect("an id"),
            row["verdict"].as_str().expect("a verdict"),
        );
        let exception = OPEN.iter().any(|(open, _)| *open == id);
        match verdict {
            "open" if exception => assert_eq!(row["kind"], "surface", "{row}"),
            "blocked" | "open-accepted" | "skipped" | "not-discriminating"
                if !exception || !every => {}
            _ => wrong.push(format!("{id}: {verdict}: {}", row["detail"])),
        }
    }
    for item in report["must_work"].as_array().expect("items") {
        if item["works"] == false {
            wrong.push(format!(
                "{} does not work: {}",
                item["name"], item["detail"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

// Each probe boots a machine: one user here, both in a full run.
either! {
    fn probes_in_a_guest_and_in_the_place_of_its_vmm_reach_nothing(stage) {
        if !set_up(stage) {
            return;
        }
        for (against, names) in [("ironcage-microvm", &SHORT[..]), ("ironcage-vmm", &AS_VMM[..])] {
            let report = probe(stage, against, names);
            holds(&report, false);
            let blocked = report["rows"].as_array().expect("rows").iter().filter(|row| row["verdict"] == "blocked");
            assert!(blocked.count() >= names.len() - 1, "{report}");
        }
    }
}

#[test]
fn every_probe_in_a_guest_and_in_the_place_of_its_vmm_reaches_nothing() {
    if !only_in_full() {
        return;
    }
    for who in [Who::Root, Who::User] {
        let Some(stage) = Stage::new(who) else {
            return;
        };
        if !set_up(&stage) {
            return;
        }
        for against in ["ironcage-microvm", "ironcage-vmm"] {
            holds(&probe(&stage, against, &[]), against == "ironcage-microvm");
        }
    }
}
