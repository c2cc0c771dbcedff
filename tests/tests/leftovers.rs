//! A thousand starts, a hundred outside of a full run, leave no process, mount, cgroup, file, key or descriptor behind.
//!
//! It takes an exclusive turn because it looks at the whole host.

use ironcage_tests::{Host, Running, Stage, Who, exclusive, full, tree, wait_until};
use std::path::PathBuf;
use std::time::Duration;

/// A thousand in a full run.
fn starts() -> usize {
    if full() { 1000 } else { 100 }
}

fn many_starts(who: Who) {
    let _turn = exclusive();
    let Some(stage) = Stage::new(who) else {
        return;
    };
    // The first start may make directories that stay: state, cgroup parent.
    stage.sh("true").ok();
    let before = Host::now();
    let runtime = tree(&stage.run_dir());
    for start in 0..starts() {
        let ran = Running::start(&mut stage.cage(&["-q"], &["/bin/true"]))
            .finish(Duration::from_secs(60));
        assert_eq!(ran.code(), 0, "start {start}: {ran:?}");
    }
    let mut left = Vec::new();
    wait_until(Duration::from_secs(30), || {
        left = Host::left_since(&before, starts());
        left.is_empty()
    });
    assert!(left.is_empty(), "left behind: {left:#?}");
    assert_eq!(
        tree(&stage.run_dir()),
        runtime,
        "files in the runtime directory"
    );
    assert_eq!(tree(&stage.home()), [stage.project()], "files in HOME");
    // The record is what is to stay; nothing but it.
    let logs: Vec<PathBuf> = tree(&stage.state())
        .into_iter()
        .filter(|path| path.is_file())
        .collect();
    let records = logs
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .count();
    assert_eq!(records, starts() + 1, "one log for each start");
}

#[test]
fn many_starts_leave_nothing_behind_as_root() {
    many_starts(Who::Root);
}

#[test]
fn many_starts_leave_nothing_behind_as_user() {
    many_starts(Who::User);
}

#[test]
fn what_is_left_behind_is_seen() {
    // The arm that shows that the look at the host can fail.
    let _turn = exclusive();
    let before = Host::now();
    let file = tempfile::Builder::new()
        .prefix("ironcage-left-")
        .tempfile()
        .expect("a file");
    let mut sleeper = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "sleep", "600"])
        .spawn()
        .expect("unshare");
    let seen = wait_until(Duration::from_secs(30), || {
        let left = Host::left_since(&before, starts()).join("\n");
        left.contains("process /proc/") && left.contains(&*file.path().to_string_lossy())
    });
    sleeper.kill().expect("our own child");
    sleeper.wait().expect("our own child");
    assert!(seen, "{:?}", Host::left_since(&before, starts()));
}
