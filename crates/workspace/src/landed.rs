//! Files that were applied while a cage worked on the change.
//!
//! Under an overlay in use nothing may be taken out of its upper layer: what a process has open, or
//! works in, would be gone under it. So what was applied stays there as well, and is written down:
//! as long as the agent leaves it alone it is not a difference, whatever the host makes of its own
//! copy. When no cage uses the change any more, it leaves the upper layer.

use crate::change::replace_file;
use crate::content::own_file;
use crate::error::{Doing as _, WorkspaceError};
use crate::tree::{Kind, Node};
use crate::{Change, Moment, path_text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "landed.json";

/// How something in an upper layer looked when it was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Left {
    /// The mark of a deletion: the kernel makes all of them one file.
    Whiteout,
    /// A directory, by its place: what is in it is written down by itself.
    Directory((u64, u64)),
    Other {
        place: (u64, u64),
        size: u64,
        changed: Moment,
    },
}

impl Left {
    /// How a node of an upper layer looks; without one there is a whiteout.
    pub(crate) fn of(node: Option<&Node>) -> Left {
        match node {
            None => Left::Whiteout,
            Some(node) if node.whiteout => Left::Whiteout,
            Some(node) if node.kind == Kind::Directory => Left::Directory(node.place),
            Some(node) => Left::Other {
                place: node.place,
                size: node.size,
                changed: node.changed,
            },
        }
    }

    /// When the clock may have stood still since.
    pub(crate) fn changed(&self) -> Option<Moment> {
        match self {
            Left::Other { changed, .. } => Some(*changed),
            _ => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct LandedLine {
    layer: usize,
    #[serde(with = "path_text")]
    path: PathBuf,
    left: Left,
}

/// What was applied while a cage worked on the change.
#[derive(Debug, Default)]
pub(crate) struct Landed(BTreeMap<(usize, PathBuf), Left>);

impl Landed {
    pub(crate) fn read(change: &Change) -> Result<Landed, WorkspaceError> {
        let path = change.directory().join(FILE);
        let text = match own_file(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Landed::default()),
            Err(error) => return Err(error).doing("read", &path),
        };
        let lines: Vec<LandedLine> = serde_json::from_slice(&text)
            .map_err(|source| WorkspaceError::Record { path, source })?;
        let lines = lines.into_iter();
        Ok(Landed(
            lines
                .map(|line| ((line.layer, line.path), line.left))
                .collect(),
        ))
    }

    /// Writes down what else was applied.
    pub(crate) fn add(
        change: &Change,
        more: impl IntoIterator<Item = (usize, PathBuf, Left)>,
    ) -> Result<(), WorkspaceError> {
        let mut all = Landed::read(change)?;
        let more = more.into_iter();
        all.0
            .extend(more.map(|(layer, path, left)| ((layer, path), left)));
        let lines: Vec<LandedLine> = all
            .0
            .into_iter()
            .map(|((layer, path), left)| LandedLine { layer, path, left })
            .collect();
        let path = change.directory().join(FILE);
        let text = serde_json::to_vec(&lines).map_err(|source| WorkspaceError::Record {
            path: path.clone(),
            source,
        })?;
        replace_file(&path, &text).doing("write", &path)
    }

    /// It is all taken out of the upper layers.
    pub(crate) fn remove(change: &Change) -> Result<(), WorkspaceError> {
        let path = change.directory().join(FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing("remove", &path)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Path, Left)> {
        let each = self.0.iter();
        each.map(|((layer, path), left)| (*layer, path.as_path(), *left))
    }

    /// Whether what an upper layer has is still as it was applied.
    pub(crate) fn is_as_applied(&self, layer: usize, path: &Path, node: &Node) -> bool {
        self.get(layer, path) == Some(Left::of(Some(node)))
    }

    /// Whether anything was applied at a path.
    pub(crate) fn has(&self, layer: usize, path: &Path) -> bool {
        self.get(layer, path).is_some()
    }

    /// Whether anything was put at a path, and not taken away.
    pub(crate) fn put(&self, layer: usize, path: &Path) -> bool {
        let left = self.get(layer, path);
        left.is_some_and(|left| left != Left::Whiteout)
    }

    fn get(&self, layer: usize, path: &Path) -> Option<Left> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(layer, path.to_owned())).copied()
    }
}
