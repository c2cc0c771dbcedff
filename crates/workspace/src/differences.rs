//! A change as its reader sees it: file by file, with what was moved told as moved.

use crate::error::WorkspaceError;
use crate::reading::{Entry, Reading, Status, open_layer};
use crate::tree::{self, DEEPEST, Kind, Node};
use crate::{Change, content};
use similar::{Algorithm, TextDiff};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file of more bytes is not compared line by line.
const LARGEST_TEXT: u64 = 8 * 1024 * 1024;
/// A comparison that takes longer goes on more coarsely: an agent can write files that are
/// slow to compare.
const PATIENCE: Duration = Duration::from_secs(1);
/// Within these bytes a zero tells that a file is no text, as git has it.
const TEXT_START: usize = 8000;

/// One file, link or directory that differs.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The layer, by its place in [`Change::layers`].
    pub layer: usize,
    /// Where it is, or was.
    pub path: PathBuf,
    pub status: Status,
    /// Where it was moved from, and how much of it stayed, in percent.
    pub moved: Option<(PathBuf, u8)>,
    /// What the real tree has.
    pub before: Option<Node>,
    /// What the change has.
    pub after: Option<Node>,
}

/// What is in the two versions of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Versions {
    /// The same, or nothing that can be shown.
    Same,
    /// Not text.
    Binary,
    /// More than is compared line by line.
    Large,
    /// Text: what was there, and what is.
    Text(Vec<u8>, Vec<u8>),
}

/// How a unified diff shows a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShownContent {
    /// Nothing of its content differs.
    Same,
    /// By its lines.
    Text,
    /// It is not text: the diff only says that it differs.
    Binary,
    /// It is too large to compare: the diff has only its sizes.
    TooLarge,
    /// It cannot be read: the diff has the error in its place.
    Unreadable,
}

/// The open roots of all layers.
#[derive(Debug)]
pub struct Roots(Vec<(OwnedFd, OwnedFd)>);

impl Roots {
    /// Opens them.
    ///
    /// # Errors
    /// Where one cannot be opened, or is another than at the start.
    pub fn open(change: &Change) -> Result<Roots, WorkspaceError> {
        let roots: Result<_, _> = change.layers().iter().map(open_layer).collect();
        Ok(Roots(roots?))
    }

    pub(crate) fn upper(&self, layer: usize) -> io::Result<BorrowedFd<'_>> {
        self.get(layer).map(|(upper, _)| upper.as_fd())
    }

    pub(crate) fn real(&self, layer: usize) -> io::Result<BorrowedFd<'_>> {
        self.get(layer).map(|(_, real)| real.as_fd())
    }

    fn get(&self, layer: usize) -> io::Result<&(OwnedFd, OwnedFd)> {
        self.0
            .get(layer)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The differences of a change, without what only times tell apart; of a git directory's only
/// those that are wanted.
pub fn differences(
    roots: &Roots,
    reading: &Reading,
    of_git: &dyn Fn(&Entry) -> bool,
) -> Vec<Difference> {
    let filled: BTreeSet<(usize, &Path)> = reading
        .entries
        .iter()
        .filter_map(|entry| Some((entry.layer, entry.path.parent()?)))
        .collect();
    let mut found = Vec::new();
    for entry in &reading.entries {
        if entry.status != Status::Touched && (entry.git.is_none() || of_git(entry)) {
            expand(roots, entry, &mut found);
        }
    }
    // A new directory is told by what is in it, unless nothing is.
    found.retain(|difference: &Difference| {
        let is_directory = |node: &Node| node.kind == Kind::Directory;
        difference.status != Status::Added
            || !difference.after.as_ref().is_some_and(is_directory)
            || !filled.contains(&(difference.layer, &*difference.path))
    });
    crate::renames::pair(roots, &mut found);
    found
}

/// A removed directory becomes the files that were in it; a changed type becomes a removal and
/// an addition, as git has it.
fn expand(roots: &Roots, entry: &Entry, found: &mut Vec<Difference>) {
    let removed = matches!(entry.status, Status::Removed | Status::Type);
    if removed && let Some(before) = &entry.before {
        if before.kind == Kind::Directory {
            let listed = roots
                .real(entry.layer)
                .and_then(|root| tree::open_below(root, &entry.path))
                .and_then(|directory| files_below(directory.as_fd(), entry, &entry.path, found));
            // What cannot be listed is told as the directory that it is.
            if !matches!(listed, Ok(listed) if listed > 0) {
                found.push(removal(entry.layer, entry.path.clone(), before.clone()));
            }
        } else {
            found.push(removal(entry.layer, entry.path.clone(), before.clone()));
        }
    }
    if entry.status == Status::Removed {
        return;
    }
    let typed = entry.status == Status::Type;
    found.push(Difference {
        layer: entry.layer,
        path: entry.path.clone(),
        status: if typed { Status::Added } else { entry.status },
        moved: None,
        before: entry.before.clone().filter(|_| !typed),
        after: entry.after.clone(),
    });
}

fn removal(layer: usize, path: PathBuf, before: Node) -> Difference {
    Difference {
        layer,
        path,
        status: Status::Removed,
        moved: None,
        before: Some(before),
        after: None,
    }
}

fn files_below(
    directory: BorrowedFd<'_>,
    entry: &Entry,
    path: &Path,
    found: &mut Vec<Difference>,
) -> io::Result<usize> {
    let mut listed = 0;
    if path.components().count() > DEEPEST {
        return Ok(listed);
    }
    for name in tree::names(directory)? {
        let path = path.join(&name);
        match tree::look(directory, &name)? {
            Some(node) if node.kind == Kind::Directory => {
                let inside = tree::open_directory(directory, &name)?;
                listed += files_below(inside.as_fd(), entry, &path, found)?;
            }
            Some(node) => {
                found.push(removal(entry.layer, path, node));
                listed += 1;
            }
            None => {}
        }
    }
    Ok(listed)
}

impl Difference {
    /// What is in the two versions of it.
    ///
    /// # Errors
    /// Where one cannot be read.
    pub fn versions(&self, roots: &Roots) -> io::Result<Versions> {
        let from = self.moved.as_ref().map_or(&self.path, |(from, _)| from);
        let old = match &self.before {
            Some(node) => Some(side(roots.real(self.layer)?, from, node)?),
            None => None,
        };
        let new = match &self.after {
            Some(node) => Some(side(roots.upper(self.layer)?, &self.path, node)?),
            None => None,
        };
        let (Some(old), Some(new)) = (
            old.unwrap_or(Some(Vec::new())),
            new.unwrap_or(Some(Vec::new())),
        ) else {
            return Ok(Versions::Large);
        };
        if old == new {
            return Ok(Versions::Same);
        }
        if is_binary(&old) || is_binary(&new) {
            return Ok(Versions::Binary);
        }
        Ok(Versions::Text(old, new))
    }

    /// Lines added and removed; `None` where there are no lines to count.
    pub fn lines(&self, roots: &Roots) -> Option<(usize, usize)> {
        self.content(roots).1
    }

    /// How a diff shows it, and the lines added and removed where there are lines to count.
    pub fn content(&self, roots: &Roots) -> (ShownContent, Option<(usize, usize)>) {
        let lines = match self.versions(roots) {
            Ok(Versions::Same) => return (ShownContent::Same, None),
            Ok(Versions::Binary) => return (ShownContent::Binary, None),
            Ok(Versions::Large) => return (ShownContent::TooLarge, None),
            Err(_) => return (ShownContent::Unreadable, None),
            Ok(Versions::Text(old, new)) if old.is_empty() => (count_lines(&new), 0),
            Ok(Versions::Text(old, new)) if new.is_empty() => (0, count_lines(&old)),
            Ok(Versions::Text(old, new)) => {
                let (mut added, mut removed) = (0, 0);
                for change in compare(&old, &new).iter_all_changes() {
                    match change.tag() {
                        similar::ChangeTag::Insert => added += 1,
                        similar::ChangeTag::Delete => removed += 1,
                        similar::ChangeTag::Equal => {}
                    }
                }
                (added, removed)
            }
        };
        (ShownContent::Text, Some(lines))
    }
}

pub(crate) fn compare<'a>(old: &'a [u8], new: &'a [u8]) -> TextDiff<'a, 'a, [u8]> {
    TextDiff::configure()
        .algorithm(Algorithm::Myers)
        .timeout(PATIENCE)
        .diff_lines(old, new)
}

/// The bytes of one side; `None` when they are too many.
fn side(root: BorrowedFd<'_>, path: &Path, node: &Node) -> io::Result<Option<Vec<u8>>> {
    match node.kind {
        Kind::File if node.size > LARGEST_TEXT => Ok(None),
        Kind::File => content::read_bounded(&tree::open_file_below(root, path)?, LARGEST_TEXT),
        Kind::Link => {
            use std::os::unix::ffi::OsStrExt as _;
            let target = node.target.as_deref().unwrap_or(Path::new(""));
            Ok(Some(target.as_os_str().as_bytes().to_vec()))
        }
        _ => Ok(Some(Vec::new())),
    }
}

/// As many as a comparison with nothing would tell.
fn count_lines(bytes: &[u8]) -> usize {
    let ended = bytes.iter().filter(|byte| **byte == b'\n').count();
    ended + usize::from(!bytes.ends_with(b"\n"))
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(TEXT_START).any(|byte| *byte == 0)
}
