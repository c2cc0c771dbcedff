//! What a host holds that a cage could leave behind: processes, mounts, cgroups, files, keys, descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What the host holds that a cage could leave behind.
#[derive(Debug)]
pub struct Host {
    processes: BTreeSet<String>,
    mounts: usize,
    cgroups: BTreeSet<PathBuf>,
    interfaces: usize,
    temporary: BTreeSet<PathBuf>,
    open_files: u64,
    keys: usize,
}

impl Host {
    /// What it holds now.
    ///
    /// # Panics
    /// When /proc does not tell.
    pub fn now() -> Self {
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
            .filter(|path| named_after_us(path))
            .collect(),
            open_files: fs::read_to_string("/proc/sys/fs/file-nr")
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .expect("the number of open files"),
            keys: lines("/proc/keys"),
        }
    }

    /// What is here now and was not before. `starts` cages were started in between.
    ///
    /// # Panics
    /// When /proc does not tell.
    pub fn left_since(before: &Host, starts: usize) -> Vec<String> {
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
        if now.open_files > before.open_files + starts as u64 / 2 + 200 {
            left.push(format!(
                "open files: {} before, {} after",
                before.open_files, now.open_files
            ));
        }
        if now.keys > before.keys + starts / 10 + 20 {
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

/// Others use the temporary directories too. Ironcage's names, and those that the tests give, carry its own.
fn named_after_us(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().contains("cage"))
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
    let binary = crate::binary();
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

/// Everything below a directory, sorted; directories come after what is in them.
pub fn tree(below: &Path) -> Vec<PathBuf> {
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
