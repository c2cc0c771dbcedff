//! Decides what of a change is applied, and how.

use super::journal::{Action, JudgedEntry, Step};
use super::landing::see;
use super::staging::Dress;
use super::{Applied, ApplyOptions, OnConflict, staging};
use crate::dependency_tree::DependencyTree;
use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::executed::Note;
use crate::landed::Left;
use crate::mode::Umask;
use crate::reading::{Entry, Reading, Status};
use crate::summary::ReportedPath;
use crate::tree::{self, Kind, Node};
use crate::unified::quoted;
use crate::{Change, Selection};
use ironcage_catalog::Class;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// The steps that apply a reading, and what stays aside.
pub(super) fn plan(
    change: &Change,
    roots: &Roots,
    reading: &Reading,
    selection: &Selection,
    options: &ApplyOptions,
) -> Result<(Vec<Step>, Applied), WorkspaceError> {
    let mut applied = Applied::default();
    let mut steps: Vec<Step> = Vec::new();
    // Directories that stay aside, with all that is in them.
    let mut aside: BTreeSet<(usize, PathBuf)> = BTreeSet::new();
    let umask = Umask::of_process();
    let whole_aside = held_dependencies(change, reading, selection, options);
    for ((layer, root), why) in &whole_aside {
        applied.held.push(ReportedPath {
            path: change.shown(*layer, root),
            why: why.clone(),
        });
    }
    for entry in &reading.entries {
        let shown = change.shown(entry.layer, &entry.path);
        let inside = |aside: &BTreeSet<(usize, PathBuf)>| {
            entry
                .path
                .ancestors()
                .any(|above| aside.contains(&(entry.layer, above.to_owned())))
        };
        let dependencies = entry.dependencies.as_ref();
        let in_held_tree = dependencies
            .is_some_and(|tree| whole_aside.contains_key(&(entry.layer, tree.root.clone())));
        if in_held_tree
            || belongs_to_git(change, entry, (selection, options), &mut applied)
            || inside(&aside)
        {
            continue;
        }
        let verdict = judge(change, entry, selection, options);
        if let Verdict::Hold(why) = &verdict {
            if entry.conflict && entry.obstacle.is_none() {
                applied.conflicts.push(shown.clone());
            }
            applied.held.push(ReportedPath {
                path: shown.clone(),
                why: why.clone(),
            });
        }
        match verdict {
            Verdict::Hold(_) | Verdict::Leave => {
                // What lies in a directory that exists can be applied without it.
                let exists = entry
                    .before
                    .as_ref()
                    .is_some_and(|node| node.kind == Kind::Directory);
                if !exists {
                    aside.insert((entry.layer, entry.path.clone()));
                }
            }
            Verdict::Forget => steps.push(make(entry, Action::Forget, false, umask)),
            Verdict::Apply => {
                let on_the_way = !selection.covers(entry.layer, &entry.path);
                if entry.status != Status::Touched && !on_the_way {
                    let flagged = entry.notes.iter();
                    applied.flagged.extend(flagged.map(|note| ReportedPath {
                        path: change.shown(entry.layer, &note.root),
                        why: note.why.clone(),
                    }));
                }
                let actions = actions((change, roots), entry, selection, umask);
                steps.extend(actions.doing("look at", &shown)?);
            }
        }
    }
    Ok((steps, applied))
}

/// The trees of installed packages of which something stays aside, and so all of it, with why.
fn held_dependencies(
    change: &Change,
    reading: &Reading,
    selection: &Selection,
    options: &ApplyOptions,
) -> BTreeMap<(usize, PathBuf), String> {
    let mut held = BTreeMap::new();
    for entry in &reading.entries {
        let Some(DependencyTree { root, .. }) = &entry.dependencies else {
            continue;
        };
        let key = (entry.layer, root.clone());
        if held.contains_key(&key) {
            continue;
        }
        if let Verdict::Hold(why) = judge(change, entry, selection, options) {
            let of_the_tree = entry
                .notes
                .iter()
                .any(|note| note.root == *root && note.why == why);
            let why = match of_the_tree || entry.path == *root {
                true => why,
                false => {
                    let path = quoted("", &change.shown(entry.layer, &entry.path));
                    format!("it is applied as a whole, and {path} cannot be: {why}")
                }
            };
            held.insert(key, why);
        }
    }
    held
}

/// Whether an entry is brought over by the rules of git, or not at all. What was named in a git
/// directory, or is allowed, is applied as any other file.
fn belongs_to_git(
    change: &Change,
    entry: &Entry,
    (selection, options): (&Selection, &ApplyOptions),
    applied: &mut Applied,
) -> bool {
    let Some(git) = &entry.git else {
        return false;
    };
    let is_new = is_new(entry, git);
    let allowed = change.lies_in_git(entry.layer, (git, &entry.path), &options.allowed);
    let named = is_named(entry, git, selection) || !is_new && allowed && &entry.path != git;
    if !named
        && is_new
        && &entry.path == git
        && let Some(note) = entry.notes.first()
    {
        applied.held.push(ReportedPath {
            path: change.shown(entry.layer, git),
            why: note.why.clone(),
        });
    }
    !named
}

/// Whether a git directory was not there when the change began.
fn is_new(entry: &Entry, git: &Path) -> bool {
    entry.notes.iter().any(|note| note.root == git)
}

/// Whether something withheld in a git directory was named, or that of it which the lists name.
/// An index or a reference has a way of its own to come over, which a name does not go around.
pub(crate) fn is_named(entry: &Entry, git: &Path, selection: &Selection) -> bool {
    let names = |path: &Path| selection.names(entry.layer, path);
    if is_new(entry, git) {
        return names(git);
    }
    let root = |note: &Note| note.class == Class::Withheld && names(&note.root);
    let is_on_the_way = is_directory(entry.after.as_ref()) && names(&entry.path);
    entry.path != git && (is_on_the_way || entry.notes.iter().any(root))
}

enum Verdict {
    Apply,
    Hold(String),
    /// Not asked for, and so not told.
    Leave,
    /// The agent's version goes.
    Forget,
}

/// Whether an entry would be applied.
pub(super) fn is_applied(
    change: &Change,
    entry: &Entry,
    selection: &Selection,
    options: &ApplyOptions,
) -> bool {
    matches!(judge(change, entry, selection, options), Verdict::Apply)
}

fn judge(change: &Change, entry: &Entry, selection: &Selection, options: &ApplyOptions) -> Verdict {
    if let Some(obstacle) = &entry.obstacle {
        return Verdict::Hold(obstacle.clone());
    }
    if entry.path.starts_with(staging::name(change.id())) {
        return Verdict::Hold("the name is Ironcage's own".into());
    }
    for note in &entry.notes {
        let held = note.class == Class::Withheld || options.hold_flagged;
        let dependencies = entry.dependencies.as_ref();
        // What is applied as a whole is named, or allowed, as a whole.
        let (allowed, named) = match dependencies.filter(|tree| tree.root == note.root) {
            Some(DependencyTree { root, .. }) => (
                change.lies_in(entry.layer, root, &options.allowed),
                selection.names_whole(entry.layer, root),
            ),
            None => (
                change.lies_in(entry.layer, &entry.path, &options.allowed),
                selection.names(entry.layer, &note.root),
            ),
        };
        if held && !allowed && !named {
            return match entry.status {
                // Nothing that anybody would miss, and so nothing to tell.
                Status::Touched if is_directory(entry.after.as_ref()) => Verdict::Leave,
                Status::Touched => Verdict::Forget,
                _ => Verdict::Hold(note.why.clone()),
            };
        }
    }
    if !entry.conflict {
        return Verdict::Apply;
    }
    match options.on_conflict {
        OnConflict::Keep => Verdict::Hold("it changed in the real tree too".into()),
        OnConflict::Theirs => Verdict::Apply,
        // A directory that the host removed cannot be kept by forgetting one name.
        OnConflict::Ours if is_directory(entry.after.as_ref()) => Verdict::Leave,
        OnConflict::Ours => Verdict::Forget,
    }
}

fn is_directory(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.kind == Kind::Directory)
}

fn make(entry: &Entry, action: Action, finish: bool, umask: Umask) -> Step {
    let after = entry.after.clone().map(|mut node| {
        node.mode = umask.applied_mode(entry.before.as_ref(), &node);
        node
    });
    let dependencies = entry.dependencies.as_ref();
    Step {
        layer: entry.layer,
        path: entry.path.clone(),
        action,
        held: None,
        whole: dependencies.map(|tree| tree.root.clone()),
        finish: after.as_ref().filter(|_| finish).map(Dress::from),
        left: Left::of(entry.after.as_ref()),
        judged: after.map(|node| JudgedEntry {
            node,
            same: entry.status == Status::Touched,
        }),
    }
}

fn actions(
    (change, roots): (&Change, &Roots),
    entry: &Entry,
    selection: &Selection,
    umask: Umask,
) -> io::Result<Vec<Step>> {
    let make = |action, finish| make(entry, action, finish, umask);
    // Only on the way to what was named: it is made where it is missing, no more.
    let on_the_way = !selection.covers(entry.layer, &entry.path);
    let seen = || -> io::Result<_> {
        let Some(before) = &entry.before else {
            return Ok(None);
        };
        let root = roots.real(entry.layer)?;
        let above = tree::open_below(root, entry.path.parent().unwrap_or(Path::new("")))?;
        let name = entry.path.file_name().unwrap_or_default();
        see(above.as_fd(), name, before).map(Some)
    };
    let put = || -> io::Result<Step> {
        let action = Action::Put {
            replaces: seen()?,
            staged: None,
        };
        Ok(make(action, false))
    };
    let to_directory = is_directory(entry.after.as_ref());
    Ok(match entry.status {
        Status::Removed => match seen()? {
            Some(seen) => vec![make(Action::Remove { seen }, false)],
            None => Vec::new(),
        },
        Status::Type if to_directory => match seen()? {
            Some(seen) => vec![
                make(Action::Remove { seen }, false),
                make(Action::MakeDirectory, true),
            ],
            None => Vec::new(),
        },
        Status::Added if to_directory => vec![make(Action::MakeDirectory, true)],
        Status::Mode if to_directory && !on_the_way => vec![make(Action::Finish, true)],
        Status::Touched if to_directory && !on_the_way => {
            // What the host did in it since then has a time of its own.
            let untouched = entry
                .before
                .as_ref()
                .is_some_and(|node| node.modified < change.began());
            vec![make(Action::Finish, untouched)]
        }
        Status::Mode | Status::Touched if to_directory => Vec::new(),
        Status::Touched if is_the_same(roots, entry)? => vec![make(Action::Forget, false)],
        Status::Added | Status::Modified | Status::Mode | Status::Touched | Status::Type => {
            vec![put()?]
        }
    })
}

/// Whether nothing at all differs: the overlay copied it and nobody changed the copy.
fn is_the_same(roots: &Roots, entry: &Entry) -> io::Result<bool> {
    let (Some(before), Some(after)) = (&entry.before, &entry.after) else {
        return Ok(false);
    };
    if before.modified != after.modified || before.owner != after.owner {
        return Ok(false);
    }
    if after.kind != Kind::File {
        return Ok(true);
    }
    // It has a new name elsewhere in the change, and is to be one file with it.
    if after.links > 1 {
        return Ok(false);
    }
    let (ours, theirs) = (
        tree::open_file_below(roots.real(entry.layer)?, &entry.path)?,
        tree::open_file_below(roots.upper(entry.layer)?, &entry.path)?,
    );
    staging::same_attributes(ours.as_fd(), theirs.as_fd())
}
