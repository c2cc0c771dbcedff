//! Directories of changes in which there was nothing, and their removal.
//!
//! Most runs leave none but empty directories, eight of them. Where a file system discards freed blocks at
//! once, removing a directory waits for the disk: 50 us when it is idle, tens of milliseconds when
//! it is not. So the end of a run moves them to `emptied/`, where nothing looks for changes, and the
//! next run removes them while its command runs, one at a time.

use crate::store::{Store, directories, make_private};
use ironcage_sys::rustix::fs::{CWD, Mode, RenameFlags, chmod, renameat_with};
use ironcage_sys::rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Beside the directory of the changes, on the same file system.
const EMPTIED: &str = "emptied";
/// The only file in one: the kernel's, in the mark of a volatile overlay (Linux 6.18).
const DIRTY: &str = "dirty";
/// Between the key of a workspace and the ID of its change, neither of which has one.
const SEPARATOR: char = '.';
/// As many are put aside, at most: runs whose commands are over at once remove fewer than they leave.
const MOST: usize = 16;

/// What was put aside, removed step by step.
#[derive(Debug)]
pub struct Emptied {
    changes: PathBuf,
    place: PathBuf,
    /// Directories that are still to be removed, those below another after it; and whether a directory
    /// was looked into. `None` before the first step.
    left: Option<Vec<(PathBuf, bool)>>,
}

impl Store {
    /// What earlier runs have put aside.
    pub fn emptied(&self) -> Emptied {
        Emptied {
            changes: self.changes.clone(),
            place: self.changes.with_file_name(EMPTIED),
            left: None,
        }
    }
}

impl Emptied {
    /// Whether one more may be put aside.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.left.is_none() {
            self.step();
        }
        let left = self.left.iter().flatten();
        let changes = left.filter(|(path, _)| self.is_change(path));
        changes.count() < MOST
    }

    fn is_change(&self, path: &Path) -> bool {
        path.parent() == Some(&self.place)
    }

    /// Does one step, of a few system calls. Returns whether there is another. What cannot be removed
    /// stays: the next run tries again.
    pub fn step(&mut self) -> bool {
        let Some(left) = &mut self.left else {
            let found = directories(&self.place).unwrap_or_default();
            let more = !found.is_empty();
            self.left = Some(found.into_iter().map(|path| (path, false)).collect());
            return more;
        };
        let Some((path, looked)) = left.pop() else {
            return false;
        };
        if !looked {
            // Its own entries first.
            let below = below(&path);
            left.push((path, true));
            left.extend(below.into_iter().map(|path| (path, false)));
            return true;
        }
        let removed = std::fs::remove_dir(&path);
        if removed.is_ok() && self.is_change(&path) {
            // The place of its workspace, where no other change is.
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some((key, _)) = name.and_then(|name| name.split_once(SEPARATOR)) {
                let _ = std::fs::remove_dir(self.changes.join(key));
            }
        }
        self.left.as_ref().is_some_and(|left| !left.is_empty())
    }
}

/// The directories in one that was put aside, from which the kernel's file is removed. Nothing else is:
/// what holds another file stays.
fn below(path: &Path) -> Vec<PathBuf> {
    // The kernel makes some for nobody, which keeps all but root out.
    let list = || directories(path);
    let found = match list() {
        Err(_) => chmod(path, Mode::RWXU).ok().and_then(|()| list().ok()),
        Ok(found) => Some(found),
    };
    if path.ends_with("volatile") {
        let _ = std::fs::remove_file(path.join(DIRTY));
    }
    found.unwrap_or_default()
}

/// Puts the directory of a change aside: `true` where it is no longer among the changes.
pub(crate) fn put_aside(changes: &Path, directory: &Path) -> bool {
    let mut names = directory.iter().rev().filter_map(|name| name.to_str());
    let (Some(id), Some(key)) = (names.next(), names.next()) else {
        return false;
    };
    let emptied = changes.with_file_name(EMPTIED);
    let aside = emptied.join(format!("{key}{SEPARATOR}{id}"));
    let rename = || renameat_with(CWD, directory, CWD, &aside, RenameFlags::NOREPLACE);
    match rename() {
        Err(Errno::NOENT) => make_private(&emptied).is_ok() && rename().is_ok(),
        renamed => renamed.is_ok(),
    }
}
