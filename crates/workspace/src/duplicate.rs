//! Copies of a change: snapshots to restore, and forks to continue with.
//!
//! A snapshot is a change that no run continues, with a name in `changes/KEY/snapshots`.
//! Restoring creates a new change from it; the one that was pending before stays.

use crate::apply::Moved;
use crate::apply::staging::{self, Dress};
use crate::change::{Applying, Change, ChangeId, Layer};
use crate::error::{Doing as _, WorkspaceError};
use crate::known;
use crate::store::Store;
use crate::tree::{self, DEEPEST, Kind, Node};
use ironcage_state::remove_tree;
use ironcage_sys::rustix::fs::{
    AtFlags, FileType, Mode, XattrFlags, fsetxattr, linkat, mkdirat, mkfifoat, mknodat, symlinkat,
};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

const SNAPSHOTS: &str = "snapshots";
const LONGEST_NAME: usize = 64;
/// What is being written down of a layer that was in memory.
const WRITTEN: &str = "written";

impl Store {
    fn snapshots(&self, workspace: &Path) -> PathBuf {
        self.of_workspace(workspace).join(SNAPSHOTS)
    }

    /// Keeps the state of a change by a name: the given one, or the next free number.
    ///
    /// # Errors
    /// When the name is taken or none, somebody uses the change, or it cannot be copied.
    pub fn snapshot(&self, change: &Change, name: Option<&str>) -> Result<String, WorkspaceError> {
        let _lock = change.lock()?;
        self.keep(change, name, &mut || None)
    }

    /// The same while a cage works on the change, which must stand still meanwhile. `moved` is
    /// asked once more when all has been copied.
    ///
    /// # Errors
    /// As [`Store::snapshot`]; [`WorkspaceError::Unsteady`] when something in the cage moved:
    /// nothing is kept then.
    pub fn snapshot_running(
        &self,
        change: &Change,
        _applying: &Applying,
        name: Option<&str>,
        moved: &mut Moved<'_>,
    ) -> Result<String, WorkspaceError> {
        self.keep(change, name, moved)
    }

    fn keep(
        &self,
        change: &Change,
        name: Option<&str>,
        moved: &mut Moved<'_>,
    ) -> Result<String, WorkspaceError> {
        let place = self.snapshots(change.workspace());
        let name = match name {
            Some(name) => checked(name)?.to_owned(),
            None => (1_u32..)
                .map(|number| number.to_string())
                .find(|name| place.join(name).symlink_metadata().is_err())
                .unwrap_or_default(),
        };
        let directory = place.join(&name);
        if directory.symlink_metadata().is_ok() {
            return Err(WorkspaceError::SnapshotExists { name });
        }
        copy_change(change, change.id().clone(), &directory, moved)?;
        Ok(name)
    }

    /// The snapshots of a workspace, by name.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub fn list_snapshots(
        &self,
        workspace: &Path,
    ) -> Result<Vec<(String, Change)>, WorkspaceError> {
        let mut found = Vec::new();
        for directory in crate::store::directories(&self.snapshots(workspace))? {
            let name = directory
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            // One without a record is one that is just being made or removed.
            if let Ok(change) = Change::read(&directory) {
                found.push((name, change));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Goes back to a snapshot: it becomes a change, which the next run continues.
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be copied.
    pub fn restore(&self, workspace: &Path, name: &str) -> Result<Change, WorkspaceError> {
        let directory = self.snapshots(workspace).join(checked(name)?);
        if directory.symlink_metadata().is_err() {
            return Err(WorkspaceError::UnknownSnapshot {
                name: name.to_owned(),
            });
        }
        let change = Change::read(&directory)?;
        self.duplicate(&change, &mut || None)
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// When there is none of that name, or the system refuses.
    pub fn remove_snapshot(&self, workspace: &Path, name: &str) -> Result<(), WorkspaceError> {
        if remove_tree(&self.snapshots(workspace), OsStr::new(checked(name)?))? {
            let _ = std::fs::remove_dir(self.snapshots(workspace));
            return Ok(());
        }
        Err(WorkspaceError::UnknownSnapshot {
            name: name.to_owned(),
        })
    }

    /// A second change from the same state, which the next run continues.
    ///
    /// # Errors
    /// When somebody uses the change, or it cannot be copied.
    pub fn fork(&self, change: &Change) -> Result<Change, WorkspaceError> {
        let _lock = change.lock()?;
        self.forked(change, &mut || None)
    }

    /// The same while a cage works on the change, as with [`Store::snapshot_running`].
    ///
    /// # Errors
    /// As there.
    pub fn fork_running(
        &self,
        change: &Change,
        _applying: &Applying,
        moved: &mut Moved<'_>,
    ) -> Result<Change, WorkspaceError> {
        self.forked(change, moved)
    }

    fn forked(&self, change: &Change, moved: &mut Moved<'_>) -> Result<Change, WorkspaceError> {
        let mut copy = self.duplicate(change, moved)?;
        copy.record.fork_of = Some(change.id().clone());
        copy.write()?;
        Ok(copy)
    }

    fn duplicate(&self, change: &Change, moved: &mut Moved<'_>) -> Result<Change, WorkspaceError> {
        let draft = self.draft(change.workspace())?;
        let copy = copy_change(change, draft.id, &draft.directory, moved)?;
        self.make_current(&copy)?;
        Ok(copy)
    }
}

fn checked(name: &str) -> Result<&str, WorkspaceError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.starts_with(['.', '-'])
        && name.chars().all(plain);
    match good {
        true => Ok(name),
        false => Err(WorkspaceError::SnapshotName {
            name: name.to_owned(),
        }),
    }
}

/// Copies a change to a directory that is not there yet. The record comes last: without it the
/// copy is none.
fn copy_change(
    change: &Change,
    id: ChangeId,
    directory: &Path,
    moved: &mut Moved<'_>,
) -> Result<Change, WorkspaceError> {
    if change.in_memory() {
        return Err(WorkspaceError::InMemory {
            id: change.id().clone(),
        });
    }
    crate::store::make_private(directory)?;
    let copied = copy_layers(change, directory);
    let finished = copied.and_then(|layers| {
        if let Some(what) = moved() {
            let id = change.id().clone();
            return Err(WorkspaceError::Unsteady { id, what });
        }
        known::copy(change, directory)?;
        let mut record = change.record.clone();
        record.id = id;
        record.layers = layers;
        record.beside = None;
        record.fork_of = None;
        let copy = Change::new(record, directory.to_owned());
        copy.write()?;
        Ok(copy)
    });
    if finished.is_err()
        && let (Some(above), Some(name)) = (directory.parent(), directory.file_name())
    {
        // A half of a copy is of no use to anybody.
        remove_tree(above, name)?;
    }
    finished
}

impl Change {
    /// Writes down a change that was in memory, when its cage has ended: the upper directories
    /// of its layers, by the real ones that they lie over. All of it, or nothing.
    ///
    /// # Errors
    /// Where one cannot be read, or the disk is full. The change is then what it was: nothing.
    pub fn write_down(&mut self, uppers: &[(PathBuf, PathBuf)]) -> Result<(), WorkspaceError> {
        let mut ready = Vec::new();
        for layer in self.layers() {
            let Some((_, from)) = uppers.iter().find(|(real, _)| *real == layer.real) else {
                continue;
            };
            let place = self.directory().join(&layer.place);
            remove_tree(&place, OsStr::new(WRITTEN))?;
            let beside = place.join(WRITTEN);
            crate::store::make_private(&beside)?;
            copy_tree(from, &beside)?;
            ready.push((beside, layer.upper.clone()));
        }
        for (beside, upper) in ready {
            // It is empty: nothing of the change was on disk.
            std::fs::rename(&beside, &upper).doing("move the copied change to", &upper)?;
        }
        self.set_in_memory(false)
    }
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), WorkspaceError> {
    let source = tree::open_root(from).doing("open", from)?;
    let target = tree::open_root(to).doing("open", to)?;
    let mut copy = Copy {
        top: target.as_fd(),
        linked: HashMap::new(),
    };
    copy.inside(source.as_fd(), target.as_fd(), Path::new(""), 0)
        .doing("copy", from)
}

fn copy_layers(change: &Change, directory: &Path) -> Result<Vec<Layer>, WorkspaceError> {
    let mut layers = Vec::new();
    for layer in change.layers() {
        let place = directory.join(&layer.place);
        let (upper, work) = (place.join("upper"), place.join("work"));
        crate::store::make_private(&upper)?;
        crate::store::make_private(&work)?;
        copy_tree(&layer.upper, &upper)?;
        layers.push(Layer {
            upper,
            work,
            ..layer.clone()
        });
    }
    Ok(layers)
}

struct Copy<'a> {
    top: BorrowedFd<'a>,
    /// Where a file with several names is copied to already.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl Copy<'_> {
    fn inside(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        path: &Path,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(io::Error::other(format!("more than {DEEPEST} levels deep")));
        }
        for name in tree::names(from)? {
            let Some(node) = tree::look(from, &name)? else {
                continue;
            };
            let path = path.join(&name);
            match node.kind {
                _ if node.whiteout => {
                    mknodat(to, &name, FileType::CharacterDevice, Mode::empty(), 0)?
                }
                Kind::Directory => {
                    mkdirat(to, &name, Mode::RWXU)?;
                    let inner = tree::open_directory(from, &name)?;
                    let made = tree::open_directory(to, &name)?;
                    self.inside(inner.as_fd(), made.as_fd(), &path, depth + 1)?;
                }
                Kind::File => self.file(from, to, &name, &node, &path)?,
                Kind::Link => {
                    let target = node.target.as_deref().unwrap_or(Path::new(""));
                    symlinkat(target, to, &name)?;
                    staging::dress_link(to, &name, &Dress::from(&node))?;
                }
                Kind::Pipe => {
                    mkfifoat(to, &name, Mode::from_raw_mode(node.mode & 0o777))?;
                    staging::dress_link(to, &name, &Dress::from(&node))?;
                }
                // Of use only while its program ran, or nothing that a cage can make.
                Kind::Socket | Kind::Device => {}
            }
        }
        if tree::is_opaque(from)? {
            fsetxattr(to, "user.overlay.opaque", b"y", XattrFlags::empty())?;
        }
        staging::dress(from, to, &Dress::from(&Node::of(from)?))
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        node: &Node,
        path: &Path,
    ) -> io::Result<()> {
        if node.links > 1 {
            if let Some(first) = self.linked.get(&node.place)
                && linkat(self.top, first, to, name, AtFlags::empty()).is_ok()
            {
                return Ok(());
            }
            self.linked.insert(node.place, path.to_owned());
        }
        staging::copy_file(from, name, to, name, &Dress::from(node))
    }
}
