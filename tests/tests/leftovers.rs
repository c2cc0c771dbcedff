//! A thousand starts leave no process, mount, cgroup, file, key or descriptor behind.
//!
//! In a file of its own because it looks at the whole host: the files of `tests/` run one after the other.
#![forbid(unsafe_code)]

use ironcage_tests::{Running, Stage, Who, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

const STARTS: usize = 1000;

/// The two tests look at the same host.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What the host holds that a cage could leave behind.
#[derive(Debug)]
struct Host {
    processes: BTreeSet<String>,
    mounts: usize,
    cgroups: BTreeSet<PathBuf>,
    interfaces: usize,
    temporary: BTreeSet<PathBuf>,
    open_files: u64,
    keys: usize,
}

impl Host {
    fn now() -> Self {
        let mut cgroups = BTreeSet::new();
        directories(Path::new("/sys/fs/cgroup"), &mut cgroups);
        Host {
            processes: strangers(),
            mounts: lines("/proc/self/mountinfo"),
            cgroups,
            interfaces: lines("/proc/net/dev"),
            temporary: [
                std::env::temp_dir(),
                "/tmp".into(),
                "/run".into(),
                "/dev/shm".into(),
            ]
            .iter()
            .flat_map(|place| entries(place))
            .collect(),
            open_files: fs::read_to_string("/proc/sys/fs/file-nr")
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .expect("the number of open files"),
            keys: lines("/proc/keys"),
        }
    }

    /// What is here now and was not before.
    fn left_since(before: &Host) -> Vec<String> {
        let now = Host::now();
        let mut left = Vec::new();
        left.extend(now.processes.difference(&before.processes).cloned());
        left.extend(paths(&now.cgroups, &before.cgroups));
        left.extend(paths(&now.temporary, &before.temporary));
        for (what, now, before) in [
            ("mounts", now.mounts, before.mounts),
            ("interfaces", now.interfaces, before.interfaces),
        ] {
            if now > before {
                left.push(format!("{what}: {before} before, {now} after"));
            }
        }
        // Others on the host open files and make keys too; one of each per start would be far more.
        if now.open_files > before.open_files + STARTS as u64 / 2 {
            left.push(format!(
                "open files: {} before, {} after",
                before.open_files, now.open_files
            ));
        }
        if now.keys > before.keys + STARTS / 10 {
            left.push(format!("keys: {} before, {} after", before.keys, now.keys));
        }
        left
    }
}

fn paths<'a>(
    now: &'a BTreeSet<PathBuf>,
    before: &'a BTreeSet<PathBuf>,
) -> impl Iterator<Item = String> {
    now.difference(before)
        .map(|path| path.display().to_string())
}

fn lines(path: &str) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

fn entries(place: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(place).into_iter().flatten().flatten();
    list.map(|entry| entry.path()).collect()
}

/// Every directory below: a cgroup is a directory.
fn directories(below: &Path, into: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories(&entry.path(), into);
            into.insert(entry.path());
        }
    }
}

/// Processes in another user namespace than ours, and those that run the binary under test, named by pid and start time.
fn strangers() -> BTreeSet<String> {
    let own = fs::read_link("/proc/self/ns/user").expect("our user namespace");
    let binary = ironcage_tests::binary();
    let mut found = BTreeSet::new();
    for entry in entries(Path::new("/proc")) {
        let Ok(namespace) = fs::read_link(entry.join("ns/user")) else {
            continue;
        };
        let ours = fs::read_link(entry.join("exe")).is_ok_and(|exe| exe.starts_with(binary));
        if namespace != own || ours {
            let stat = fs::read_to_string(entry.join("stat")).unwrap_or_default();
            let after_name = stat.rsplit(')').next().unwrap_or_default();
            let born = after_name
                .split_whitespace()
                .nth(19)
                .unwrap_or_default()
                .to_owned();
            found.insert(format!("process {} born {born}", entry.display()));
        }
    }
    found
}

fn thousand_starts(who: Who) {
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let Some(stage) = Stage::new(who) else {
        return;
    };
    // The first start may make directories that stay: state, cgroup parent.
    stage.sh("true").ok();
    let before = Host::now();
    let runtime = tree(&stage.run_dir());
    for start in 0..STARTS {
        let ran = Running::start(&mut stage.cage(&["-q"], &["/bin/true"]))
            .finish(Duration::from_secs(60));
        assert_eq!(ran.code(), 0, "start {start}: {ran:?}");
    }
    let mut left = Vec::new();
    wait_until(Duration::from_secs(30), || {
        left = Host::left_since(&before);
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
    assert_eq!(records, STARTS + 1, "one log for each start");
}

fn tree(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in entries(below) {
        if entry.is_dir() && !entry.is_symlink() {
            found.extend(tree(&entry));
        }
        found.push(entry);
    }
    found.sort();
    found
}

#[test]
fn a_thousand_starts_leave_nothing_behind_as_root() {
    thousand_starts(Who::Root);
}

#[test]
fn a_thousand_starts_leave_nothing_behind_as_user() {
    thousand_starts(Who::User);
}

#[test]
fn what_is_left_behind_is_seen() {
    // The arm that shows that the look at the host can fail.
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poison| poison.into_inner());
    let before = Host::now();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut sleeper = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "sleep", "600"])
        .spawn()
        .expect("unshare");
    let seen = wait_until(Duration::from_secs(30), || {
        let left = Host::left_since(&before).join("\n");
        left.contains("process /proc/") && left.contains(&*file.path().to_string_lossy())
    });
    sleeper.kill().expect("our own child");
    sleeper.wait().expect("our own child");
    assert!(seen, "{:?}", Host::left_since(&before));
}
