//! Where names that the host executes or trusts lead by symbolic links.
//!
//! Lists know names; `.vscode -> tools` makes `tools` one of them. The links of the real tree are
//! followed here as the host would follow them once the change is applied: as names in what an
//! agent made and in what really is, never by the kernel.

use crate::differences::Roots;
use crate::executed::{self, Note};
use crate::reading::Entry;
use crate::tree::{self, Kind, Node};
use crate::unified::quoted;
use crate::{Change, LayerRole, Status};
use ironcage_policy::Class;
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
    for entry in entries.iter_mut().filter(|entry| entry.git.is_none()) {
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
    for link in both.listed() {
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
                    why: format!("{}; the name {} leads to it", link.why, link.shown),
                    root: root.to_owned(),
                });
            }
        }
    }
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
struct Ways {
    ends: BTreeSet<PathBuf>,
    /// Links that were passed.
    links: BTreeSet<PathBuf>,
}

impl Ways {
    /// What of a place has to be named.
    fn of<'a>(&self, place: &'a Path) -> Option<&'a Path> {
        let mut above = place.ancestors();
        above
            .find(|above| self.ends.contains(*above))
            .or_else(|| self.links.contains(place).then_some(place))
    }
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

    /// Follows a path, and what is looked for beyond it. `None` when it is a maze.
    fn follow(&self, path: &Path, beyond: &[OsString]) -> Option<Ways> {
        let mut ways = Ways::default();
        let mut begun: Vec<OsString> = beyond.iter().rev().cloned().collect();
        begun.extend(path.file_name().map(OsStr::to_owned));
        let above = path.parent().unwrap_or(path).to_owned();
        let mut open = vec![(above, begun)];
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
                for part in target.components().rev() {
                    match part {
                        Component::Normal(name) => left.push(name.to_owned()),
                        Component::ParentDir => left.push("..".into()),
                        _ => {}
                    }
                }
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
        let inside = |ways: Ways| ways.ends.iter().all(|end| end.starts_with(&layer.real));
        !self.follow(&layer.real.join(path), &[]).is_some_and(inside)
    }
}
