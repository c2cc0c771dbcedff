//! How an entry of a change differs, and whether the host changed the same meanwhile.

use super::{Entry, Place, Status, Walk};
use crate::content;
use crate::tree::{self, DEEPEST, Kind, Node};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

impl Walk<'_> {
    /// Anything but a directory in the upper layer.
    pub(super) fn judge(&self, place: &Place<'_>, name: &OsStr, kind: Kind, entry: &mut Entry) {
        let judged = match kind {
            Kind::File => self.judge_file(place, name, entry),
            Kind::Socket => {
                entry.obstacle = Some("a socket, which is useless after its program ends".into());
                Ok(())
            }
            Kind::Device => {
                entry.obstacle = Some("a device, which no cage can create".into());
                Ok(())
            }
            _ => {
                if let (Some(before), Some(after)) = (&entry.before, &entry.after)
                    && before.kind == after.kind
                    && before.target != after.target
                {
                    entry.status = Status::Modified;
                }
                Ok(())
            }
        };
        if let Err(error) = judged {
            entry.obstacle = Some(format!("cannot read it: {error}"));
        }
        let differs = !matches!(entry.status, Status::Touched);
        entry.conflict = match (&entry.before, entry.status) {
            (None, _) => self.was_removed(place, &entry.path),
            (Some(_), Status::Type) => self.removal_conflicts(place, name, entry),
            (Some(before), _) => differs && self.moved_on(&entry.path, before),
        };
    }

    pub(super) fn judge_file(
        &self,
        place: &Place<'_>,
        name: &OsStr,
        entry: &mut Entry,
    ) -> io::Result<()> {
        let file = tree::open_file(place.upper, name)?;
        if let Some(name) = tree::foreign_attribute(file.as_fd())? {
            return Err(io::Error::other(format!("unsupported attribute {name}")));
        }
        let (Some(before), Some(after), Some(lower)) = (&entry.before, &entry.after, place.lower)
        else {
            return Ok(());
        };
        if before.kind != Kind::File {
            return Ok(());
        }
        let same =
            before.size == after.size && content::same(&file, &tree::open_file(lower, name)?)?;
        entry.status = if same || self.is_refreshed_index(entry, &file, lower, name)? {
            changed_mode(entry)
        } else {
            Status::Modified
        };
        Ok(())
    }

    /// Whether a git index holds what the real one holds: `git status` writes new times into it,
    /// and alone that is not a change worth keeping. Beside other differences it counts, because
    /// the index is then rebuilt from it.
    pub(super) fn is_refreshed_index(
        &self,
        entry: &Entry,
        upper: &File,
        lower: BorrowedFd<'_>,
        name: &OsStr,
    ) -> io::Result<bool> {
        let index = entry.git.as_deref().map(|git| git.join("index"));
        if !self.first_only || index.as_ref() != Some(&entry.path) {
            return Ok(false);
        }
        let mut upper = upper.try_clone()?;
        io::Seek::rewind(&mut upper)?;
        crate::git::same_index(&upper, &tree::open_file(lower, name)?)
    }

    /// Whether the host changed something since the change began.
    pub(super) fn moved_on(&self, path: &Path, before: &Node) -> bool {
        before.changed >= self.began && !self.known.is_ours(self.layer, path, before)
    }

    /// Whether the host removed what the change has, since the change began. Nothing tells it
    /// from what the agent made new, but git's index, and the time of the directory.
    pub(super) fn was_removed(&self, place: &Place<'_>, path: &Path) -> bool {
        let tracked = self.rules.as_ref().is_some_and(|rules| rules.track(path));
        let above = place.lower.filter(|_| tracked);
        above.is_some_and(|above| Node::of(above).is_ok_and(|node| node.changed >= self.began))
    }

    /// Whether the host changed anything that a removal would take away. Directories count by
    /// what is in them: their own times change with every file that comes and goes.
    pub(super) fn removal_conflicts(&self, place: &Place<'_>, name: &OsStr, entry: &Entry) -> bool {
        let (Some(before), Some(lower)) = (&entry.before, place.lower) else {
            return false;
        };
        if before.kind != Kind::Directory {
            return self.moved_on(&entry.path, before);
        }
        self.tree_moved_on(lower, name, &entry.path).unwrap_or(true)
    }

    pub(super) fn tree_moved_on(
        &self,
        above: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> io::Result<bool> {
        if path.components().count() > DEEPEST {
            return Ok(true);
        }
        let directory = tree::open_directory(above, name)?;
        for inside in tree::names(directory.as_fd())? {
            let path = path.join(&inside);
            let Some(node) = tree::look(directory.as_fd(), &inside)? else {
                continue;
            };
            let moved = if node.kind == Kind::Directory {
                self.tree_moved_on(directory.as_fd(), &inside, &path)?
            } else {
                self.moved_on(&path, &node)
            };
            if moved {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether the mode alone differs, of two that are alike in all else.
pub(super) fn changed_mode(entry: &Entry) -> Status {
    match (&entry.before, &entry.after) {
        (Some(before), Some(after)) if before.mode != after.mode => Status::Mode,
        _ => Status::Touched,
    }
}
