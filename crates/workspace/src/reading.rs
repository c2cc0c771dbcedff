//! Reads a change: every difference between the layers and the real tree.
//!
//! An upper layer holds what an agent wrote: it is not trusted, and no link is followed. An entry
//! that cannot be read gets an obstacle and is not applied.

mod judging;

use crate::dependency_tree::DependencyTree;
use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::executed::Note;
use crate::ignored::Rules;
use crate::known::Known;
use crate::landed::Landed;
use crate::tree::{self, DEEPEST, Kind, Node};
use crate::{Change, Layer, LayerRole, Moment, Selection};
use judging::changed_mode;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How something differs from the real tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    Modified,
    /// It is something else: a directory where a file was.
    Type,
    /// Only its mode differs.
    Mode,
    /// Only times, owner or attributes differ, if anything.
    Touched,
}

/// One difference between a layer and the real tree.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The layer, by its place in [`Change::layers`].
    pub layer: usize,
    /// The path below the layer's real directory; empty for that directory itself.
    pub path: PathBuf,
    /// What the real tree has.
    pub before: Option<Node>,
    /// What the change has.
    pub after: Option<Node>,
    pub status: Status,
    /// Why it cannot be applied, if it cannot.
    pub obstacle: Option<String>,
    /// Whether the real tree changed there since the change began, to something else.
    pub conflict: bool,
    /// What the host would execute or trust in it.
    pub notes: Vec<Note>,
    /// The git directory that it belongs to, which is brought over in a way of its own.
    pub git: Option<PathBuf>,
    /// Whether it was named, or something that it lies in, in that git directory.
    pub named: bool,
    /// The tree of installed packages that it is, or lies in: applied as a whole or not at all.
    pub dependencies: Option<DependencyTree>,
}

/// A tree or a file that git ignores. It stays for the next run and is applied when named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredTree {
    /// The layer, by its place in [`Change::layers`].
    pub layer: usize,
    /// The path below the layer's real directory.
    pub path: PathBuf,
    /// Files in it, as far as they were counted.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

/// All that a change holds.
#[derive(Debug, Default)]
pub struct Reading {
    /// The differences, by layer and path; a directory comes before what is in it.
    pub entries: Vec<Entry>,
    /// What git ignores and nobody named.
    pub ignored: Vec<IgnoredTree>,
}

impl Reading {
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.ignored.is_empty()
    }
}

impl Change {
    /// Reads the part of the change that is selected.
    ///
    /// # Errors
    /// Where a layer's directories cannot be opened, or the real one is another by now.
    pub fn read_entries(&self, selection: &Selection) -> Result<Reading, WorkspaceError> {
        let mut reading = self.read_names(selection)?;
        crate::links::annotate(self, &Roots::open(self)?, &mut reading.entries);
        Ok(reading)
    }

    /// The same, as far as names tell: links of the real tree, which take a walk to find, are not
    /// looked at.
    pub(crate) fn read_names(&self, selection: &Selection) -> Result<Reading, WorkspaceError> {
        let mut reading = self.walk(selection, false)?;
        crate::executed::annotate(self, &mut reading.entries);
        Ok(reading)
    }

    /// Whether anything differs from the real tree but times: the walk ends at the first that does.
    ///
    /// # Errors
    /// As [`Change::read_entries`].
    pub fn differs(&self) -> Result<bool, WorkspaceError> {
        Ok(!self.walk(&Selection::everything(), true)?.is_empty())
    }

    fn walk(&self, selection: &Selection, first_only: bool) -> Result<Reading, WorkspaceError> {
        if self.in_memory() {
            return Err(WorkspaceError::InMemory {
                id: self.id().clone(),
            });
        }
        let known = Known::read(self)?;
        let landed = Landed::read(self)?;
        let mut reading = Reading::default();
        for (number, layer) in self.layers().iter().enumerate() {
            let (upper, real) = open_layer(layer)?;
            let mut walk = Walk {
                layer: number,
                began: self.began(),
                known: &known,
                landed: &landed,
                selection,
                rules: (layer.role != LayerRole::Git).then(|| Rules::new(&layer.real)),
                first_only,
                out: &mut reading,
            };
            walk.root(layer, upper.as_fd(), real.as_fd())?;
        }
        Ok(reading)
    }

    /// Whether every path that was named is in the change: the first that is not.
    ///
    /// # Errors
    /// As [`Change::read_entries`].
    pub fn missing(&self, selection: &Selection) -> Result<Option<PathBuf>, WorkspaceError> {
        if selection.is_everything() {
            return Ok(None);
        }
        let reading = self.read_names(selection)?;
        let is_there = |layer: usize, named: &Path| {
            let in_entry = |entry: &Entry| {
                entry.layer == layer
                    && (entry.path.starts_with(named)
                        || entry.after.is_none() && named.starts_with(&entry.path))
            };
            let ignored = |tree: &IgnoredTree| tree.layer == layer && tree.path.starts_with(named);
            reading.entries.iter().any(in_entry) || reading.ignored.iter().any(ignored)
        };
        let mut named = selection.named().iter();
        let missing = named.find(|(layer, path)| !is_there(*layer, path));
        Ok(missing.map(|(layer, path)| self.shown(*layer, path)))
    }
}

impl Change {
    /// Bytes of the files in its layers, as far as they can be counted.
    pub fn bytes(&self) -> u64 {
        let (mut files, mut bytes) = (0, 0);
        for layer in self.layers() {
            if let Ok(upper) = tree::open_root(&layer.upper) {
                // For people to read: what cannot be counted is not.
                let _ = count(upper.as_fd(), OsStr::new("."), 0, &mut files, &mut bytes);
            }
        }
        bytes
    }
}

/// Opens a layer's upper directory and the real one, which must be the same as at the start.
pub(crate) fn open_layer(layer: &Layer) -> Result<(OwnedFd, OwnedFd), WorkspaceError> {
    let upper = tree::open_root(&layer.upper).doing("open", &layer.upper)?;
    let real = tree::open_root(&layer.real).doing("open", &layer.real)?;
    let node = Node::of(&real).doing("look at", &layer.real)?;
    if node.place != (layer.device, layer.inode) {
        return Err(WorkspaceError::Moved {
            path: layer.real.clone(),
        });
    }
    Ok((upper, real))
}

struct Walk<'a> {
    layer: usize,
    began: Moment,
    known: &'a Known,
    landed: &'a Landed,
    selection: &'a Selection,
    rules: Option<Rules>,
    /// Whether one difference is enough, and no other is kept.
    first_only: bool,
    out: &'a mut Reading,
}

/// A directory of the upper layer that is being read.
struct Place<'a> {
    path: &'a Path,
    upper: BorrowedFd<'a>,
    lower: Option<BorrowedFd<'a>>,
    /// What the lower layer has here is not seen through the upper one.
    hides: bool,
    git: Option<&'a Path>,
    /// The tree of installed packages that it is, or lies in.
    dependencies: Option<&'a DependencyTree>,
    /// Nothing in it is left out because git ignores it: git ignores all of it, and it was named
    /// nevertheless; or it is not to be applied in parts.
    whole: bool,
}

impl Walk<'_> {
    fn root(
        &mut self,
        layer: &Layer,
        upper: BorrowedFd<'_>,
        lower: BorrowedFd<'_>,
    ) -> Result<(), WorkspaceError> {
        let before = Node::of(lower).doing("look at", &layer.real)?;
        let after = Node::of(upper).doing("look at", &layer.upper)?;
        let git = (layer.role == LayerRole::Git).then_some(Path::new(""));
        let mut entry = self.entry(Path::new(""), Some(before), Some(after), git);
        entry.status = changed_mode(&entry);
        self.push(entry);
        let place = Place {
            path: Path::new(""),
            upper,
            lower: Some(lower),
            hides: tree::is_opaque(upper).doing("read", &layer.upper)?,
            git,
            dependencies: None,
            whole: false,
        };
        self.directory(&place).doing("read", &layer.upper)
    }

    fn entry(
        &self,
        path: &Path,
        before: Option<Node>,
        after: Option<Node>,
        git: Option<&Path>,
    ) -> Entry {
        let status = match (&before, &after) {
            (None, _) => Status::Added,
            (_, None) => Status::Removed,
            (Some(before), Some(after)) if before.kind != after.kind => Status::Type,
            _ => Status::Touched,
        };
        Entry {
            layer: self.layer,
            path: path.to_owned(),
            before,
            after,
            status,
            obstacle: None,
            conflict: false,
            notes: Vec::new(),
            git: git.map(Path::to_owned),
            named: git.is_some_and(|git| self.selection.names_in(self.layer, git, path)),
            dependencies: None,
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.first_only && entry.status == Status::Touched && entry.obstacle.is_none() {
            return;
        }
        if self.selection.covers(self.layer, &entry.path)
            // Directories on the way to what was named are needed to make it.
            || (entry.after.as_ref().is_some_and(|node| node.kind == Kind::Directory)
                && self.selection.names(self.layer, &entry.path))
        {
            self.out.entries.push(entry);
        }
    }

    fn directory(&mut self, place: &Place<'_>) -> io::Result<()> {
        if let Some(rules) = &mut self.rules {
            let seen = place.lower.filter(|_| !place.hides);
            rules.enter(place.path, place.upper, seen);
        }
        let mut names: BTreeSet<OsString> = tree::names(place.upper)?.into_iter().collect();
        if let (true, Some(lower)) = (place.hides, place.lower) {
            let hidden = tree::names(lower)?.into_iter();
            // In a directory that was applied already, what else is there is the host's.
            let applied = self.landed.has(self.layer, place.path);
            names
                .extend(hidden.filter(|name| {
                    !applied || self.landed.put(self.layer, &place.path.join(name))
                }));
        }
        for name in names {
            self.name(place, &name)?;
            if self.first_only && !self.out.is_empty() {
                break;
            }
        }
        if let Some(rules) = &mut self.rules {
            rules.leave();
        }
        Ok(())
    }

    fn name(&mut self, place: &Place<'_>, name: &OsStr) -> io::Result<()> {
        let path = place.path.join(name);
        let above = self.selection.names(self.layer, &path);
        if !above && !self.selection.covers(self.layer, &path) {
            return Ok(());
        }
        let found = tree::look(place.upper, name)?;
        if let Some(node) = &found
            && node.kind != Kind::Directory
            && self.landed.is_as_applied(self.layer, &path, node)
        {
            return Ok(());
        }
        let before = match place.lower {
            Some(lower) => tree::look(lower, name)?,
            None => None,
        };
        let after = found.filter(|node| !node.whiteout);
        let Some(seen) = after.as_ref().or(before.as_ref()) else {
            // A whiteout over something that is gone by now.
            return Ok(());
        };
        let is_directory = seen.kind == Kind::Directory;
        let is_git = self.rules.is_some() && place.git.is_none() && name == ".git" && is_directory;
        let git = if is_git { Some(&*path) } else { place.git };
        let rules = self.rules.as_ref().filter(|_| !place.whole);
        let ignored = git.is_none() && rules.is_some_and(|rules| rules.ignore(&path, is_directory));
        if ignored && !above {
            self.count_ignored(place, name, path.clone(), after.as_ref());
            return Ok(());
        }
        let mut entry = self.entry(&path, before, after, git);
        entry.dependencies = place.dependencies.cloned();
        match entry.after.as_ref().map(|node| node.kind) {
            None => {
                entry.conflict = self.removal_conflicts(place, name, &entry);
                self.push(entry);
                Ok(())
            }
            Some(Kind::Directory) => self.enter(place, name, entry, ignored),
            Some(kind) => {
                self.judge(place, name, kind, &mut entry);
                self.push(entry);
                Ok(())
            }
        }
    }

    /// A directory of the upper layer: its own entry, then what is in it.
    fn enter(
        &mut self,
        place: &Place<'_>,
        name: &OsStr,
        mut entry: Entry,
        ignored: bool,
    ) -> io::Result<()> {
        let opened = if entry.path.components().count() > DEEPEST {
            Err(io::Error::other(format!("more than {DEEPEST} levels deep")))
        } else {
            tree::open_directory(place.upper, name)
        };
        let upper = match opened.and_then(|upper| {
            let foreign = tree::foreign_attribute(upper.as_fd())?;
            match foreign {
                Some(name) => Err(io::Error::other(format!("unsupported attribute {name}"))),
                None => Ok((tree::is_opaque(upper.as_fd())?, upper)),
            }
        }) {
            Ok(opened) => opened,
            Err(error) => {
                entry.obstacle = Some(format!("cannot read the directory: {error}"));
                self.push(entry);
                return Ok(());
            }
        };
        let (opaque, upper) = upper;
        let mut lower = None;
        match &entry.before {
            Some(before) if before.kind == Kind::Directory => {
                entry.status = changed_mode(&entry);
                if let Some(above) = place.lower {
                    match tree::open_directory(above, name) {
                        Ok(opened) => lower = Some(opened),
                        Err(error) => {
                            entry.obstacle =
                                Some(format!("cannot open the real directory: {error}"));
                        }
                    }
                }
            }
            Some(_) => entry.conflict = self.removal_conflicts(place, name, &entry),
            // Applied once, so the host removed it.
            None if self.landed.has(self.layer, &entry.path) => entry.conflict = true,
            None => entry.conflict = self.was_removed(place, &entry.path),
        }
        if entry.git.is_none() && entry.dependencies.is_none() {
            let lower = lower.as_ref().map(AsFd::as_fd);
            entry.dependencies = DependencyTree::of(&entry.path, upper.as_fd(), lower)?;
        }
        let (path, git, stop) = (
            entry.path.clone(),
            entry.git.clone(),
            entry.obstacle.is_some(),
        );
        let dependencies = entry.dependencies.clone();
        self.push(entry);
        if stop {
            return Ok(());
        }
        self.directory(&Place {
            path: &path,
            upper: upper.as_fd(),
            lower: lower.as_ref().map(AsFd::as_fd),
            hides: place.hides || opaque,
            git: git.as_deref(),
            whole: place.whole || ignored || dependencies.is_some(),
            dependencies: dependencies.as_ref(),
        })
    }

    fn count_ignored(
        &mut self,
        place: &Place<'_>,
        name: &OsStr,
        path: PathBuf,
        node: Option<&Node>,
    ) {
        let (mut files, mut bytes) = (0, 0);
        match node {
            Some(node) if node.kind == Kind::Directory => {
                // For people to read: what cannot be counted is not.
                let _ = count(place.upper, name, 0, &mut files, &mut bytes);
            }
            Some(node) => (files, bytes) = (1, node.size),
            None => {}
        }
        self.out.ignored.push(IgnoredTree {
            layer: self.layer,
            path,
            files,
            bytes,
        });
    }
}

fn count(
    above: BorrowedFd<'_>,
    name: &OsStr,
    depth: usize,
    files: &mut u64,
    bytes: &mut u64,
) -> io::Result<()> {
    if depth > DEEPEST {
        return Ok(());
    }
    let directory = tree::open_directory(above, name)?;
    for inside in tree::names(directory.as_fd())? {
        match tree::look(directory.as_fd(), &inside)? {
            Some(node) if node.kind == Kind::Directory => {
                count(directory.as_fd(), &inside, depth + 1, files, bytes)?;
            }
            Some(node) if !node.whiteout => {
                *files += 1;
                *bytes += node.size;
            }
            _ => {}
        }
    }
    Ok(())
}
