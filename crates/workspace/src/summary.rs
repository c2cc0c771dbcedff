//! A change in a few lines: what differs, what is withheld and why.

use crate::differences::{Roots, differences};
use crate::error::WorkspaceError;
use crate::reading::{IgnoredTree, Reading, Status};
use crate::unified::quoted;
use crate::{Change, ReferenceChange, Selection};
use ironcage_catalog::Class;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// More of one sort are counted, not listed.
pub(crate) const MOST_LISTED: usize = 20;
/// The same in a long list, of those with one reason.
const MOST_OF_ONE_SORT: usize = 5;

/// Something that has to be told, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportedPath {
    /// Where: below the workspace, or absolute in another layer.
    pub path: PathBuf,
    pub why: String,
}

/// A change in a few lines.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Files that are new.
    pub added: usize,
    /// Files that hold something else, or have another mode.
    pub changed: usize,
    /// Files that are gone.
    pub removed: usize,
    /// Files that were moved.
    pub moved: usize,
    /// Lines added, in files that have lines.
    pub lines_added: usize,
    pub lines_removed: usize,
    /// Differences in git directories.
    pub git: usize,
    /// Branches, tags and HEADs that are new, moved or deleted.
    pub references: Vec<ReferenceChange>,
    /// What stays aside until it is named.
    pub withheld: Vec<ReportedPath>,
    /// What is applied, and told.
    pub flagged: Vec<ReportedPath>,
    /// What cannot be applied.
    pub obstacles: Vec<ReportedPath>,
    /// What the host changed meanwhile.
    pub conflicts: Vec<PathBuf>,
    pub ignored: Vec<IgnoredTree>,
    /// Whether all that differs is installed packages, or ignored by git: nothing of it is applied
    /// unless it is named.
    pub only_aside: bool,
}

impl Change {
    /// The change in a few lines.
    ///
    /// # Errors
    /// Where the layers cannot be read.
    pub fn summary(&self) -> Result<Summary, WorkspaceError> {
        let reading = self.read_entries(&Selection::everything())?;
        let roots = Roots::open(self)?;
        Ok(self.summary_of(&roots, &reading))
    }

    /// A part of the change in a few lines, as it was read.
    pub fn summary_of(&self, roots: &Roots, reading: &Reading) -> Summary {
        let change = self;
        let mut summary = Summary::default();
        for difference in differences(roots, reading, &|entry| entry.named) {
            match difference.status {
                _ if difference.moved.is_some() => summary.moved += 1,
                Status::Added => summary.added += 1,
                Status::Removed => summary.removed += 1,
                _ => summary.changed += 1,
            }
            if let Some((added, removed)) = difference.lines(roots) {
                summary.lines_added += added;
                summary.lines_removed += removed;
            }
        }
        let mut differing = reading
            .entries
            .iter()
            .filter(|entry| entry.status != Status::Touched || entry.obstacle.is_some());
        summary.only_aside =
            differing.all(|entry| entry.dependencies.is_some() && entry.obstacle.is_none());
        let (mut withheld, mut flagged) = (BTreeSet::new(), BTreeSet::new());
        for entry in &reading.entries {
            let shown = || change.shown(entry.layer, &entry.path);
            if entry.git.is_some() && !entry.named && entry.status != Status::Touched {
                summary.git += 1;
            }
            let differs = entry.status != Status::Touched;
            for note in entry.notes.iter().filter(|_| differs) {
                let told = ReportedPath {
                    path: change.shown(entry.layer, &note.root),
                    why: note.why.clone(),
                };
                match note.class {
                    Class::Withheld => withheld.insert(told),
                    Class::Flagged => flagged.insert(told),
                };
            }
            if let Some(obstacle) = &entry.obstacle {
                summary.obstacles.push(ReportedPath {
                    path: shown(),
                    why: obstacle.clone(),
                });
            }
            if entry.conflict {
                summary.conflicts.push(shown());
            }
        }
        summary.withheld = withheld.into_iter().collect();
        summary.flagged = flagged.into_iter().collect();
        summary.ignored = reading.ignored.clone();
        summary.references = crate::git::references(change, roots, reading);
        summary
    }

    /// Names what stays aside, for one line.
    pub fn aside(&self, summary: &Summary) -> String {
        const MOST_NAMED: usize = 3;
        let packages = summary.withheld.iter().map(|told| &told.path);
        let ignored = summary.ignored.iter().map(|tree| &tree.path);
        let paths: BTreeSet<&PathBuf> = packages.chain(ignored).collect();
        let named = paths.iter().take(MOST_NAMED);
        let named: Vec<String> = named.map(|path| quoted("", path)).collect();
        let more = paths.len().saturating_sub(MOST_NAMED);
        match more {
            0 => named.join(" "),
            more => format!("{} and {more} more", named.join(" ")),
        }
    }

    /// A path of a layer as people know it: below the workspace, or absolute.
    pub fn shown(&self, layer: usize, path: &Path) -> PathBuf {
        let Some(layer) = self.layers().get(layer) else {
            return path.to_owned();
        };
        if path.as_os_str().is_empty() && layer.real == self.workspace() {
            return PathBuf::from(".");
        }
        let real = layer.real.join(path);
        match real.strip_prefix(self.workspace()) {
            Ok(below) => below.to_owned(),
            Err(_) => real,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.added, "added"),
            (self.changed, "changed"),
            (self.removed, "removed"),
            (self.moved, "moved"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let counts = match (counts.is_empty(), self.git) {
            (false, _) => counts.join(", "),
            (true, 0) => "no changed files".to_owned(),
            (true, _) => "no changed files outside the git directory".to_owned(),
        };
        write!(
            f,
            "{counts}; +{} -{} lines",
            self.lines_added, self.lines_removed
        )?;
        if self.git > 0 {
            write!(f, "; {} in the git directory", self.git)?;
        }
        // All of them, where all files are listed.
        let most = if f.alternate() {
            usize::MAX
        } else {
            MOST_LISTED
        };
        for reference in self.references.iter().take(most) {
            write!(f, "\n  reference {reference}")?;
        }
        if !f.alternate() {
            more(f, "reference", self.references.len())?;
        }
        told(f, "withheld", &self.withheld)?;
        told(f, "flagged", &self.flagged)?;
        told(f, "not applied", &self.obstacles)?;
        for path in self.conflicts.iter().take(MOST_LISTED) {
            write!(
                f,
                "\n  conflict  {}: changed in the real tree too",
                quoted("", path)
            )?;
        }
        more(f, "conflict", self.conflicts.len())?;
        if !self.conflicts.is_empty() {
            write!(f, "\n  {}", crate::apply::REMEDY)?;
        }
        for tree in self.ignored.iter().take(MOST_LISTED) {
            write!(
                f,
                "\n  ignored   {}: {} files, {} bytes; ignored by git, applied only when named",
                quoted("", &tree.path),
                tree.files,
                tree.bytes
            )?;
        }
        more(f, "ignored", self.ignored.len())
    }
}

/// Tells a list. A short one as it is. Of a long one each reason has lines of its own, so that junk
/// of one sort does not crowd out another: what lies in the root of the workspace, all of it, and
/// some of what lies deeper.
pub(crate) fn told<'a>(
    f: &mut fmt::Formatter<'_>,
    word: &str,
    list: impl IntoIterator<Item = &'a ReportedPath>,
) -> fmt::Result {
    let list: Vec<&ReportedPath> = list.into_iter().collect();
    let is_short = list.len() <= MOST_LISTED;
    let mut deeper: BTreeMap<&str, usize> = BTreeMap::new();
    for told in &list {
        if !is_short && told.path.components().count() > 1 {
            let count = deeper.entry(&told.why).or_default();
            *count += 1;
            if *count > MOST_OF_ONE_SORT {
                continue;
            }
        }
        let path = quoted("", &told.path);
        // The reason can hold the words of an error, never of the agent.
        write!(f, "\n  {word:9} {path}: {}", told.why)?;
    }
    for (why, count) in deeper {
        if let Some(rest @ 1..) = count.checked_sub(MOST_OF_ONE_SORT) {
            write!(f, "\n  {word:9} and {rest} more: {why}")?;
        }
    }
    Ok(())
}

pub(crate) fn more(f: &mut fmt::Formatter<'_>, word: &str, length: usize) -> fmt::Result {
    match length.checked_sub(MOST_LISTED) {
        Some(rest) if rest > 0 => write!(f, "\n  {word:9} and {rest} more"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct List(Vec<ReportedPath>);

    impl fmt::Display for List {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            told(f, "flagged", &self.0)
        }
    }

    fn one(path: &str, why: &str) -> ReportedPath {
        let (path, why) = (path.into(), why.into());
        ReportedPath { path, why }
    }

    #[test]
    fn junk_of_one_sort_crowds_nothing_out() {
        let junk = |number| one(&format!("a/{number:04}/Makefile"), "run by make");
        let mut list: Vec<ReportedPath> = (0..1000).map(junk).collect();
        list.push(one("Makefile", "run by make"));
        list.push(one("z/package.json", "names scripts"));
        let shown = List(list).to_string();
        for wanted in [
            "  Makefile: run",
            " z/package.json: names",
            " and 995 more: run by make",
        ] {
            assert!(
                shown.contains(wanted.trim_start_matches(' ')),
                "{wanted}: {shown}"
            );
        }
        assert!(shown.lines().count() < 12, "{shown}");
    }

    #[test]
    fn a_short_list_is_told_as_it_is() {
        let list: Vec<ReportedPath> = (0..MOST_LISTED)
            .map(|number| one(&format!("a/{number}"), "why"))
            .collect();
        let shown = List(list).to_string();
        assert_eq!(
            shown.lines().filter(|line| line.contains("a/")).count(),
            MOST_LISTED
        );
        assert!(!shown.contains("more"));
    }
}
