//! The suite tests itself: probes get through cages that lack what stops them, and a part of the
//! matrix in docs/layer-matrix.md is what comes out.

use ironcage_tests::{Running, Stage, Who, skip};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);

/// One for each part or pair of parts; what depends on the machine (memory, processors, a
/// terminal's setting) is left to the whole matrix.
const PROBES: [&str; 20] = [
    "FS-01", "FS-02", "FS-13", "FD-01", "FD-03", "PR-01", "PR-05", "PR-06", "PR-09", "IP-01",
    "IP-03", "NE-01", "NE-08", "SY-01", "SY-03", "SY-19", "SY-20", "SE-01", "SE-04", "LF-02",
];

#[test]
fn without_what_stops_it_a_probe_gets_through_and_the_matrix_says_what_does() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let version = Running::start(&mut stage.ironcage(["--version"])).finish(DEADLINE);
    if !version.ok().stdout().contains("layers can be disabled") {
        skip("the binary under test is a release build, which leaves nothing out");
        return;
    }
    let mut command = stage.ironcage(["probe", "matrix", "--json"]);
    // The suite puts its own over it, in a mount namespace of its own.
    command.args(PROBES).env("HOME", "/root");
    let ran = Running::start(&mut command).finish(DEADLINE);
    let found: Value = serde_json::from_slice(&ran.bytes).expect("a JSON report");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/layer-matrix.md");
    let documented = std::fs::read_to_string(path).expect("the matrix");
    let lines = found["lines"].as_array().expect("lines");
    assert_eq!(lines.len(), PROBES.len());
    for line in lines {
        let id = line["id"].as_str().expect("an id");
        assert_eq!(line["control"], true, "{id} does not succeed uncaged");
        assert_eq!(line["without"], "through", "{line}");
        let parts = |seen: &str| {
            let alone = line["alone"].as_array().expect("parts").iter();
            let parts = alone.filter(|alone| alone["seen"] == seen);
            let names: Vec<&str> = parts.filter_map(|alone| alone["part"].as_str()).collect();
            names.join(", ")
        };
        let cells = format!("| through | {} | {} |", parts("stopped"), parts("through"));
        let documented = documented
            .lines()
            .find(|row| row.starts_with(&format!("| {id} |")))
            .unwrap_or_else(|| panic!("{id} is not in docs/layer-matrix.md"));
        assert!(documented.ends_with(&cells), "{documented}\nnow {cells}");
    }
    assert_eq!(ran.code(), 0, "{ran:?}");
}

#[test]
fn a_name_that_is_no_part_starts_nothing() {
    let Some(stage) = Stage::new(Who::Root) else {
        return;
    };
    let run = |off: &str| {
        let mut command = stage.cage(&["--quiet"], &["/bin/echo", "ran"]);
        command.env("IRONCAGE_LAYERS_OFF", off);
        Running::start(&mut command).finish(DEADLINE)
    };
    let version = Running::start(&mut stage.ironcage(["--version"])).finish(DEADLINE);
    if !version.ok().stdout().contains("layers can be disabled") {
        assert_eq!(run("nothing-of-the-kind").ok().stdout(), "ran\n");
        return;
    }
    let refused = run("nothing-of-the-kind");
    assert_eq!(refused.code(), 125);
    assert!(!refused.stdout().contains("ran"), "{refused:?}");
    let weakened = run("uts-ns");
    assert_eq!(weakened.code(), 0);
    assert!(
        weakened.stderr.contains("WEAKENED, without uts-ns"),
        "{weakened:?}"
    );
}
