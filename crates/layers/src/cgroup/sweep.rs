//! Groups whose maker was killed before it could remove them.

use super::init::{DEPTH, remove_below};
use super::{PREFIX, SCOPE};
use ironcage_host::CgroupHost;
use ironcage_model::CageId;
use ironcage_sys::rustix;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use std::path::Path;

/// Removes groups of cages that no longer have a maker, and returns how many. A maker holds a
/// lock on the directory for as long as it lives; the kernel lets go of it with the process.
/// A group with processes in it is left alone.
///
/// Not on the start path: the end of a cage, or `ironcage doctor`, is the time for it.
pub fn sweep(host: &CgroupHost) -> usize {
    match host {
        CgroupHost::V2 { parent, .. } => sweep_below(parent),
        CgroupHost::V1(v1) => v1
            .controllers
            .values()
            .map(|parent| sweep_below(parent))
            .sum(),
        CgroupHost::None { .. } => 0,
    }
}

pub(super) fn sweep_below(parent: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| is_ours(&entry.file_name().to_string_lossy()))
        .filter(|entry| remove_if_orphaned(&entry.path()))
        .count()
}

fn is_ours(name: &str) -> bool {
    let name = name.strip_prefix(PREFIX);
    let id = name.map(|name| name.strip_suffix(SCOPE).unwrap_or(name));
    id.is_some_and(|id| id.parse::<CageId>().is_ok())
}

fn remove_if_orphaned(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) else {
        return false;
    };
    if rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    // An init made some; a group with processes in it stays, and so does what it is in.
    remove_below(path, DEPTH);
    rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR).is_ok()
}
