//! A change in a few lines: what differs, what is withheld and why.

use crate::differences::{Roots, differences};
use crate::error::WorkspaceError;
use crate::reading::{IgnoredTree, Reading, Status};
use crate::unified::quoted;
use crate::{Change, ReferenceChange, Selection};
use ironcage_policy::Class;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// More of one sort are counted, not listed.
const MOST_LISTED: usize = 12;

/// Something that has to be told, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    /// Where: below the workspace, or absolute in another layer.
    pub path: PathBuf,
    /// Why.
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
    /// Lines removed.
    pub lines_removed: usize,
    /// Differences in git directories.
    pub git: usize,
    /// Branches, tags and HEADs that are new, moved or deleted.
    pub references: Vec<ReferenceChange>,
    /// What stays aside until it is named.
    pub withheld: Vec<Told>,
    /// What is applied, and told.
    pub flagged: Vec<Told>,
    /// What cannot be applied.
    pub obstacles: Vec<Told>,
    /// What the host changed meanwhile.
    pub conflicts: Vec<PathBuf>,
    /// What git ignores.
    pub ignored: Vec<IgnoredTree>,
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
        let (mut withheld, mut flagged) = (BTreeSet::new(), BTreeSet::new());
        for entry in &reading.entries {
            let shown = || change.shown(entry.layer, &entry.path);
            if entry.git.is_some() && !entry.named && entry.status != Status::Touched {
                summary.git += 1;
            }
            let differs = entry.status != Status::Touched;
            for note in entry.notes.iter().filter(|_| differs) {
                let told = Told {
                    path: change.shown(entry.layer, &note.root),
                    why: note.why.clone(),
                };
                match note.class {
                    Class::Withheld => withheld.insert(told),
                    Class::Flagged => flagged.insert(told),
                };
            }
            if let Some(obstacle) = &entry.obstacle {
                summary.obstacles.push(Told {
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
            (true, 0) => "no file differs".to_owned(),
            (true, _) => "no file outside of the git directory differs".to_owned(),
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
                "\n  conflict  {}: it changed in the real tree too",
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
                "\n  ignored   {}: {} files, {} bytes; by git's rules, applied when named",
                quoted("", &tree.path),
                tree.files,
                tree.bytes
            )?;
        }
        more(f, "ignored", self.ignored.len())
    }
}

fn told(f: &mut fmt::Formatter<'_>, word: &str, list: &[Told]) -> fmt::Result {
    for told in list.iter().take(MOST_LISTED) {
        let path = quoted("", &told.path);
        // The reason can hold the words of an error, never of the agent.
        write!(f, "\n  {word:9} {path}: {}", told.why)?;
    }
    more(f, word, list.len())
}

fn more(f: &mut fmt::Formatter<'_>, word: &str, length: usize) -> fmt::Result {
    match length.checked_sub(MOST_LISTED) {
        Some(rest) if rest > 0 => write!(f, "\n  {word:9} and {rest} more"),
        _ => Ok(()),
    }
}
