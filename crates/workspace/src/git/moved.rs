//! The references that a change moves: branches, tags and HEAD, told before they come over and
//! when they did. All is read as text; no object is looked at.

use super::part::{self, Part, sort};
use super::view::View;
use super::{bring, refs, repository};
use crate::differences::Roots;
use crate::reading::{Entry, Reading};
use crate::tree::{self, Kind};
use crate::{Change, LayerRole};
use ironcage_model::Printable;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// How much of an object's name is shown.
const SHORT: usize = 7;

/// A branch, a tag, HEAD or another reference that a change makes, moves or deletes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReferenceChange {
    /// Whether it is lost, moved or new: what is lost is told first.
    pub how: HowMoved,
    /// Its whole name: `HEAD`, `refs/heads/main`.
    pub name: String,
    /// The git directory, where it is not the workspace's own.
    pub repository: Option<PathBuf>,
    /// The object, or `ref: ` and a name, that the real one leads to.
    pub before: Option<String>,
    /// The same of the agent's.
    pub after: Option<String>,
}

/// What became of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HowMoved {
    /// It is gone.
    Deleted,
    /// It leads elsewhere.
    Moved,
    New,
}

impl HowMoved {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            HowMoved::Deleted => "deleted",
            HowMoved::Moved => "moved",
            HowMoved::New => "new",
        }
    }
}

impl ReferenceChange {
    pub(crate) fn new(
        (repository, name): (Option<PathBuf>, &str),
        before: Option<String>,
        after: Option<String>,
    ) -> Option<ReferenceChange> {
        let how = match (&before, &after) {
            (before, after) if before == after => return None,
            (Some(_), None) => HowMoved::Deleted,
            (Some(_), Some(_)) => HowMoved::Moved,
            (None, _) => HowMoved::New,
        };
        Some(ReferenceChange {
            how,
            name: name.to_owned(),
            repository,
            before,
            after,
        })
    }
}

impl fmt::Display for ReferenceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [("branch ", "refs/heads/"), ("tag ", "refs/tags/")];
        let (kind, name) = kinds
            .iter()
            .find_map(|(kind, start)| Some((*kind, self.name.strip_prefix(start)?)))
            .unwrap_or(("", &self.name));
        write!(f, "{kind}{}", Printable::new(name))?;
        let (before, after) = (value(self.before.as_deref()), value(self.after.as_deref()));
        match self.how {
            HowMoved::Deleted => write!(f, " DELETED (was {before})")?,
            HowMoved::New => write!(f, " new at {after}")?,
            HowMoved::Moved if self.name == "HEAD" => write!(f, " {before} -> {after}")?,
            HowMoved::Moved => write!(f, " moved {before}..{after}")?,
        }
        match &self.repository {
            Some(git) => write!(f, " in {}", crate::unified::quoted("", git)),
            None => Ok(()),
        }
    }
}

/// Where a reference leads, in short.
fn value(value: Option<&str>) -> String {
    let value = value.unwrap_or_default();
    match value.strip_prefix("ref: ") {
        Some(name) => {
            let short = name.strip_prefix("refs/heads/").unwrap_or(name);
            Printable::new(short).to_string()
        }
        None => value.chars().take(SHORT).collect(),
    }
}

/// The references that a reading of a change makes, moves or deletes: what is lost first.
pub(crate) fn references(
    change: &Change,
    roots: &Roots,
    reading: &Reading,
) -> Vec<ReferenceChange> {
    let mut groups: BTreeMap<(usize, &Path), Vec<&Entry>> = BTreeMap::new();
    for entry in &reading.entries {
        if let Some(git) = &entry.git {
            groups.entry((entry.layer, git)).or_default().push(entry);
        }
    }
    let mut found = BTreeSet::new();
    for ((layer, git), entries) in groups {
        let real = roots
            .real(layer)
            .and_then(|root| tree::open_below(root, git));
        let upper = roots
            .upper(layer)
            .and_then(|root| tree::open_below(root, git));
        // A git directory that is new, or gone, is told as a whole.
        let (Ok(real), Ok(upper)) = (real, upper) else {
            continue;
        };
        if !repository::is_real(real.as_fd()) {
            continue;
        }
        let view = View::new(upper, real);
        let own = bring::own_worktree(change, layer);
        of_directory(&view, own.as_deref(), git, &entries, |base, name, sides| {
            let repository = repository(change, (layer, git), (base, own.as_deref()));
            let (before, after) = sides;
            found.extend(ReferenceChange::new((repository, name), before, after));
        });
    }
    found.into_iter().collect()
}

/// The name of a git directory, where it is not the workspace's own.
pub(crate) fn repository(
    change: &Change,
    (layer, git): (usize, &Path),
    (base, own): (&Path, Option<&Path>),
) -> Option<PathBuf> {
    let is_git = |layer: &crate::Layer| layer.role == LayerRole::Git;
    let shown = change.shown(layer, git);
    let main = shown == Path::new(".git") || change.layers().get(layer).is_some_and(is_git);
    let whole = base.as_os_str().is_empty() || Some(base) == own;
    (!main || !whole).then(|| shown.join(base))
}

type Sides = (Option<String>, Option<String>);

fn of_directory(
    view: &View,
    own: Option<&Path>,
    git: &Path,
    entries: &[&Entry],
    mut tell: impl FnMut(&Path, &str, Sides),
) {
    let is_module = |path: &Path| {
        ["HEAD", "objects"]
            .iter()
            .all(|name| view.real_has(&path.join(name)))
    };
    let mut names: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut heads = Vec::new();
    for entry in entries {
        let path = entry.path.strip_prefix(git).unwrap_or(&entry.path);
        let sorted = sort(path, own, &is_module);
        match sorted.part {
            Part::Reference(name) => {
                let all = names.entry(sorted.base.clone()).or_default();
                let was_directory = is_directory(entry.before.as_ref());
                match is_directory(entry.after.as_ref()) {
                    // What it holds, and hides, has entries of its own.
                    true if was_directory || entry.before.is_none() => {}
                    _ if was_directory => all.extend(view.loose_below(&sorted.base, &name)),
                    _ => {
                        all.insert(name);
                    }
                }
            }
            Part::PackedReferences => {
                let (agents, real) = view.both_packed(&sorted.base);
                let differs = |name: &&String| agents.get(*name) != real.get(*name);
                let all = names.entry(sorted.base).or_default();
                all.extend(agents.keys().filter(differs).cloned());
                all.extend(real.keys().filter(differs).cloned());
            }
            Part::Head => heads.push((sorted.base, path)),
            _ => {}
        }
    }
    for (base, path) in heads {
        let sides = (
            refs::loose(view.real.as_fd(), path).unwrap_or_default(),
            refs::loose(view.upper.as_fd(), path).unwrap_or_default(),
        );
        // Another is not brought over.
        if sides.1.is_some() {
            tell(&base, "HEAD", sides);
        }
    }
    for (base, names) in names {
        let (agents, real) = view.both_packed(&base);
        // What is no name of git's is not brought over, and no reference.
        let is_moved =
            |name: &&String| refs::is_name(name) && part::withheld_reference(name).is_none();
        for name in names.iter().filter(is_moved) {
            let path = base.join(name);
            let before = refs::loose(view.real.as_fd(), &path).unwrap_or_default();
            let after = view.inside_loose(&path).unwrap_or_default();
            let before = before.or_else(|| real.get(name).cloned());
            let after = after.or_else(|| agents.get(name).cloned());
            tell(&base, name, (before, after));
        }
    }
}

fn is_directory(node: Option<&tree::Node>) -> bool {
    node.is_some_and(|node| node.kind == Kind::Directory)
}
