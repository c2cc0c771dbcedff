//! CPython's own test suite, outside and inside: what passes outside passes inside, or stands with its reason in
//! `docs/compatibility.md`.
//!
//! Both run at once, as the unprivileged user, each test module in a process of its own. A test that fails inside is
//! run once more alone, because many of them depend on the speed of the machine; only a second failure counts.

use ironcage_tests::{DIRECT, Running, Stage, Who, only_in_full, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3.11";
const LIBRARY: &str = "/usr/lib/python3.11/test";

/// Those that wait the longest come first, so that the others run beside them.
const MODULES: &[&str] = &[
    "test_multiprocessing_spawn",
    "test_asyncio",
    "test_signal",
    "test_subprocess",
    "test_socket",
    "test_threading",
    "test_os",
    "test_posix",
    "test_shutil",
    "test_tempfile",
    "test_pathlib",
    "test_sqlite3",
];

/// The list in docs/compatibility.md stands between this line and the end of its code block.
const LIST: &str = "```text cpython-differences";

/// The run of a suite that hangs is a failure; a suite takes some three minutes.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Skipped,
    Failed,
}

/// Every test case of a report with its verdict. The report is regrtest's, in JUnit's format, and holds no text of others.
fn verdicts(report: &Path) -> BTreeMap<String, Verdict> {
    let Ok(text) = std::fs::read_to_string(report) else {
        return BTreeMap::new();
    };
    let mut verdicts = BTreeMap::new();
    for case in text.split("<testcase ").skip(1) {
        let name = case
            .split("name=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        // An element without a name is a test that began and has no result: it is not among those that passed.
        let Some(name) = name else {
            continue;
        };
        let verdict = if case.contains("<failure") || case.contains("<error") {
            Verdict::Failed
        } else if case.contains("<skipped") {
            Verdict::Skipped
        } else {
            Verdict::Passed
        };
        // Subtests repeat their test's name; the worst of them counts.
        let worst = verdicts.entry(name.to_owned()).or_insert(verdict);
        if verdict == Verdict::Failed {
            *worst = Verdict::Failed;
        }
    }
    verdicts
}

fn suite(report: &Path, modules: &[&str], only: &[&String]) -> Vec<String> {
    let mut words: Vec<String> = [PYTHON, "-m", "test", "-j3", "--timeout=400", "--junit-xml"]
        .map(str::to_owned)
        .to_vec();
    words.push(report.display().to_string());
    for name in only {
        words.push("-m".to_owned());
        words.push((*name).clone());
    }
    words.extend(modules.iter().map(|module| (*module).to_owned()));
    words
}

fn start_outside(stage: &Stage, words: &[String]) -> Running {
    let mut command: Command = stage.outside(&words[0]);
    Running::start(command.args(&words[1..]))
}

fn start_inside(stage: &Stage, words: &[String]) -> Running {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // On the real files, where the report is read.
    let flags = ["--profile", "python", DIRECT[0], DIRECT[1]];
    Running::start(&mut stage.cage(&flags, &words))
}

/// Names of tests with the reason for which each differs, from docs/compatibility.md.
fn documented() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md");
    let text = std::fs::read_to_string(&page).expect("docs/compatibility.md");
    let list = text
        .split(LIST)
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let mut documented = BTreeMap::new();
    for line in list.expect("the list of differences").lines() {
        if let Some((name, reason)) = line.split_once(": ") {
            documented.insert(name.trim().to_owned(), reason.trim().to_owned());
        }
    }
    documented
}

#[test]
fn what_passes_outside_passes_inside_or_is_documented() {
    if !only_in_full() {
        return;
    }
    let Some(stage) = Stage::new(Who::User) else {
        return;
    };
    let (modules, missing): (Vec<&str>, Vec<&str>) = MODULES.iter().partition(|module| {
        Path::new(LIBRARY).join(module).exists()
            || Path::new(LIBRARY).join(format!("{module}.py")).exists()
    });
    if modules.is_empty() {
        skip("libpython3.11-testsuite is not installed; ./scripts/test installs it");
        return;
    }
    if !missing.is_empty() {
        skip(&format!(
            "not in Debian's libpython3.11-testsuite: {}",
            missing.join(" ")
        ));
    }
    let reports =
        ["outside", "inside", "again"].map(|name| stage.project().join(format!("{name}.xml")));
    let outside = start_outside(&stage, &suite(&reports[0], &modules, &[]));
    let inside = start_inside(&stage, &suite(&reports[1], &modules, &[]));
    let inside = inside.finish(DEADLINE);
    let outside = outside.finish(DEADLINE);

    let expected = verdicts(&reports[0]);
    let mut seen = verdicts(&reports[1]);
    let passing = expected
        .values()
        .filter(|verdict| **verdict == Verdict::Passed)
        .count();
    assert!(
        passing > 3000,
        "outside only {passing} tests passed: {outside:?}"
    );

    let differs = |seen: &BTreeMap<String, Verdict>| -> BTreeSet<String> {
        expected
            .iter()
            .filter(|(name, verdict)| {
                **verdict == Verdict::Passed && seen.get(*name) != Some(&Verdict::Passed)
            })
            .map(|(name, _)| name.clone())
            .collect()
    };
    let first = differs(&seen);
    if !first.is_empty() {
        let words = suite(&reports[2], &modules, &first.iter().collect::<Vec<_>>());
        let again = start_inside(&stage, &words).finish(DEADLINE);
        println!("again: {again:?}");
        seen.extend(
            verdicts(&reports[2])
                .into_iter()
                .filter(|(_, verdict)| *verdict == Verdict::Passed),
        );
    }
    let found = differs(&seen);
    let documented = documented();
    let undocumented: Vec<String> = found
        .iter()
        .filter(|name| !documented.contains_key(*name))
        .map(|name| format!("{name}: {:?}", seen.get(name)))
        .collect();
    let untrue: Vec<&String> = documented
        .keys()
        .filter(|name| expected.get(*name) == Some(&Verdict::Passed) && !found.contains(*name))
        .collect();
    println!(
        "{passing} tests passed outside, {} of them not inside",
        found.len()
    );
    assert!(
        undocumented.is_empty(),
        "not in docs/compatibility.md: {undocumented:#?}\n{inside:?}"
    );
    assert!(
        untrue.is_empty(),
        "docs/compatibility.md says that these differ, and they pass: {untrue:#?}"
    );
}
