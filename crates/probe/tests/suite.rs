//! The suite tests itself: without a sandbox its probes get through, and in one that is known
//! to be weak some do and some do not.
//!
//! It has a `main` of its own, as the suite starts its program again in other parts.

// The whole file is a test, which clippy does not see as it has its own main.
#![allow(clippy::expect_used)]

use ironcage_probe::{Options, Report, Verdict, role, run_suite, select};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    match words.as_slice() {
        ["--version"] => ExitCode::SUCCESS,
        ["probe", "role", name, ..] => ExitCode::from(role::play(name, &arguments[3..])),
        // For people: `cargo test -p ironcage-probe --test suite -- run none FS PR`.
        ["run", against, names @ ..] => {
            let report = run(against, names, names.is_empty());
            print!("{}", report.table());
            ExitCode::from(u8::from(!report.holds()))
        }
        ["--list", ..] => ExitCode::SUCCESS,
        _ => tests(),
    }
}

fn run(against: &str, names: &[&str], must_work: bool) -> Report {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let chosen = select(&names).expect("known probes");
    let options = Options {
        ids: chosen.iter().map(|probe| probe.id.to_owned()).collect(),
        must_work,
        against: Some(against.to_owned()),
        against_command: None,
        progress: false,
        weakened: false,
    };
    run_suite(&options).expect("a stage")
}

type Test = (&'static str, fn() -> Outcome);

enum Outcome {
    Passed,
    Skipped(&'static str),
}

const TESTS: &[Test] = &[
    (
        "without_a_sandbox_every_class_gets_through",
        without_a_sandbox_every_class_gets_through,
    ),
    ("what_must_work_works_uncaged", what_must_work_works_uncaged),
    (
        "bwrap_with_the_whole_root_bound_leaks_secrets",
        bwrap_with_the_whole_root_bound_leaks_secrets,
    ),
    (
        "a_sandbox_that_starts_nothing_is_not_praised",
        a_sandbox_that_starts_nothing_is_not_praised,
    ),
];

fn tests() -> ExitCode {
    let mut failed = 0;
    for (name, test) in TESTS {
        match std::panic::catch_unwind(test) {
            Ok(Outcome::Passed) => println!("test {name} ... ok"),
            Ok(Outcome::Skipped(why)) => println!("test {name} ... skipped: {why}"),
            Err(_) => {
                failed += 1;
                println!("test {name} ... FAILED");
            }
        }
    }
    ExitCode::from(u8::from(failed > 0))
}

fn verdict(report: &Report, id: &str) -> Verdict {
    let row = report
        .rows
        .iter()
        .find(|row| row.id == id)
        .expect("a row for each probe");
    println!("  {id}: {} ({})", row.finding.verdict, row.finding.detail);
    row.finding.verdict
}

fn without_a_sandbox_every_class_gets_through() -> Outcome {
    // Those that need nothing but an ordinary user and an ordinary kernel.
    let effects = [
        "FS-01", "FS-02", "FS-03", "FS-07", "FS-10", "FS-14", "FS-15", "FS-16", "FS-21", "FS-23",
        "FD-01", "FD-02", "FD-03", "FD-05", "FD-06", "FD-07", "FD-08", "FD-09", "PR-01", "PR-06",
        "PR-08", "PR-12", "IP-01", "IP-02", "IP-03", "IP-04", "IP-06", "NE-01", "NE-02", "NE-03",
        "NE-04", "NE-19", "NE-20", "NE-22", "NE-23", "SE-01", "SE-06", "SE-06d", "PS-01", "PS-02",
        "PS-05", "PS-06", "PS-08", "RS-01", "RS-05", "RS-08", "LF-01", "LF-02", "LF-04", "LF-05",
        "SU-01", "SU-03", "SU-04", "SU-06", "SU-08",
        // What a hostile review found: oracles, negotiated encodings, crowding, modes, special
        // files, git as oracle, drift of lists, exact limits.
        "OR-01", "OR-02", "OR-03", "NG-01", "NG-02", "NG-03", "NE-27", "FS-23b", "FS-25a", "PS-03a",
        "PS-07a", "RS-03m", "RS-04m", // Keys in agents, and upstream proxies.
        "KA-01", "KA-02", "KA-03", "KA-04", "NE-28", "NE-29", // Servers of tools.
        "TO-01", "TO-02", "TO-03", "TO-04", "TO-05", "TO-06", "TO-07", "TO-08", "TO-09", "TO-10",
        "TO-11",
    ];
    let surfaces = ["SY-19", "SY-20", "SE-04", "TT-02"];
    let names: Vec<&str> = effects.iter().chain(&surfaces).copied().collect();
    let report = run("none", &names, false);
    for id in effects {
        assert_eq!(verdict(&report, id), Verdict::Escaped, "{id}");
    }
    for id in surfaces {
        assert_eq!(verdict(&report, id), Verdict::Open, "{id}");
    }
    assert!(!report.holds());
    Outcome::Passed
}

fn what_must_work_works_uncaged() -> Outcome {
    let report = run("none", &["FS-01"], true);
    let works = report
        .must_work
        .iter()
        .filter(|item| item.works == Some(true))
        .count();
    for item in &report.must_work {
        println!("  {}: {:?} {}", item.name, item.works, item.detail);
    }
    assert!(
        works >= 5,
        "threads, pty, loopback, sockets and pipes need no tool"
    );
    Outcome::Passed
}

fn bwrap_with_the_whole_root_bound_leaks_secrets() -> Outcome {
    if !["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"]
        .iter()
        .any(|path| std::path::Path::new(path).exists())
    {
        return Outcome::Skipped("bwrap is not installed");
    }
    let report = run(
        "bwrap",
        &["FS-01", "FS-02", "IP-01", "SE-01", "PR-06", "SY-19"],
        false,
    );
    for escapes in ["FS-01", "IP-01", "SE-01"] {
        assert_eq!(verdict(&report, escapes), Verdict::Escaped, "{escapes}");
    }
    for blocked in ["FS-02", "PR-06", "SY-19"] {
        assert_eq!(verdict(&report, blocked), Verdict::Blocked, "{blocked}");
    }
    Outcome::Passed
}

fn a_sandbox_that_starts_nothing_is_not_praised() -> Outcome {
    let options = Options {
        ids: vec!["FS-01".to_owned()],
        must_work: false,
        against: None,
        against_command: Some("/bin/false {command}".to_owned()),
        progress: false,
        weakened: false,
    };
    let report = run_suite(&options).expect("a stage");
    assert_eq!(verdict(&report, "FS-01"), Verdict::Unknown);
    assert!(!report.holds());
    Outcome::Passed
}
