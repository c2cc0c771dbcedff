//! Brings what an agent did in a git directory over to the real one: objects first, then the
//! references that it moved, HEAD, the index and texts. Each is done by a rename, and done again
//! it is the same.

mod index;
mod texts;

use self::index::HeadBefore;
use super::lock::Locks;
use super::moved::{self, ReferenceChange};
use super::objects::{self, ObjectFile};
use super::part::{self, Part, Sorted, sort};
use super::view::View;
use super::{refs, repository};
use crate::apply::{self, Afterwards, Applied, ApplyOptions};
use crate::content;
use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::known::Known;
use crate::landed::{Landed, Left};
use crate::reading::{Entry, Reading, Status};
use crate::summary::ReportedPath;
use crate::tree::{self, Kind, Node};
use crate::{Change, LayerRole, Selection, ignored, upper};
use ironcage_state::remove_tree;
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{RenameFlags, renameat_with};
use ironcage_sys::rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The most of an index or a text that is brought over.
pub(super) const LARGEST: u64 = 256 * 1024 * 1024;
const MOVED_ON: &str = "it changed in the real tree too";
/// Where packs are copied to while git makes their indexes, in the change's directory.
const PACKS: &str = "packs";
const OUT: &str = "cleared";
/// Said of settings that are none.
pub(crate) const NO_SETTINGS: &str = "git would not take these settings";
const IN_PART: &str = "commits and references come over together: name the git directory";

/// Brings every git directory of a reading over that is selected.
pub(crate) fn bring_over(
    change: &Change,
    roots: &Roots,
    reading: &Reading,
    (selection, options): (&Selection, &ApplyOptions),
    applied: &mut Applied,
    afterwards: Afterwards,
) -> Result<(), WorkspaceError> {
    let mut groups: BTreeMap<(usize, &Path), Vec<&Entry>> = BTreeMap::new();
    for entry in &reading.entries {
        let Some(git) = &entry.git else { continue };
        // What is allowed by its name, or was named, came over as any other file does.
        let came = change.lies_in_git(entry.layer, (git, &entry.path), &options.allowed)
            || apply::is_named(entry, git, selection);
        if !came {
            groups.entry((entry.layer, git)).or_default().push(entry);
        }
    }
    let touched: BTreeSet<PathBuf> = reading
        .entries
        .iter()
        .filter(|entry| entry.git.is_none() && entry.status == Status::Touched)
        .filter(|entry| !is_directory(entry))
        .map(|entry| change.layers()[entry.layer].real.join(&entry.path))
        .collect();
    for ((layer, git), entries) in groups {
        let all = |entry: &&Entry| entry.layer == layer && entry.git.as_deref() == Some(git);
        let whole = reading.entries.iter().filter(all).count() == entries.len();
        let shown = change.shown(layer, git);
        // What was not there when the change began is withheld as a whole, and told by its note.
        let real = roots
            .real(layer)
            .and_then(|root| tree::open_below(root, git));
        let upper = roots
            .upper(layer)
            .and_then(|root| tree::open_below(root, git));
        let (Ok(real), Ok(upper)) = (real, upper) else {
            continue;
        };
        if !repository::is_real(real.as_fd()) {
            continue;
        }
        if !selection.covers(layer, git) {
            let mut asked = entries.iter().filter(|entry| entry.named);
            if let Some(entry) = asked.find(|entry| entry.status != Status::Touched) {
                applied.held.push(ReportedPath {
                    path: change.shown(layer, &entry.path),
                    why: IN_PART.into(),
                });
            }
            continue;
        }
        let owner = Node::of(&real).doing("look at", &shown)?.owner;
        let real_path = change.layers()[layer].real.join(git);
        let locks = Locks::new(change, real_path, owner);
        let mut bringing = Bringing {
            change,
            layer,
            git,
            known: Known::read(change)?,
            view: View::new(upper, real),
            own: own_worktree(change, layer),
            owner,
            locks: &locks,
            held: BTreeSet::new(),
            applied,
            hold_flagged: options.hold_flagged,
            touched: &touched,
            made: Vec::new(),
        };
        bringing.all(&entries)?;
        let made: Vec<(usize, &Path, Node)> = bringing
            .made
            .iter()
            .map(|(path, node)| (layer, path.as_path(), node.clone()))
            .collect();
        Known::add(change, &made)?;
        let held = bringing.held;
        match afterwards {
            Afterwards::Clear => clear(change, roots, (layer, git, whole), &entries, &held)?,
            Afterwards::Keep => {
                let done = entries.iter().filter(|entry| {
                    let below = entry.path.strip_prefix(git).unwrap_or(&entry.path);
                    !below.as_os_str().is_empty() && !held.contains(below)
                });
                let left = |entry: &&&Entry| {
                    let left = Left::of(entry.after.as_ref());
                    (layer, entry.path.clone(), left)
                };
                Landed::add(change, done.map(|entry| left(&entry)))?;
            }
        }
    }
    Ok(())
}

/// The part of a common git directory that is the workspace's own, when it is a worktree.
pub(crate) fn own_worktree(change: &Change, layer: usize) -> Option<PathBuf> {
    let layer = change.layers().get(layer)?;
    if layer.role != LayerRole::Git {
        return None;
    }
    let own = ignored::git_directory(change.workspace())?;
    let own = std::fs::canonicalize(own).ok()?;
    let below = own.strip_prefix(&layer.real).ok()?;
    (!below.as_os_str().is_empty()).then(|| below.to_owned())
}

struct Bringing<'a> {
    change: &'a Change,
    layer: usize,
    git: &'a Path,
    known: Known,
    view: View,
    own: Option<PathBuf>,
    owner: (u32, u32),
    locks: &'a Locks<'a>,
    /// Paths below the git directory that stay aside.
    held: BTreeSet<PathBuf>,
    applied: &'a mut Applied,
    /// Whether what has to be told stays aside.
    hold_flagged: bool,
    /// Files whose times alone changed, by their real paths: no diff showed them.
    touched: &'a BTreeSet<PathBuf>,
    /// What was written, by path below the layer.
    made: Vec<(PathBuf, Node)>,
}

impl Bringing<'_> {
    fn all(&mut self, entries: &[&Entry]) -> Result<(), WorkspaceError> {
        let sorted: Vec<(PathBuf, Sorted, &Entry)> = entries
            .iter()
            .map(|entry| {
                let path = entry
                    .path
                    .strip_prefix(self.git)
                    .unwrap_or(&entry.path)
                    .to_owned();
                let sorted = self.sort(&path);
                (path, sorted, *entry)
            })
            .collect();
        for (path, sorted, entry) in &sorted {
            if let Some(obstacle) = &entry.obstacle {
                self.hold(path, obstacle);
            } else if let (Part::Object(file), Some(_)) = (&sorted.part, &entry.after) {
                let brought = self.object(path, file);
                if matches!(brought, Ok(Done::Brought)) {
                    self.applied.objects += 1;
                }
                self.note(path, brought);
            }
        }
        let complete = self.held.is_empty();
        let mut bases: BTreeSet<&Path> = BTreeSet::new();
        let mut names: BTreeMap<&Path, BTreeSet<String>> = BTreeMap::new();
        for (path, sorted, entry) in &sorted {
            bases.insert(&sorted.base);
            match &sorted.part {
                Part::Reference(name) => {
                    let all = names.entry(&sorted.base).or_default();
                    self.names_below(&sorted.base, name, entry, all);
                }
                Part::PackedReferences => {
                    let packed = self.view.all_packed(&sorted.base);
                    names.entry(&sorted.base).or_default().extend(packed);
                }
                Part::Withheld(why) if !is_directory(entry) => self.hold(path, why),
                _ => {}
            }
        }
        if !complete {
            // Nothing may lead to what is not there.
            for (path, _, _) in &sorted {
                self.held.insert(path.clone());
            }
            return Ok(());
        }
        // Before anything moves: what the user has staged is told from what is committed by it.
        let mut heads: BTreeMap<&Path, HeadBefore> = BTreeMap::new();
        for (_, sorted, _) in sorted
            .iter()
            .filter(|(_, sorted, _)| sorted.part == Part::Index)
        {
            heads.insert(&sorted.base, self.head_before(&sorted.base));
        }
        let mut was_moved = false;
        for (base, names) in names {
            for name in names {
                let path = base.join(&name);
                let moved = self.reference(base, &name);
                // It may have been moved by an apply that was killed.
                was_moved |= matches!(moved, Ok(Done::Same))
                    && entries.iter().any(|entry| {
                        entry.status != Status::Touched && entry.path == self.git.join(&path)
                    });
                let is_held = matches!(moved, Err(_) | Ok(Done::Held(_)));
                self.note(&path, moved);
                if is_held {
                    // Perhaps only the packed ones have it: they stay aside with it.
                    self.held.insert(base.join("packed-refs"));
                }
            }
        }
        for (path, sorted, entry) in &sorted {
            let done = match &sorted.part {
                Part::Head => self.head(&sorted.base, path),
                Part::Log => self.log(&sorted.base, path, entry),
                Part::PseudoReference => self.pseudo_reference(path, entry),
                Part::Unfinished if self.hold_flagged && entry.status != Status::Touched => {
                    Ok(Done::Held(part::UNFINISHED.into()))
                }
                Part::Unfinished => self.unfinished(path, entry),
                Part::Text => self.text(path, entry),
                Part::Config => self.config(path, entry),
                _ => continue,
            };
            if matches!(done, Ok(Done::Brought)) && sorted.part != Part::Head {
                self.applied.of_git += 1;
            }
            self.note(path, done);
        }
        // Last, when every HEAD is what it will be, a submodule's too.
        for (path, sorted, entry) in &sorted {
            if sorted.part != Part::Index {
                continue;
            }
            let before = match heads.get(&*sorted.base) {
                Some(before) if !was_moved => before,
                _ => &HeadBefore::Unknown,
            };
            let done = self.index((&sorted.base, path), entry, before);
            if matches!(done, Ok(Done::Brought)) {
                self.applied.of_git += 1;
            }
            self.note(path, done);
        }
        Ok(())
    }

    fn sort(&self, path: &Path) -> Sorted {
        let is_module = |path: &Path| {
            ["HEAD", "objects"]
                .iter()
                .all(|name| self.view.real_has(&path.join(name)))
        };
        sort(path, self.own.as_deref(), &is_module)
    }

    fn hold(&mut self, path: &Path, why: &str) {
        if self.held.insert(path.to_owned()) {
            let shown = self.change.shown(self.layer, &self.git.join(path));
            if why == MOVED_ON {
                self.applied.conflicts.push(shown.clone());
            }
            self.applied.held.push(ReportedPath {
                path: shown,
                why: why.to_owned(),
            });
        }
    }

    /// Takes note of how something went: done, nothing to do, or why not.
    fn note(&mut self, path: &Path, result: io::Result<Done>) {
        step();
        match result {
            Ok(Done::Nothing) => {}
            Ok(Done::Brought) => {
                self.is_ours(path);
            }
            // Perhaps by an apply that was killed before it could write that down.
            Ok(Done::Same) => self.is_ours(path),
            Ok(Done::Held(why)) => self.hold(path, &why),
            Err(error) => self.hold(path, &error.to_string()),
        }
    }

    /// Takes note that what the real git directory has is no edit of the host's.
    fn is_ours(&mut self, path: &Path) {
        if let Ok(Some(node)) = self.view.real_node(path) {
            self.made.push((self.git.join(path), node));
        }
    }

    /// Whether the host changed a file of the real git directory since the change began.
    fn moved_on(&self, path: &Path) -> io::Result<bool> {
        Ok(self.view.real_node(path)?.is_some_and(|node| {
            node.changed >= self.change.began()
                && !self.known.is_ours(self.layer, &self.git.join(path), &node)
        }))
    }

    fn object(&mut self, path: &Path, file: &ObjectFile) -> io::Result<Done> {
        if *file == ObjectFile::Made || objects::exists(&self.view.real, path) {
            return Ok(Done::Nothing);
        }
        let from = self.view.open_upper(path)?;
        let name = path.file_name().unwrap_or_default();
        let above = refs::make_directories(
            self.view.real.as_fd(),
            path.parent().unwrap_or(Path::new("")),
        )?;
        match file {
            ObjectFile::Loose(hash) => {
                if !self.put(&from, above.as_fd(), name, Some(hash))? {
                    return Ok(Done::Held("it is not the object that its name says".into()));
                }
            }
            ObjectFile::Pack => {
                let aside = self.change.directory().join(PACKS);
                remove_tree(self.change.directory(), OsStr::new(PACKS))
                    .map_err(io::Error::other)?;
                std::fs::create_dir(&aside)?;
                let (pack, index) = objects::index_pack(&from, name, &aside)?;
                self.put(&File::open(&pack)?, above.as_fd(), name, None)?;
                // The index last: with it git begins to use the pack.
                let as_name = index.file_name().unwrap_or_default();
                self.put(&File::open(&index)?, above.as_fd(), as_name, None)?;
                remove_tree(self.change.directory(), OsStr::new(PACKS))
                    .map_err(io::Error::other)?;
            }
            ObjectFile::Made => {}
        }
        Ok(Done::Brought)
    }

    /// Puts a file of objects in a directory, whole or not at all; not if its copy, which nobody
    /// but us writes, is not the loose object that it has to be.
    fn put(
        &self,
        from: &File,
        above: BorrowedFd<'_>,
        name: &OsStr,
        hash: Option<&str>,
    ) -> io::Result<bool> {
        use ironcage_sys::rustix::fs::{AtFlags, Mode, fsync, unlinkat};
        let temporary = format!("tmp_obj_{}", self.change.id());
        let to = tree::create_temporary(above, &temporary, Mode::from_raw_mode(0o444))?;
        let away = || Ok(unlinkat(above, temporary.as_str(), AtFlags::empty())?);
        content::copy(from, &to)?;
        if let Some(hash) = hash {
            match objects::is_true(&to, hash) {
                Ok(true) => {}
                other => return away().and(other),
            }
        }
        refs::give(&to, self.owner)?;
        fsync(&to)?;
        match renameat_with(
            above,
            temporary.as_str(),
            above,
            name,
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => away().map(|()| true),
            Err(error) => Err(error.into()),
        }
    }

    /// The references that an entry is about: itself, or all that were in a directory.
    fn names_below(&self, base: &Path, name: &str, entry: &Entry, all: &mut BTreeSet<String>) {
        if is_directory(entry)
            || entry
                .before
                .as_ref()
                .is_some_and(|node| node.kind == Kind::Directory)
        {
            all.extend(self.view.loose_below(base, name));
        } else {
            all.insert(name.to_owned());
        }
    }

    fn reference(&mut self, base: &Path, name: &str) -> io::Result<Done> {
        let wanted = self.view.inside(base, name)?;
        let real = self.view.outside(base, name)?;
        if wanted == real {
            return Ok(Done::Same);
        }
        if !refs::is_name(name) {
            return Ok(Done::Held("git takes no such name".into()));
        }
        let path = base.join(name);
        // Packed, or in a directory that is new, it has not been judged by its name.
        if let Part::Withheld(why) = self.sort(&path).part {
            return Ok(Done::Held(why.into()));
        }
        if real.is_none() {
            if refs::is_like_a_commit(name) {
                return Ok(Done::Held("git takes its name for a commit today".into()));
            }
            for other in refs::hidden_by(name) {
                match self.view.real_has_reference(base, &other) {
                    Ok(false) => {}
                    Ok(true) => {
                        return Ok(Done::Held(format!("its name leads git to {other} today")));
                    }
                    Err(error) => {
                        return Ok(Done::Held(format!(
                            "its name may lead git to {other} today, which cannot be read: {error}"
                        )));
                    }
                }
            }
        }
        let holds_it = match self.view.real_node(&path)? {
            Some(_) => path.clone(),
            None => base.join("packed-refs"),
        };
        if self.moved_on(&holds_it)? && real.is_some() {
            return Ok(Done::Held(MOVED_ON.into()));
        }
        let lock = self.locks.take(self.view.real.as_fd(), &path)?;
        // With the lock in hand nobody else moves it.
        if self.view.outside(base, name)? != real {
            lock.release();
            return Ok(Done::Held(MOVED_ON.into()));
        }
        match &wanted {
            Some(value) => lock.replace(format!("{value}\n").as_bytes())?,
            None => {
                if let Err(error) = self.drop_packed(base, name) {
                    lock.release();
                    return Err(error);
                }
                lock.remove()?;
            }
        }
        self.moved((base, name), real, wanted);
        Ok(Done::Brought)
    }

    /// Takes a name out of the real packed references. If only we changed them, they are none
    /// that the host changed for the names that follow.
    fn drop_packed(&mut self, base: &Path, name: &str) -> io::Result<()> {
        let path = base.join("packed-refs");
        let untouched = !self.moved_on(&path)?;
        self.view.drop_packed(base, name, self.locks)?;
        if untouched && let Some(node) = self.view.real_node(&path)? {
            self.known.note(self.layer, self.git.join(&path), &node);
            self.is_ours(&path);
        }
        Ok(())
    }

    /// Takes note of a reference that came over.
    fn moved(&mut self, (base, name): (&Path, &str), from: Option<String>, to: Option<String>) {
        let own = self.own.as_deref();
        let repository = moved::repository(self.change, (self.layer, self.git), (base, own));
        let moved = ReferenceChange::new((repository, name), from, to);
        self.applied.references.extend(moved);
    }

    fn head(&mut self, base: &Path, path: &Path) -> io::Result<Done> {
        let wanted = refs::loose(self.view.upper.as_fd(), path)?;
        let real = refs::loose(self.view.real.as_fd(), path)?;
        let Some(value) = wanted else {
            return Ok(Done::Held("it is no HEAD that git would take".into()));
        };
        if real.as_ref() == Some(&value) {
            return Ok(Done::Same);
        }
        if self.moved_on(path)? {
            return Ok(Done::Held(MOVED_ON.into()));
        }
        let lock = self.locks.take(self.view.real.as_fd(), path)?;
        if refs::loose(self.view.real.as_fd(), path)? != real {
            lock.release();
            return Ok(Done::Held(MOVED_ON.into()));
        }
        lock.replace(format!("{value}\n").as_bytes())?;
        self.moved((base, "HEAD"), real, Some(value));
        Ok(Done::Brought)
    }
}

enum Done {
    Nothing,
    /// Both sides have the same.
    Same,
    Brought,
    Held(String),
}

/// What is said of settings that stay aside.
pub(crate) fn withheld_settings(names: &[String]) -> String {
    format!(
        "settings can run programs or lead elsewhere: {}",
        names.join(", ")
    )
}

fn is_directory(entry: &Entry) -> bool {
    entry
        .after
        .as_ref()
        .is_some_and(|node| node.kind == Kind::Directory)
}

/// What was brought over leaves the upper layer: all of it, or name by name where something
/// stays.
fn clear(
    change: &Change,
    roots: &Roots,
    (layer, git, whole): (usize, &Path, bool),
    entries: &[&Entry],
    held: &BTreeSet<PathBuf>,
) -> Result<(), WorkspaceError> {
    let shown = change.shown(layer, git);
    let upper = roots.upper(layer).doing("open", &shown)?;
    let real = roots.real(layer).doing("open", &shown)?;
    if whole && held.is_empty() && !git.as_os_str().is_empty() {
        let directory: OwnedFd =
            tree::open_root(change.directory()).doing("open", change.directory())?;
        remove_tree(change.directory(), OsStr::new(OUT))?;
        upper::reveal_to(upper, real, git).doing("clear", &shown)?;
        upper::move_out(upper, git, directory.as_fd(), OsStr::new(OUT)).doing("clear", &shown)?;
        remove_tree(change.directory(), OsStr::new(OUT))?;
        return Ok(());
    }
    for entry in entries.iter().rev() {
        let below = entry.path.strip_prefix(git).unwrap_or(&entry.path);
        if below.as_os_str().is_empty() || held.contains(below) {
            continue;
        }
        step();
        upper::reveal_to(upper, real, &entry.path).doing("clear", &shown)?;
        upper::take_out(upper, &entry.path, is_directory(entry)).doing("clear", &shown)?;
    }
    Ok(())
}
