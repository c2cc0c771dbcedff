//! The group of an init system, in which it makes others.

use super::CgroupError;
use super::group::Group;
use ironcage_sys::rustix::fs::{AtFlags, CWD, Gid, Uid, chownat, unlinkat};
use ironcage_sys::rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What belongs to the owner of a group: the directory, and the files by which processes move and
/// controllers are enabled below it. The limits of the group itself are not among them.
const DELEGATED: [&str; 4] = [
    "",
    "cgroup.procs",
    "cgroup.threads",
    "cgroup.subtree_control",
];
/// How deep groups of groups are removed. An init has some six levels.
pub(super) const DEPTH: u32 = 64;

/// A group that belongs to the init.
#[derive(Debug)]
pub(super) struct InitGroup(Group);

impl InitGroup {
    pub(super) fn make(
        parent: &Path,
        name: &str,
        owner: Option<(u32, u32)>,
    ) -> Result<InitGroup, CgroupError> {
        let group = Group::make(parent, name, "cgroup.procs")?;
        if let Some((uid, gid)) = owner {
            for file in DELEGATED {
                let path = group.path().join(file);
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                match chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => {
                        return Err(CgroupError::Make {
                            path,
                            source: errno.into(),
                        });
                    }
                }
            }
        }
        Ok(InitGroup(group))
    }

    pub(super) fn take_entry(&mut self) -> Option<OwnedFd> {
        self.0.take_entry()
    }

    /// Removes it with the groups that the init left in it.
    pub(super) fn remove(&mut self) -> Result<(), CgroupError> {
        remove_below(self.0.path(), DEPTH);
        self.0.remove()
    }
}

impl Drop for InitGroup {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Removes the groups below a group whose processes are gone. What cannot be removed shows when the
/// group itself cannot.
pub(super) fn remove_below(path: &Path, depth: u32) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    let Ok(entries) = std::fs::read_dir(path) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path(), depth);
            let _ = unlinkat(CWD, entry.path(), AtFlags::REMOVEDIR);
        }
    }
}
