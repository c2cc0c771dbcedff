//! Removes what sandboxes leave outside the stage's namespaces when their launcher is killed:
//! control groups, which belong to no namespace.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where Ironcage keeps its records, below the home directory.
pub(crate) const AUDIT: &str = ".local/state/ironcage/audit";

/// Where peers leave the names of their control groups, below the home directory.
pub(crate) const PEER_GROUPS: &str = ".local/state/peer-groups";

/// Names of the control groups of peers that were started on a stage.
fn peers(home: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(home.join(PEER_GROUPS)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Ids of the cages that were started on a stage, by their records.
pub(crate) fn cages(home: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(home.join(AUDIT))
        .into_iter()
        .flatten()
        .flatten();
    let id = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let ids = entries.filter_map(|entry| id(entry.path()));
    ids.filter(|id| id.starts_with('c') && id.len() == 13)
        .collect()
}

fn groups_of(directory: &Path, cages: &[String], depth: u32, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if cages.iter().any(|id| name.ends_with(id.as_str())) {
            into.push(entry.path());
        } else if depth > 0 {
            groups_of(&entry.path(), cages, depth - 1, into);
        }
    }
}

fn remove(group: &Path) -> bool {
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove(&entry.path());
    }
    std::fs::remove_dir(group).is_ok()
}

/// Removes the control groups of the cages and peers that were started on a stage, once its
/// processes are gone.
pub(crate) fn remove_groups(home: &Path) {
    let mut cages = cages(home);
    cages.extend(peers(home));
    if cages.is_empty() {
        return;
    }
    let mut groups = Vec::new();
    groups_of(Path::new("/sys/fs/cgroup"), &cages, 4, &mut groups);
    // The last process of a group may still be on its way out.
    for _ in 0..20 {
        groups.retain(|group| !remove(group));
        if groups.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
