//! The benches run and report what they promise. No number is held against another here:
//! times are the machine's, and a target that is missed is a line in the report.

use ironcage_tests::{Running, Stage, either, skip};
use serde_json::Value;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(300);

fn bench(stage: &Stage, arguments: &[&str]) -> Value {
    let mut command = stage.ironcage(["bench"]);
    command.args(arguments).arg("--json");
    let ran = Running::start(&mut command).finish(DEADLINE);
    assert_eq!(ran.code(), 0, "{ran:?}");
    serde_json::from_slice(&ran.bytes).expect("a JSON report")
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list");
    list.iter()
        .filter_map(|item| item["name"].as_str())
        .collect()
}

fn holds_together(summary: &Value, runs: u64) {
    let of = |key: &str| {
        summary[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {summary}"))
    };
    assert_eq!(summary["runs"], runs);
    assert!(
        0.0 < of("min") && of("min") <= of("median") && of("median") <= of("p99"),
        "{summary}"
    );
}

fn says_where_and_how(report: &Value, command: &str) {
    assert_eq!(report["reproduce"], command);
    for fact in ["kernel", "date", "privilege", "build"] {
        assert!(
            report["host"][fact]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{fact}"
        );
    }
    assert!(report["host"]["cpus"].as_u64().is_some_and(|cpus| cpus > 0));
}

/// One that leaks has one more for each of ten leases at least; a supervisor that is looked at while it works may just
/// have one or two open.
#[track_caller]
fn no_more_descriptors(before: &Value, after: &Value) {
    let count = |held: &Value| held["descriptors"].as_u64().unwrap();
    assert!(count(after) <= count(before) + 2, "{before} {after}");
}

/// `scripts/test` installs AgentDojo there.
const AGENTDOJO: &str = "/var/cache/ironcage-test/agentdojo/bin/python";

either! {
    fn image_measures_starts_and_memory_beside_other_engines(stage) {
        let report = bench(stage, &["image", "--starts", "1", "--runs", "1"]);
        says_where_and_how(&report, "ironcage bench image --starts 1 --runs 1");
        let engines = ["docker", "podman", "systemd-nspawn"];
        let unpacking = ["ironcage image load", "skopeo copy, umoci unpack"];
        let all = [&["start", "start with an image"][..], &engines, &unpacking].concat();
        assert_eq!(names(&report["arms"]), all);
        for arm in report["arms"].as_array().expect("a list") {
            let name = arm["name"].as_str().expect("a name");
            if arm["status"] == "unavailable" {
                // What is not installed, or needs root or a daemon, is said and not left out.
                assert!(engines.contains(&name) && arm["reason"].as_str().is_some_and(|why| !why.is_empty()), "{arm}");
                continue;
            }
            holds_together(&arm["milliseconds"], 1);
            let has_memory = arm["private_megabytes"].as_f64().is_some_and(|size| size > 0.0);
            assert_eq!(has_memory, !unpacking.contains(&name), "{arm}");
        }
        assert_eq!(report["verdicts"].as_array().map(Vec::len), Some(2));
    }

    // No model and no clock takes part, so the numbers of docs/tool-rules-measured.md are exact.
    fn tools_replays_tasks_and_attacks_of_agentdojo_through_the_example_policies(stage) {
        if !std::path::Path::new(AGENTDOJO).exists() {
            skip(&format!("no {AGENTDOJO}: ./scripts/test installs it"));
            return;
        }
        let report = bench(stage, &["tools", "--corpus", "agentdojo", "--python", AGENTDOJO]);
        says_where_and_how(&report, &format!("ironcage bench tools --corpus agentdojo --python {AGENTDOJO}"));
        let page = include_str!("../../docs/tool-rules-measured.md");
        let mut all = [[0, 0]; 5];
        for suite in report["suites"].as_array().expect("suites") {
            let kinds = ["utility", "held_out", "attacks", "pairs", "undefended"];
            let counts = kinds.map(|kind| ["count", "of"].map(|key| suite[kind][key].as_u64().expect("a count")));
            let [_, _, _, pairs, undefended] = counts;
            assert!(pairs[0] < undefended[0], "{suite}");
            let row = counts.map(|[count, of]| format!("{count}/{of}")).join(" | ");
            let row = format!("| {} | {row} |", suite["suite"].as_str().expect("a name"));
            assert!(page.contains(&row), "docs/tool-rules-measured.md has not: {row}");
            for (sum, counts) in all.iter_mut().zip(counts) {
                *sum = [sum[0] + counts[0], sum[1] + counts[1]];
            }
        }
        let [utility, _, _, pairs, undefended] = all;
        assert_eq!([utility[1], pairs[1], undefended[1]], [97, 949, 949]);
        // What a rule refuses is one thing, that there are rules another: without any, every call is refused.
        let empty = stage.aside().join("policies");
        for suite in ["banking", "slack", "travel", "workspace"] {
            stage.write(empty.join(format!("{suite}.toml")), format!("[mcp.{suite}]\nallow = []\n"));
        }
        let none = bench(stage, &["tools", "--python", AGENTDOJO, "--policies", &empty.display().to_string()]);
        for suite in none["suites"].as_array().expect("suites") {
            assert_eq!((&suite["utility"]["count"], &suite["pairs"]["count"]), (&Value::from(0), &Value::from(0)), "{suite}");
        }
    }

    fn calls_measures_a_server_bare_in_a_cage_and_behind_the_gateway(stage) {
        let report = bench(stage, &["calls", "--runs", "20"]);
        says_where_and_how(&report, "ironcage bench calls --runs 20");
        assert_eq!(names(&report["arms"]), ["bare", "caged", "gateway"]);
        for arm in report["arms"].as_array().unwrap() {
            holds_together(&arm["milliseconds"], 20);
            assert!(arm["calls_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{report}");
        }
    }

    fn serve_measures_creations_bursts_and_idle_cages_and_leaves_nothing(stage) {
        let report = bench(stage, &["serve", "--runs", "3", "--burst", "4", "--idle", "3"]);
        says_where_and_how(&report, "ironcage bench serve --runs 3 --burst 4 --idle 3");
        assert_eq!(names(&report["arms"]), ["bare", "bwrap", "docker run", "naive server", "warm", "cold", "exec"]);
        for arm in report["arms"].as_array().unwrap() {
            match arm["reason"].as_str() {
                None => holds_together(&arm["milliseconds"], 3),
                Some(why) => assert!(arm["name"] == "docker run" && !why.is_empty(), "{arm}"),
            }
        }
        for (what, count) in [("bursts", 4), ("sustained", 8)] {
            assert_eq!(names(&report[what]), ["bwrap", "naive server", "service"]);
            for rate in report[what].as_array().unwrap() {
                assert_eq!(rate["count"], count);
                holds_together(&rate["milliseconds"], count);
            }
        }
        assert!(report["idle"]["kilobytes_per_cage"].as_f64().is_some_and(|each| each > 0.0), "{report}");
        assert_eq!(report["verdicts"].as_array().map(Vec::len), Some(3));
        let left = Running::start(&mut stage.ironcage(["ps", "--json"])).finish(DEADLINE).ok();
        assert_eq!(left.stdout().trim(), "[]");
    }

    fn intent_measures_a_run_the_reading_and_the_questions(stage) {
        let report = bench(stage, &["intent", "--runs", "1"]);
        says_where_and_how(&report, "ironcage bench intent --runs 1");
        assert_eq!(names(&report["arms"]), ["bare", "static", "intent"]);
        for arm in report["arms"].as_array().unwrap() {
            holds_together(&arm["milliseconds"], 1);
        }
        let questions = &report["questions"];
        let of = |key: &str| questions[key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"));
        assert!(of("commands") >= 300 && of("plain") > 0 && of("asked") > 0, "{report}");
        assert!(of("asked") <= of("asked_each_time"), "{report}");
    }

    fn leases_measures_each_kind_and_what_is_left(stage) {
        let report = bench(stage, &["leases", "--runs", "5", "--tasks", "1"]);
        says_where_and_how(&report, "ironcage bench leases --runs 5 --tasks 1");
        let leases = ["grant --read", "revoke (read)", "grant --write", "revoke (write)"];
        let others = ["exec", "exec in a scope", "kernel: mount", "kernel: flip to read-only", "kernel: take off"];
        assert_eq!(names(&report["arms"]), [&leases[..], &others[..]].concat());
        assert_eq!(names(&report["task"]), ["bare", "static", "leases"]);
        for arm in report["arms"].as_array().unwrap() {
            holds_together(&arm["microseconds"], 5);
        }
        no_more_descriptors(&report["before"], &report["after"]);
        assert!(report["soak"].is_null(), "{report}");
    }

    fn a_soak_of_leases_leaves_no_descriptor_and_no_mount(stage) {
        let report = bench(stage, &["leases", "--runs", "1", "--tasks", "0", "--soak", "1s", "--rate", "6000/min"]);
        says_where_and_how(&report, "ironcage bench leases --runs 1 --tasks 0 --soak 1s --rate 6000/min");
        let soak = &report["soak"];
        assert!(soak["leases"].as_u64().unwrap() > 0, "{report}");
        no_more_descriptors(&soak["held"][0], &soak["held"][2]);
        assert_eq!(soak["held"][0]["mounts"], soak["held"][2]["mounts"], "{report}");
        assert!(soak["held"][0]["mounts"].as_u64().unwrap() > 0, "{report}");
    }

    fn start_measures_each_arm_or_says_why_not(stage) {
        let report = bench(stage, &["start", "--runs", "3"]);
        says_where_and_how(&report, "ironcage bench start --runs 3 --command /bin/true");
        assert_eq!(names(&report["arms"]), ["bare", "bwrap", "crun", "sandlock", "floor", "ironcage", "direct", "microvm"]);
        let mut measured = Vec::new();
        for arm in report["arms"].as_array().unwrap() {
            if arm["status"] == "measured" {
                holds_together(&arm["milliseconds"], 3);
                measured.push(arm["name"].as_str().unwrap());
            } else {
                assert!(arm["reason"].as_str().is_some_and(|why| !why.is_empty()), "{arm}");
            }
        }
        for needed in ["bare", "floor", "ironcage", "direct"] {
            assert!(measured.contains(&needed), "{report}");
        }
        let verdicts = report["verdicts"].as_array().unwrap().len();
        assert_eq!(verdicts, if measured.contains(&"bwrap") { 12 } else { 0 });
    }

    fn start_of_a_command_that_does_not_exist_is_an_error(stage) {
        let mut command = stage.ironcage(["bench", "start", "--runs", "1", "--command", "/nonexistent"]);
        let ran = Running::start(&mut command).finish(DEADLINE);
        assert_eq!(ran.code(), 125, "{ran:?}");
    }

    fn syscalls_compares_each_call(stage) {
        let report = bench(stage, &["syscalls", "--rounds", "2"]);
        says_where_and_how(&report, "ironcage bench syscalls --rounds 2");
        assert_eq!(names(&report["calls"]), ["getppid", "open+close", "stat", "write", "fork+wait"]);
        for call in report["calls"].as_array().unwrap() {
            assert!(call["bare_ns"].as_f64().unwrap() > 0.0, "{call}");
            assert!(call["caged_ns"].as_f64().unwrap() > 0.0, "{call}");
        }
        assert_eq!(report["verdicts"].as_array().unwrap().len(), 1);
    }

    fn network_report_names_the_ways_and_the_targets(stage) {
        let report = bench(stage, &["network", "--rounds", "1", "--starts", "2"]);
        says_where_and_how(&report, "ironcage bench network --rounds 1 --starts 2");
        let ways = report["arms"].as_array().expect("ways");
        for name in ["bare loopback", "ironcage"] {
            let way = ways.iter().find(|way| way["name"] == name).expect("a way");
            for number in ["one_stream", "many_streams", "connect", "requests_per_second"] {
                assert!(way[number].as_f64() > Some(0.0), "{name} {number}: {report}");
            }
        }
        assert!(report["door_megabytes"].as_f64() > Some(0.0), "{report}");
        assert!(report["verdicts"].as_array().is_some_and(|verdicts| verdicts.len() >= 3), "{report}");
    }

    fn task_is_done_alike_by_each_arm(stage) {
        let report = bench(stage, &["task", "--runs", "1"]);
        says_where_and_how(&report, "ironcage bench task --runs 1");
        let arms = names(&report["arms"]);
        assert!(arms.contains(&"bare") && arms.contains(&"ironcage"), "{report}");
        for arm in report["arms"].as_array().unwrap() {
            holds_together(&arm["milliseconds"], 1);
        }
    }

    fn memory_weighs_every_cage_and_leaves_none(stage) {
        let report = bench(stage, &["memory", "--cages", "3"]);
        says_where_and_how(&report, "ironcage bench memory --cages 3");
        assert_eq!((report["alive"].as_u64(), report["cages"].as_u64()), (Some(3), Some(3)));
        assert_eq!(report["left_behind"], Value::Array(Vec::new()));
        assert!(report["processes_per_cage"].as_f64().unwrap() >= 1.0, "{report}");
        assert!(report["foreign"].as_object().unwrap().is_empty(), "{report}");
    }
}
