//! Puts staged versions in their places, one rename each.
//!
//! The host may change the tree meanwhile. The file that a rename replaced is examined
//! again afterwards: if it is not what was planned to be replaced, it goes back.
//!
//! Where root applies in a tree of another user's, that user can put a directory of somebody else's
//! in the place of his own at any moment. So nothing goes into a directory, and no directory is
//! given away or opened up, whose owner is another than the agent's version has.

use super::journal::{Action, FileStamp, Journal, Step};
use super::staging;
use crate::Change;
use crate::differences::Roots;
use crate::tree::{self, DEEPEST, Kind, Node};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{Mode, RenameFlags, mkdirat, renameat_with};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::geteuid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const MOVED_ON: &str = "it changed in the real tree while it was applied";
const ANOTHER_OWNER: &str = "a directory of another user has taken its place in the real tree";

/// Carries out every step that has not been yet. What cannot be done is held, with the reason.
pub(crate) fn land(change: &Change, roots: &Roots, journal: &mut Journal) {
    // Directories that were not made or not taken away, with all that goes into them.
    let mut held: HashSet<(usize, PathBuf)> = HashSet::new();
    for (number, planned) in journal.steps.iter_mut().enumerate() {
        let layer = planned.layer;
        let below_held = planned
            .path
            .ancestors()
            .any(|above| held.contains(&(layer, above.to_owned())));
        if below_held && planned.held.is_none() {
            planned.held = Some("what it lies in was not applied".into());
        }
        if planned.held.is_none() {
            step();
            let landing = Landing {
                change,
                roots,
                planned,
                number,
            };
            planned.held = match landing.carry_out() {
                Ok(why) => why.map(str::to_owned),
                Err(error) => Some(error.to_string()),
            };
        }
        if planned.held.is_some()
            && matches!(
                planned.action,
                Action::MakeDirectory | Action::Remove { .. }
            )
        {
            held.insert((layer, planned.path.clone()));
        }
    }
    step();
    finish(roots, journal);
}

struct Landing<'a> {
    change: &'a Change,
    roots: &'a Roots,
    planned: &'a Step,
    number: usize,
}

impl Landing<'_> {
    /// Does one step; says why it was not done.
    fn carry_out(&self) -> io::Result<Option<&'static str>> {
        let path = &self.planned.path;
        let root = self.roots.real(self.planned.layer)?;
        let name = path.file_name().unwrap_or_default();
        let above = || self.open_above();
        match &self.planned.action {
            Action::Finish | Action::Forget => Ok(None),
            Action::MakeDirectory => {
                let above = above()?;
                match mkdirat(&above, name, Mode::RWXU) {
                    Ok(()) => {}
                    // Made before we were killed, or by the host: then what is in it joins.
                    Err(Errno::EXIST) => {
                        let there = tree::look(above.as_fd(), name)?;
                        if there.is_none_or(|node| node.kind != Kind::Directory) {
                            return Ok(Some(MOVED_ON));
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
                self.give_away(above.as_fd(), name)
            }
            Action::Put { replaces, staged } => {
                let Some(staged) = staged else {
                    return Ok(Some("it was not staged"));
                };
                let staging = staging::open(root, self.change.id())?;
                self.put(
                    above()?.as_fd(),
                    name,
                    staging.as_fd(),
                    *staged,
                    replaces.as_ref(),
                )
            }
            Action::Remove { seen } => {
                let staging = staging::open(root, self.change.id())?;
                self.take(above()?.as_fd(), name, staging.as_fd(), seen)
            }
        }
    }

    /// The directory that something goes into or leaves.
    fn open_above(&self) -> io::Result<OwnedFd> {
        let path = self.planned.path.parent().unwrap_or(Path::new(""));
        let above = tree::open_below(self.roots.real(self.planned.layer)?, path)?;
        if geteuid().is_root() {
            let agents = tree::open_below(self.roots.upper(self.planned.layer)?, path)?;
            if Node::of(&above)?.owner.0 != Node::of(&agents)?.owner.0 {
                return Err(io::Error::other(ANOTHER_OWNER));
            }
        }
        Ok(above)
    }

    /// Gives a directory that root has just made to who is to have it. One with something in it was
    /// not made here.
    fn give_away(&self, above: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<&'static str>> {
        let Some(dress) = self.planned.finish.filter(|_| geteuid().is_root()) else {
            return Ok(None);
        };
        let made = tree::open_directory(above, name)?;
        if dress.is_owner_of(&Node::of(&made)?) {
            return Ok(None);
        }
        if !tree::names(made.as_fd())?.is_empty() {
            return Ok(Some(ANOTHER_OWNER));
        }
        dress.give(made.as_fd())?;
        Ok(None)
    }

    fn put(
        &self,
        above: BorrowedFd<'_>,
        name: &OsStr,
        staging: BorrowedFd<'_>,
        staged: (u64, u64),
        replaces: Option<&FileStamp>,
    ) -> io::Result<Option<&'static str>> {
        let from = staging::of_step(self.number);
        let from = OsStr::new(&from);
        let still_staged = tree::look(staging, from)?.is_some_and(|node| node.place == staged);
        if !still_staged {
            // It landed before we were killed.
            return Ok(None);
        }
        let Some(seen) = replaces else {
            return match renameat_with(staging, from, above, name, RenameFlags::NOREPLACE) {
                Ok(()) => Ok(None),
                Err(Errno::EXIST) => Ok(Some(MOVED_ON)),
                Err(error) => Err(error.into()),
            };
        };
        if !self.is_as_seen(above, name, seen)? {
            return Ok(Some(MOVED_ON));
        }
        step();
        renameat_with(staging, from, above, name, RenameFlags::EXCHANGE)?;
        step();
        if self.is_as_seen(staging, from, seen)? {
            return Ok(None);
        }
        // The host was faster than our look: its version goes back.
        renameat_with(staging, from, above, name, RenameFlags::EXCHANGE)?;
        Ok(Some(MOVED_ON))
    }

    fn take(
        &self,
        above: BorrowedFd<'_>,
        name: &OsStr,
        staging: BorrowedFd<'_>,
        seen: &FileStamp,
    ) -> io::Result<Option<&'static str>> {
        let to = staging::of_step(self.number);
        let to = OsStr::new(&to);
        if tree::look(staging, to)?.is_some() || tree::look(above, name)?.is_none() {
            return Ok(None);
        }
        if !self.is_as_seen(above, name, seen)? {
            return Ok(Some(MOVED_ON));
        }
        step();
        renameat_with(above, name, staging, to, RenameFlags::NOREPLACE)?;
        step();
        if self.is_as_seen(staging, to, seen)? {
            return Ok(None);
        }
        renameat_with(staging, to, above, name, RenameFlags::NOREPLACE)?;
        Ok(Some(MOVED_ON))
    }

    /// Whether what has a name is what was planned to be replaced, unchanged. Not by the time
    /// of its last change, which a rename changes too.
    fn is_as_seen(
        &self,
        above: BorrowedFd<'_>,
        name: &OsStr,
        seen: &FileStamp,
    ) -> io::Result<bool> {
        let Some(node) = tree::look(above, name)? else {
            return Ok(false);
        };
        if node.place != seen.place {
            return Ok(false);
        }
        if node.kind == Kind::Directory || seen.tree.is_some() {
            return Ok(node.kind == Kind::Directory && Some(digest(above, name)?) == seen.tree);
        }
        Ok(node.modified == seen.modified && node.size == seen.size)
    }
}

/// How something in the real tree looks now.
pub(crate) fn see(above: BorrowedFd<'_>, name: &OsStr, node: &Node) -> io::Result<FileStamp> {
    let is_directory = node.kind == Kind::Directory;
    Ok(FileStamp {
        place: node.place,
        size: node.size,
        modified: node.modified,
        tree: match is_directory {
            true => Some(digest(above, name)?),
            false => None,
        },
    })
}

/// A number that stands for all that is in a directory: names, places, sizes and times. Not
/// the times of the last change, which a rename of another name of the same file changes.
fn digest(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    digest_below(above, name, 0, &mut hasher)?;
    Ok(hasher.finish())
}

fn digest_below(
    above: BorrowedFd<'_>,
    name: &OsStr,
    depth: usize,
    hasher: &mut DefaultHasher,
) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(io::Error::other(format!("more than {DEEPEST} levels deep")));
    }
    let directory = tree::open_directory(above, name)?;
    for inside in tree::names(directory.as_fd())? {
        let Some(node) = tree::look(directory.as_fd(), &inside)? else {
            continue;
        };
        (&inside, node.place, node.mode, &node.target).hash(hasher);
        if node.kind == Kind::Directory {
            digest_below(directory.as_fd(), &inside, depth + 1, hasher)?;
        } else {
            let modified = (node.modified.seconds, node.modified.nanoseconds);
            (node.size, modified).hash(hasher);
        }
    }
    // So that a name at the end of one directory is no name at the start of the next.
    0_u8.hash(hasher);
    Ok(())
}

/// Gives directories their modes and times, the innermost first: what is done in one changes
/// the time of the one above.
fn finish(roots: &Roots, journal: &mut Journal) {
    for planned in journal.steps.iter_mut().rev() {
        let (Some(dress), None) = (&planned.finish, &planned.held) else {
            continue;
        };
        let dressed = roots.upper(planned.layer).and_then(|upper| {
            let from = tree::open_below(upper, &planned.path)?;
            let to = tree::open_below(roots.real(planned.layer)?, &planned.path)?;
            if !dress.is_owner_of(&Node::of(&to)?) {
                return Err(io::Error::other(ANOTHER_OWNER));
            }
            staging::dress(from.as_fd(), to.as_fd(), dress)
        });
        // Not there any more: it was cleared before we were killed.
        if let Err(error) = dressed
            && error.kind() != io::ErrorKind::NotFound
        {
            planned.held = Some(error.to_string());
        }
    }
}
