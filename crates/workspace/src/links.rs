//! The targets of symbolic links with names that the host executes or trusts.
//!
//! Lists contain names; `.vscode -> tools` makes `tools` one of them. This module resolves links as
//! the host would once the change is applied: by name in the agent's change and in the real tree,
//! never through the kernel. The same holds for the files that the user's git settings and hooks name.

use crate::differences::Roots;
use crate::executed::{self, Note};
use crate::git::{NamedPlace, named_places};
use crate::pth::StartupImports;
use crate::reading::Entry;
use crate::real_links::RealLinks;
use crate::tree::{self, Kind, Node};
use crate::unified::quoted;
use crate::{Change, LayerRole, Status};
use ironcage_catalog::Class;
use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Component, Path, PathBuf};

/// A way that takes more steps is a maze, which only an agent makes.
const LONGEST: usize = 400;

/// Puts notes to what the listed names lead to, and to links that lead outside.
pub(crate) fn annotate(change: &Change, roots: &Roots, entries: &mut [Entry]) {
    let both = Both { change, roots };
    let matters = |entry: &Entry| entry.git.is_none() && entry.status != Status::Touched;
    if !entries.iter().any(matters) {
        return;
    }
    for entry in entries.iter_mut().filter(|entry| is_single(entry)) {
        let link = entry.after.as_ref().and_then(|node| node.target.as_deref());
        if let Some(target) = link
            && both.leads_outside(entry.layer, &entry.path, target)
        {
            let told = |note: &Note| note.root == entry.path && note.class == Class::Flagged;
            if !entry.notes.iter().any(told) {
                let note = executed::shape("link-outside", entry.path.clone());
                entry.notes.extend(note);
            }
        }
    }
    // The walk for the links finds the `.pth` files and repositories for the others.
    let listed = both.listed();
    both.annotate_imports(entries);
    for directory in executed::path_directories() {
        both.annotate_path(&directory, entries);
    }
    both.note_removed_repositories(entries);
    for named in both.named_by_git() {
        both.note_named(&named, entries);
    }
    for link in listed {
        let ways = both.follow(&link.path, &link.beyond);
        for entry in entries.iter_mut().filter(|entry| entry.git.is_none()) {
            let Some(layer) = change.layers().get(entry.layer) else {
                continue;
            };
            let place = layer.real.join(&entry.path);
            let found = match &ways {
                Some(ways) => ways.of(&place),
                // A maze leads to every link that the agent made.
                None => (entry.after.as_ref())
                    .filter(|node| node.kind == Kind::Link)
                    .map(|_| place.as_path()),
            };
            let root = found.and_then(|found| found.strip_prefix(&layer.real).ok());
            if let Some(root) = root {
                entry.notes.push(Note {
                    class: link.class,
                    why: format!("{}; the link {} points to it", link.why, link.shown),
                    root: root.to_owned(),
                });
            }
        }
    }
}

/// Whether an entry is judged by itself: neither by the rules of git nor with a tree of packages.
fn is_single(entry: &Entry) -> bool {
    entry.git.is_none() && entry.dependencies.is_none()
}

/// A link of the real tree that has a listed name, or the beginning of one.
struct Listed {
    path: PathBuf,
    /// What of the listed name is to be looked for where it leads.
    beyond: Vec<OsString>,
    class: Class,
    why: &'static str,
    shown: String,
}

/// All places that a name can lead to, by whatever part of the change is applied.
#[derive(Default)]
struct LinkTargets {
    ends: BTreeSet<PathBuf>,
    /// Links that were passed.
    links: BTreeSet<PathBuf>,
}

impl LinkTargets {
    /// What of a place has to be named.
    fn of<'a>(&self, place: &'a Path) -> Option<&'a Path> {
        let mut above = place.ancestors();
        above
            .find(|above| self.ends.contains(*above))
            .or_else(|| self.links.contains(place).then_some(place))
    }
}

/// The names of a path, the last first.
fn steps(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect()
}

/// The real trees and what the change has over them.
struct Both<'a> {
    change: &'a Change,
    roots: &'a Roots,
}

impl Both<'_> {
    fn listed(&self) -> Vec<Listed> {
        let mut found = Vec::new();
        for (number, layer) in self.change.layers().iter().enumerate() {
            if layer.role == LayerRole::Git {
                continue;
            }
            let walked = self.roots.real(number).and_then(|root| {
                let mut real_links = self.change.real_links.borrow_mut();
                let links = real_links.entry(number).or_default();
                links.look(root, |path, begun| {
                    let shown = quoted("", &self.change.shown(number, path));
                    found.extend(begun.iter().map(|(listed, beyond)| Listed {
                        path: layer.real.join(path),
                        beyond: beyond.clone(),
                        class: listed.class,
                        why: listed.why,
                        shown: shown.clone(),
                    }));
                })
            });
            // A directory that the user cannot read is none that the user runs things from.
            let _ = walked;
        }
        found
    }

    /// Puts notes to what a Python would import when it starts.
    fn annotate_imports(&self, entries: &mut [Entry]) {
        let mut imports = StartupImports::default();
        for (number, layer) in self.change.layers().iter().enumerate() {
            let real_links = self.change.real_links.borrow();
            let (Some(links), Ok(root)) = (real_links.get(&number), self.roots.real(number)) else {
                continue;
            };
            for path in links.path_files() {
                imports.add_below(root, &layer.real, path);
            }
        }
        imports.add_users();
        for entry in entries.iter_mut().filter(|entry| is_single(entry)) {
            let Some(layer) = self.change.layers().get(entry.layer) else {
                continue;
            };
            let module = imports.module_of(&layer.real.join(&entry.path));
            let root = module
                .as_ref()
                .and_then(|root| root.strip_prefix(&layer.real).ok());
            let note = root.and_then(|root| executed::shape("imported-at-start", root.to_owned()));
            entry.notes.extend(note);
        }
    }

    /// Puts notes to programs that a directory of the search path would hold, and to links on the
    /// way to it, by whatever part of the change is applied.
    fn annotate_path(&self, directory: &Path, entries: &mut [Entry]) {
        let names = directory.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        });
        let ways = self.walk(PathBuf::from("/"), names.collect());
        for entry in entries.iter_mut().filter(|entry| is_single(entry)) {
            let (Some(layer), Some(after)) = (self.change.layers().get(entry.layer), &entry.after)
            else {
                continue;
            };
            let place = layer.real.join(&entry.path);
            let is_link = after.kind == Kind::Link;
            let name = match &ways {
                // A maze leads to every link that the agent made.
                None if is_link => "path-link",
                Some(ways) if is_link && ways.links.contains(&place) => "path-link",
                Some(ways) if is_link || executed::is_program(after) => {
                    match place
                        .parent()
                        .is_some_and(|above| ways.ends.contains(above))
                    {
                        true => "on-path",
                        false => continue,
                    }
                }
                _ => continue,
            };
            let note = executed::shape(name, entry.path.clone());
            if let Some(note) = note.filter(|note| !entry.notes.contains(note)) {
                entry.notes.push(note);
            }
        }
    }

    /// The directories of a layer that have a `.git`, as they were last looked at.
    fn repositories(&self, layer: usize) -> Vec<PathBuf> {
        let real_links = self.change.real_links.borrow();
        let found = real_links.get(&layer).map(RealLinks::repositories);
        found.unwrap_or_default()
    }

    /// Puts a note to a directory that goes with a repository in it.
    fn note_removed_repositories(&self, entries: &mut [Entry]) {
        let is_directory = |node: &Node| node.kind == Kind::Directory;
        let is_removed = |entry: &&mut Entry| {
            entry.git.is_none()
                && entry.before.as_ref().is_some_and(is_directory)
                && !entry.after.as_ref().is_some_and(is_directory)
        };
        let layers = 0..self.change.layers().len();
        let repositories: Vec<Vec<PathBuf>> =
            layers.map(|layer| self.repositories(layer)).collect();
        for entry in entries.iter_mut().filter(is_removed) {
            let mut inner = repositories.get(entry.layer).into_iter().flatten();
            if inner.any(|repository| repository.starts_with(&entry.path)) {
                let note = executed::shape("repository-removed", entry.path.clone());
                entry.notes.extend(note);
            }
        }
    }

    /// What settings and hooks of git name, of every repository in the trees.
    fn named_by_git(&self) -> BTreeSet<NamedPlace> {
        let mut found = BTreeSet::new();
        for (number, layer) in self.change.layers().iter().enumerate() {
            if layer.role == LayerRole::Git {
                continue;
            }
            found.extend(named_places(&layer.real, &self.repositories(number)));
        }
        found
    }

    /// Puts notes to what a name of the user's git leads to.
    fn note_named(&self, named: &NamedPlace, entries: &mut [Entry]) {
        let ways = self.walk(PathBuf::from("/"), steps(&named.path));
        for entry in entries.iter_mut().filter(|entry| entry.git.is_none()) {
            let Some(layer) = self.change.layers().get(entry.layer) else {
                continue;
            };
            let place = layer.real.join(&entry.path);
            let is_file = |node: &Node| node.kind != Kind::Directory;
            let found = match &ways {
                Some(ways) if named.whole => ways.of(&place),
                // A word can be the name of a directory by chance, and a directory runs nothing.
                Some(ways) => (ways.ends.contains(&place) || ways.links.contains(&place))
                    .then_some(place.as_path())
                    .filter(|_| entry.after.as_ref().is_none_or(is_file)),
                None => (entry.after.as_ref())
                    .filter(|node| node.kind == Kind::Link)
                    .map(|_| place.as_path()),
            };
            let Some(root) = found.and_then(|found| found.strip_prefix(&layer.real).ok()) else {
                continue;
            };
            // A setting can name a directory that all of the tree lies in.
            let root = match root.as_os_str().is_empty() {
                true => entry.path.clone(),
                false => root.to_owned(),
            };
            if !entry.notes.iter().any(|note| note.why == named.why) {
                entry.notes.push(Note {
                    class: Class::Withheld,
                    why: named.why.clone(),
                    root,
                });
            }
        }
    }

    /// Follows a path, and what is looked for beyond it. `None` when it is a maze.
    fn follow(&self, path: &Path, beyond: &[OsString]) -> Option<LinkTargets> {
        let mut begun: Vec<OsString> = beyond.iter().rev().cloned().collect();
        begun.extend(path.file_name().map(OsStr::to_owned));
        self.walk(path.parent().unwrap_or(path).to_owned(), begun)
    }

    /// Follows names, the last one first, from a directory.
    fn walk(&self, from: PathBuf, names: Vec<OsString>) -> Option<LinkTargets> {
        let mut ways = LinkTargets::default();
        let mut open = vec![(from, names)];
        let mut seen = HashSet::new();
        while let Some((at, mut left)) = open.pop() {
            if !seen.insert((at.clone(), left.clone())) {
                continue;
            }
            if seen.len() > LONGEST || left.len() > LONGEST {
                return None;
            }
            let Some(name) = left.pop() else {
                ways.ends.insert(at);
                continue;
            };
            if name == ".." {
                let up = at.parent().unwrap_or(&at).to_owned();
                open.push((up, left));
                continue;
            }
            let next = at.join(&name);
            for node in self.nodes(&next) {
                let Some(target) = node.and_then(|node| node.target) else {
                    open.push((next.clone(), left.clone()));
                    continue;
                };
                ways.links.insert(next.clone());
                let mut left = left.clone();
                left.extend(steps(&target));
                let from = if target.is_absolute() {
                    Path::new("/")
                } else {
                    &at
                };
                open.push((from.to_owned(), left));
            }
        }
        Some(ways)
    }

    /// What has a path, or nothing: by the change and really.
    fn nodes(&self, path: &Path) -> Vec<Option<Node>> {
        let layers = self.change.layers().iter().enumerate();
        let layer = layers
            .filter(|(_, layer)| path.starts_with(&layer.real))
            .max_by_key(|(_, layer)| layer.real.components().count());
        let Some((number, layer)) = layer else {
            let target = std::fs::read_link(path).ok();
            return vec![target.and_then(|target| {
                let above = tree::open_root(path.parent()?).ok()?;
                let mut node = tree::look(above.as_fd(), path.file_name()?).ok()??;
                node.target = Some(target);
                Some(node)
            })];
        };
        let below = path.strip_prefix(&layer.real).unwrap_or(path);
        let look = |root: io::Result<BorrowedFd<'_>>| -> Option<Node> {
            let above = tree::open_below(root.ok()?, below.parent()?).ok()?;
            tree::look(above.as_fd(), below.file_name()?).ok()?
        };
        let real = look(self.roots.real(number));
        match look(self.roots.upper(number)) {
            None => vec![real],
            Some(upper) => vec![Some(upper), real],
        }
    }

    /// Whether a link of the agent's can lead out of the tree that it lies in.
    fn leads_outside(&self, layer: usize, path: &Path, target: &Path) -> bool {
        let Some(layer) = self.change.layers().get(layer) else {
            return true;
        };
        if target.is_absolute() {
            return true;
        }
        let inside = |ways: LinkTargets| ways.ends.iter().all(|end| end.starts_with(&layer.real));
        !self.follow(&layer.real.join(path), &[]).is_some_and(inside)
    }
}
