//! Leftovers of a sandbox on the stage: processes, mounts, files, queues, cgroups.

use crate::sampler;
use crate::stage::{Stage, sweep};
use std::collections::BTreeSet;
use std::path::Path;

/// Everything that can be left behind, by name.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    things: BTreeSet<String>,
    /// Descriptors of the suite itself.
    descriptors: usize,
}

fn names(directory: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        into.insert(format!("file {}", entry.path().display()));
    }
}

/// What the names of groups of this stage's sandboxes contain: the cage's id for Ironcage, of
/// which others may run on this machine, and the launcher's name for any other.
fn marks(stage: &Stage) -> Vec<String> {
    let mut marks = sweep::cages(&stage.params.home);
    let launcher = stage
        .params
        .launcher
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    if launcher != "ironcage" {
        marks.push(launcher.into_owned());
    }
    marks
}

/// Control groups without a process: those with one may be somebody else's at work.
fn empty_groups(directory: &Path, depth: u32, own: &[String], into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // Other groups come and go with the machine's own work.
        let ours = own.iter().any(|mark| name.contains(mark));
        let processes = std::fs::read_to_string(path.join("cgroup.procs"));
        if ours && processes.is_ok_and(|list| list.is_empty()) {
            into.insert(format!("cgroup {}", path.display()));
        }
        if depth > 0 {
            empty_groups(&path, depth - 1, own, into);
        }
    }
}

/// A process by more than its number, while it is there.
fn described(thing: &str) -> String {
    let Some(pid) = thing.strip_prefix("process ") else {
        return thing.to_owned();
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.splitn(5, ' ').take(4).collect();
    format!(
        "process {}",
        if fields.is_empty() {
            pid.to_owned()
        } else {
            fields.join(" ")
        }
    )
}

impl Inventory {
    /// Takes stock.
    pub(crate) fn take(stage: &Stage) -> Inventory {
        let mut all = BTreeSet::new();
        for pid in sampler::all_processes() {
            all.insert(format!("process {pid}"));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        all.extend(mounts.lines().map(|line| format!("mount {line}")));
        let runtime = stage.layout.runtime.join("ironcage");
        for directory in [
            Path::new("/tmp"),
            Path::new("/dev/shm"),
            &runtime,
            &stage.params.home,
        ] {
            names(directory, &mut all);
        }
        for table in ["shm", "msg", "sem"] {
            let text =
                std::fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap_or_default();
            let ids = text
                .lines()
                .skip(1)
                .filter_map(|line| line.split_whitespace().nth(1));
            all.extend(ids.map(|id| format!("{table} {id}")));
        }
        let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        empty_groups(Path::new("/sys/fs/cgroup"), 4, &marks(stage), &mut all);
        Inventory {
            things: all,
            descriptors,
        }
    }

    /// What is there now and was not before.
    pub(crate) fn added(&self, before: &Inventory) -> Vec<String> {
        let new = self.things.difference(&before.things);
        let mut added: Vec<String> = new.map(|thing| described(thing)).collect();
        if self.descriptors > before.descriptors {
            let more = self.descriptors - before.descriptors;
            added.push(format!("{more} descriptors"));
        }
        added
    }
}
