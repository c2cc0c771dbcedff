//! How many system calls a start makes. Times are the machine's; this number is ours, and it is
//! what keeps a start fast. Only a commit that says why may raise a ceiling.

use ironcage_tests::{Running, Stage, Who};
use std::time::Duration;

/// With a version 1 cgroup for each of three controllers, which takes most calls. The command's
/// own calls, some thirty, are among them. Each directory of the host's `/etc` and each toolchain of
/// the user's that a cage shows takes about five more, so that hosts differ: these leave room for
/// ten of them beyond the 598 and 569 that were counted.
const CEILING_ROOT: u64 = 648;
const CEILING_USER: u64 = 619;
/// What the supervisor does while the command runs takes as many calls as that takes time.
const WHILE_IT_RUNS: &str = "command over";

fn calls_of_a_start(who: Who) -> Option<u64> {
    let stage = Stage::new(who)?;
    let mut command = stage.ironcage(["bench", "start", "--steps", "--runs", "1", "--json"]);
    let ran = Running::start(&mut command).finish(Duration::from_secs(120));
    assert_eq!(ran.code(), 0, "{ran:?}");
    let report: serde_json::Value = serde_json::from_slice(&ran.bytes).expect("a JSON report");
    let calls = |name: &str| report["calls"][name].as_u64().expect("a number");
    let total = calls("launcher") + calls("init") + calls("others");
    assert_eq!(calls("total"), total);
    assert!(calls("init") > 100, "PID 1 was not counted: {report}");
    let steps = report["steps"].as_array().expect("steps");
    let timed = steps
        .iter()
        .filter(|step| step["microseconds"]["median"].is_number());
    assert!(timed.count() > 15, "{report}");
    let mut waiting = steps.iter().filter(|step| step["name"] == WHILE_IT_RUNS);
    let waiting = waiting.next().and_then(|step| step["calls"].as_u64());
    Some(total - waiting.expect("that step"))
}

#[test]
fn a_start_makes_no_more_system_calls_than_it_may_as_root() {
    if let Some(calls) = calls_of_a_start(Who::Root) {
        assert!(
            calls <= CEILING_ROOT,
            "{calls} system calls, at most {CEILING_ROOT}"
        );
    }
}

#[test]
fn a_start_makes_no_more_system_calls_than_it_may_as_user() {
    if let Some(calls) = calls_of_a_start(Who::User) {
        assert!(
            calls <= CEILING_USER,
            "{calls} system calls, at most {CEILING_USER}"
        );
    }
}
