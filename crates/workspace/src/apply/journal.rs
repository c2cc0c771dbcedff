//! The journal of an apply, on disk before each step: killed at any point, it can be
//! taken up again.
//!
//! 1. *staging*: new versions are copied into a directory of their own in the real tree. Killed
//!    here, the copies are removed and nothing has happened.
//! 2. *landing*: staged versions and real ones change places, one rename each. Every step can
//!    be told from the trees: by their inodes, what is staged has landed or has not.
//! 3. *clearing*: what has landed leaves the upper layers, and what it replaced is removed.

use super::staging::Dress;
use crate::change::replace_file;
use crate::content::own_file;
use crate::error::{Doing as _, WorkspaceError};
use crate::landed::Left;
use crate::tree::Node;
use crate::{Change, Moment, path_text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

const FILE: &str = "apply.json";

/// How far an apply has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    Staging,
    Landing,
    Clearing,
}

/// How something in the real tree looked when the apply was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileStamp {
    pub(crate) place: (u64, u64),
    pub(crate) size: u64,
    pub(crate) modified: Moment,
    /// For a directory: what stands for all that is in it.
    pub(crate) tree: Option<u64>,
}

/// One thing to do in the real tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    /// Make a directory, unless it is there.
    MakeDirectory,
    /// Put what is staged in place of what was seen there, or where nothing was.
    Put {
        replaces: Option<FileStamp>,
        /// Where the staged version is on the device; known once it is staged.
        staged: Option<(u64, u64)>,
    },
    /// Take away what was seen.
    Remove { seen: FileStamp },
    /// Nothing but what the end does: mode and times of a directory.
    Finish,
    /// Nothing: only the upper layer is to forget it.
    Forget,
}

/// One step of an apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) layer: usize,
    #[serde(with = "path_text")]
    pub(crate) path: PathBuf,
    pub(crate) action: Action,
    /// Why it was not done after all.
    pub(crate) held: Option<String>,
    /// The tree of installed packages that it belongs to: all of it is done, or nothing.
    #[serde(skip)]
    pub(crate) whole: Option<PathBuf>,
    /// The mode and the times that the directory is to have in the end.
    pub(crate) finish: Option<Dress>,
    /// How the upper layer looked there: what is another by now stays in it.
    pub(crate) left: Left,
    /// What was judged, until it is staged.
    #[serde(skip)]
    pub(crate) judged: Option<JudgedEntry>,
}

/// What of the agent's was judged. A cage may go on though it was told to stand still: what is
/// staged is this, and of the upper layer nothing is read again but what is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JudgedEntry {
    pub(crate) node: Node,
    /// Whether a file was found to hold what the real one holds, and was not looked at further.
    pub(crate) same: bool,
}

/// An apply that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    pub(crate) phase: Phase,
    pub(crate) steps: Vec<Step>,
}

impl Journal {
    /// The journal of an apply that did not come to its end.
    pub(crate) fn read(change: &Change) -> Result<Option<Journal>, WorkspaceError> {
        let path = change.directory().join(FILE);
        let text = match own_file(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).doing("read", &path),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| WorkspaceError::Record { path, source })
    }

    pub(crate) fn write(&self, change: &Change) -> Result<(), WorkspaceError> {
        let path = change.directory().join(FILE);
        let text = serde_json::to_vec(self).map_err(|source| WorkspaceError::Record {
            path: path.clone(),
            source,
        })?;
        replace_file(&path, &text).doing("write", &path)
    }

    pub(crate) fn remove(change: &Change) -> Result<(), WorkspaceError> {
        let path = change.directory().join(FILE);
        std::fs::remove_file(&path).doing("remove", &path)
    }

    /// Holds all of a tree of installed packages of which something is held.
    pub(crate) fn hold_whole(&mut self) {
        let held: BTreeMap<(usize, PathBuf), String> = self
            .steps
            .iter()
            .filter_map(|step| {
                let why = step.held.clone()?;
                Some(((step.layer, step.whole.clone()?), why))
            })
            .collect();
        for step in self.steps.iter_mut().filter(|step| step.held.is_none()) {
            let tree = step.whole.clone().map(|root| (step.layer, root));
            step.held = tree
                .and_then(|tree| held.get(&tree))
                .map(|why| format!("it is applied as a whole, and a part cannot be: {why}"));
        }
    }

    /// The layers that something is done in.
    pub(crate) fn layers(&self) -> Vec<usize> {
        let mut layers: Vec<usize> = self.steps.iter().map(|step| step.layer).collect();
        layers.dedup();
        layers
    }
}
