//! A git directory from both sides: as the agent left it, and as it really is.

use super::lock::Locks;
use super::refs;
use crate::content::read_bounded;
use crate::tree::{self, DEEPEST, Kind, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The most that is read of settings.
const CONFIG_SIZE: u64 = 1024 * 1024;

/// A git directory from both sides.
pub(crate) struct View {
    pub(crate) upper: OwnedFd,
    pub(crate) real: OwnedFd,
}

/// Packed references, by their names.
type Packed = BTreeMap<String, String>;

/// Where the agent's view of a path comes from.
enum EntrySource {
    Upper,
    Real,
    Nowhere,
}

impl View {
    pub(crate) fn new(upper: OwnedFd, real: OwnedFd) -> View {
        View { upper, real }
    }

    pub(crate) fn real_node(&self, path: &Path) -> io::Result<Option<Node>> {
        node(self.real.as_fd(), path)
    }

    pub(crate) fn real_has(&self, path: &Path) -> bool {
        matches!(self.real_node(path), Ok(Some(_)))
    }

    pub(crate) fn open_upper(&self, path: &Path) -> io::Result<File> {
        tree::open_file_below(self.upper.as_fd(), path)
    }

    pub(crate) fn open_real(&self, path: &Path) -> io::Result<File> {
        tree::open_file_below(self.real.as_fd(), path)
    }

    pub(crate) fn real_text(&self, path: &Path) -> io::Result<String> {
        match self.open_real(path) {
            Ok(file) => text(&file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn upper_text(&self, path: &Path) -> io::Result<String> {
        text(&self.open_upper(path)?)
    }

    /// Where the agent sees a path, by whiteouts and directories that hide.
    fn from(&self, path: &Path) -> io::Result<EntrySource> {
        let mut at = tree::open_directory(self.upper.as_fd(), ".".as_ref())?;
        let mut hidden = tree::is_opaque(at.as_fd())?;
        let last = path.components().count().saturating_sub(1);
        for (number, part) in path.components().enumerate() {
            let otherwise = if hidden {
                EntrySource::Nowhere
            } else {
                EntrySource::Real
            };
            match tree::look(at.as_fd(), part.as_os_str())? {
                None => return Ok(otherwise),
                Some(node) if node.whiteout => return Ok(EntrySource::Nowhere),
                Some(_) if number == last => return Ok(EntrySource::Upper),
                Some(node) if node.kind != Kind::Directory => return Ok(EntrySource::Nowhere),
                Some(_) => {
                    at = tree::open_directory(at.as_fd(), part.as_os_str())?;
                    hidden |= tree::is_opaque(at.as_fd())?;
                }
            }
        }
        Ok(if hidden {
            EntrySource::Nowhere
        } else {
            EntrySource::Real
        })
    }

    /// The value of a reference as the agent sees it.
    pub(crate) fn inside(&self, base: &Path, name: &str) -> io::Result<Option<String>> {
        let loose = self.inside_loose(&base.join(name))?;
        if loose.is_some() {
            return Ok(loose);
        }
        match self.side_of_packed(base)? {
            Some(side) => packed(side, base, name),
            None => Ok(None),
        }
    }

    /// The value of a loose reference as the agent sees it.
    pub(crate) fn inside_loose(&self, path: &Path) -> io::Result<Option<String>> {
        match self.from(path)? {
            EntrySource::Upper => refs::loose(self.upper.as_fd(), path),
            EntrySource::Real => refs::loose(self.real.as_fd(), path),
            EntrySource::Nowhere => Ok(None),
        }
    }

    /// From which side the agent sees the packed references.
    fn side_of_packed(&self, base: &Path) -> io::Result<Option<BorrowedFd<'_>>> {
        Ok(match self.from(&base.join("packed-refs"))? {
            EntrySource::Upper => Some(self.upper.as_fd()),
            EntrySource::Real => Some(self.real.as_fd()),
            EntrySource::Nowhere => None,
        })
    }

    /// The packed references as the agent sees them, and as they really are; none where they
    /// cannot be read.
    pub(crate) fn both_packed(&self, base: &Path) -> (Packed, Packed) {
        let read = |side: BorrowedFd<'_>| {
            let git = tree::open_below(side, base).ok()?;
            refs::packed(git.as_fd()).ok().flatten()
        };
        let agents = self.side_of_packed(base).ok().flatten().and_then(read);
        let real = read(self.real.as_fd());
        (agents.unwrap_or_default(), real.unwrap_or_default())
    }

    /// The value of a reference as it really is.
    pub(crate) fn outside(&self, base: &Path, name: &str) -> io::Result<Option<String>> {
        match refs::loose(self.real.as_fd(), &base.join(name))? {
            Some(value) => Ok(Some(value)),
            None => packed(self.real.as_fd(), base, name),
        }
    }

    /// Whether git may find a reference of this name outside, whatever it holds.
    pub(crate) fn real_has_reference(&self, base: &Path, name: &str) -> io::Result<bool> {
        match self.real_node(&base.join(name)) {
            // A directory of that name, or a file on the way to it, is no reference.
            Ok(Some(node)) if node.kind != Kind::Directory => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(error),
        }
        Ok(packed(self.real.as_fd(), base, name)?.is_some())
    }

    /// The names of all packed references, of either side.
    pub(crate) fn all_packed(&self, base: &Path) -> BTreeSet<String> {
        [self.upper.as_fd(), self.real.as_fd()]
            .into_iter()
            .filter_map(|side| tree::open_below(side, base).ok())
            .filter_map(|git| refs::packed(git.as_fd()).ok().flatten())
            .flat_map(|packed| packed.into_keys())
            .collect()
    }

    /// The names of loose references below a directory, of either side.
    pub(crate) fn loose_below(&self, base: &Path, name: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for side in [self.upper.as_fd(), self.real.as_fd()] {
            if let Ok(directory) = tree::open_below(side, &base.join(name)) {
                // What cannot be listed has no name that could be moved.
                let _ = list(directory.as_fd(), name, 0, &mut found);
            }
        }
        found
    }

    /// Takes a name out of the real packed references.
    pub(crate) fn drop_packed(&self, base: &Path, name: &str, locks: &Locks<'_>) -> io::Result<()> {
        let path = base.join("packed-refs");
        if packed(self.real.as_fd(), base, name)?.is_none() {
            return Ok(());
        }
        let lock = locks.take(self.real.as_fd(), &path)?;
        let text = match self.open_real(&path).and_then(std::io::read_to_string) {
            Ok(text) => text,
            Err(error) => {
                lock.release();
                return Err(error);
            }
        };
        let mut kept = String::new();
        let mut dropping = false;
        for line in text.split_inclusive('\n') {
            // A line that begins so belongs to the one before it.
            dropping = match line.starts_with('^') {
                true => dropping,
                false => line
                    .trim_end()
                    .split_once(' ')
                    .is_some_and(|(_, of)| of == name),
            };
            if !dropping {
                kept.push_str(line);
            }
        }
        lock.replace(kept.as_bytes())
    }
}

fn node(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Node>> {
    match tree::open_below(root, path.parent().unwrap_or(Path::new(""))) {
        Ok(above) => tree::look(above.as_fd(), path.file_name().unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn packed(side: BorrowedFd<'_>, base: &Path, name: &str) -> io::Result<Option<String>> {
    let git = match tree::open_below(side, base) {
        Ok(git) => git,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(refs::packed(git.as_fd())?.and_then(|mut packed| packed.remove(name)))
}

fn list(
    directory: BorrowedFd<'_>,
    name: &str,
    depth: usize,
    found: &mut BTreeSet<String>,
) -> io::Result<()> {
    if depth > DEEPEST {
        return Ok(());
    }
    for inside in tree::names(directory)? {
        let Some(text) = inside.to_str() else {
            continue;
        };
        let name = format!("{name}/{text}");
        match tree::look(directory, &inside)? {
            Some(node) if node.kind == Kind::Directory => {
                let below = tree::open_directory(directory, &inside)?;
                list(below.as_fd(), &name, depth + 1, found)?;
            }
            Some(_) => {
                found.insert(name);
            }
            None => {}
        }
    }
    Ok(())
}

fn text(file: &File) -> io::Result<String> {
    let bytes =
        read_bounded(file, CONFIG_SIZE)?.ok_or_else(|| io::Error::other("it is too large"))?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not valid UTF-8"))
}
