//! Two hundred cages at once, killed at random: nothing is left, and `ps` tells the truth all the while.
//!
//! It takes an exclusive turn because it fills the host.

use ironcage_tests::{Running, Stage, Who, exclusive, full, tree, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Two hundred in a full run.
fn cages() -> usize {
    if full() { 200 } else { 24 }
}
/// Starts that are under way at once.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(120);

fn ps(stage: &Stage) -> Vec<Value> {
    let mut command = stage.ironcage(["ps", "--json"]);
    let text = Running::start(&mut command).finish(PATIENCE).ok().stdout();
    let mut lines: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    // Root sees its other cages on this host as well.
    let base = stage.base().display().to_string();
    lines.retain(|line| {
        line["workspace"]
            .as_str()
            .is_none_or(|at| at.starts_with(&base))
    });
    lines
}

fn ids(lines: &[Value]) -> BTreeSet<String> {
    let id = |line: &Value| line["id"].as_str().expect("an id").to_owned();
    lines.iter().map(id).collect()
}

fn start_all(stage: &Stage, mark: &str) {
    let mut starting: Vec<Child> = Vec::new();
    for number in 0..cages() {
        if starting.len() == AT_ONCE {
            let first = starting.remove(0).wait_with_output().expect("a start ends");
            assert!(first.status.success(), "start before {number}: {first:?}");
        }
        let mut start = stage.ironcage([
            "run",
            "-q",
            "-d",
            "--memory",
            "64M",
            "--",
            "/bin/sleep",
            mark,
        ]);
        start
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        starting.push(start.spawn().expect("a start"));
    }
    for last in starting {
        let last = last.wait_with_output().expect("a start ends");
        assert!(last.status.success(), "{last:?}");
    }
}

/// How many processes of the host have this word among their arguments.
fn processes(word: &str) -> usize {
    let listed = std::fs::read_dir("/proc")
        .expect("a process list")
        .flatten();
    listed
        .filter(|process| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let mut parts = line.split(|byte| *byte == 0);
            // The cage's own, not the command that starts it.
            parts.next().is_some_and(|name| name.ends_with(b"sleep"))
                && parts.next() == Some(word.as_bytes())
        })
        .count()
}

/// Processes and cgroups of these cages that are still there.
fn left_of(ids: &BTreeSet<String>, mark: &str) -> Vec<String> {
    let mut left = Vec::new();
    let alive = processes(mark);
    if alive > 0 {
        left.push(format!("{alive} processes"));
    }
    let groups = tree(std::path::Path::new("/sys/fs/cgroup"))
        .into_iter()
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            name.strip_prefix("ironcage-")
                .is_some_and(|id| ids.contains(id))
        });
    left.extend(groups.map(|path| path.display().to_string()));
    left
}

/// The same order every time, and none that the code could know.
fn shuffled(mut lines: Vec<Value>) -> Vec<Value> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..lines.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        lines.swap(last, (state % (last as u64 + 1)) as usize);
    }
    lines
}

/// Ends what is left of the crowd when a test fails in the middle: two hundred cages are in the way of the next.
struct Dispersed<'a>(&'a Stage);

impl Drop for Dispersed<'_> {
    fn drop(&mut self) {
        let listed = self.0.ironcage(["ps", "--json"]).output();
        let listed: Vec<Value> = listed
            .ok()
            .and_then(|listed| serde_json::from_slice(&listed.stdout).ok())
            .unwrap_or_default();
        let base = self.0.base().display().to_string();
        let mut stop = self.0.ironcage(["stop", "--time", "0"]);
        let before = stop.get_args().count();
        for line in &listed {
            let workspace = line["workspace"].as_str();
            if let (Some(id), Some(true)) = (
                line["id"].as_str(),
                workspace.map(|at| at.starts_with(&base)),
            ) {
                stop.arg(id);
            }
        }
        if stop.get_args().count() > before {
            // The test has failed already; there is nobody left to tell.
            let _ = stop.output();
        }
    }
}

fn crowd(who: Who) {
    let _turn = exclusive();
    let Some(stage) = Stage::new(who) else {
        return;
    };
    // The first start may make directories that stay.
    stage.sh("true").ok();
    let _dispersed = Dispersed(&stage);
    let mark = format!("{}", 2_000_000 + std::process::id() + stage.uid());
    start_all(&stage, &mark);
    assert_eq!(processes(&mark), cages());
    let mut running = shuffled(ps(&stage));
    assert_eq!(running.len(), cages(), "all are listed");
    assert!(
        running.iter().all(|line| line["status"] == "running"),
        "{running:?}"
    );

    // A third of the supervisors is killed; then the first processes of another third, whose supervisors see it.
    let mut dead = BTreeSet::new();
    for (number, line) in running.drain(..2 * cages() / 3).enumerate() {
        let id = line["id"].as_str().expect("an id").to_owned();
        let victim = if number % 2 == 0 {
            line["supervisor"].as_i64()
        } else {
            let mut inspect = stage.ironcage(["inspect", &id]);
            let text = Running::start(&mut inspect).finish(PATIENCE).ok().stdout();
            let shown: Value = serde_json::from_str(&text).expect("JSON");
            shown["init"].as_i64()
        };
        let victim = victim
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        kill_process(victim.expect("a process"), Signal::KILL).expect("it is there");
        dead.insert(id);
    }
    let rest = ids(&running);
    assert!(
        wait_until(PATIENCE, || ids(&ps(&stage)) == rest),
        "ps shows {:?} beside the living",
        ids(&ps(&stage)).difference(&rest)
    );
    assert!(dead.is_disjoint(&rest));

    let mut stop = stage.ironcage(["stop", "--time", "0"]);
    stop.args(&rest);
    Running::start(&mut stop).finish(PATIENCE).ok();
    assert!(ps(&stage).is_empty());
    // A supervisor that is killed cannot remove its own cgroup; `ps` has done it above.
    let all: BTreeSet<String> = dead.union(&rest).cloned().collect();
    let mut left = Vec::new();
    wait_until(PATIENCE, || {
        left = left_of(&all, &mark);
        left.is_empty()
    });
    assert!(left.is_empty(), "left behind: {left:#?}");
    let files: Vec<_> = tree(&stage.run_dir())
        .into_iter()
        .filter(|path| !path.is_dir())
        .collect();
    assert!(files.is_empty(), "{files:?}");
    let mut remove = stage.ironcage(["rm", "--all"]);
    let removed = Running::start(&mut remove).finish(PATIENCE).ok().stdout();
    assert_eq!(removed.lines().count(), cages());
}

#[test]
fn two_hundred_cages_with_random_kills_leave_nothing_as_root() {
    crowd(Who::Root);
}

#[test]
fn two_hundred_cages_with_random_kills_leave_nothing_as_user() {
    crowd(Who::User);
}
