//! Files that earlier applies of a change put into the real tree: they are not edits by the host.

use crate::content::own_text;
use crate::error::{Doing as _, WorkspaceError};
use crate::tree::Node;
use crate::{Change, Moment, path_text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const FILE: &str = "applied.jsonl";

#[derive(Serialize, Deserialize)]
struct KnownLine {
    layer: usize,
    #[serde(with = "path_text")]
    path: PathBuf,
    place: (u64, u64),
    changed: Moment,
}

/// What earlier applies put into the real tree, and how it looked then.
#[derive(Debug, Default)]
pub(crate) struct Known(BTreeMap<(usize, PathBuf), ((u64, u64), Moment)>);

impl Known {
    pub(crate) fn read(change: &Change) -> Result<Known, WorkspaceError> {
        let path = change.directory().join(FILE);
        let text = match own_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Known::default());
            }
            Err(error) => return Err(error).doing("read", &path),
        };
        // A line that was cut short is as if it had not been written: a conflict too many.
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<KnownLine>(line).ok());
        Ok(Known(
            lines
                .map(|line| ((line.layer, line.path), (line.place, line.changed)))
                .collect(),
        ))
    }

    /// Whether something in the real tree is still as an apply left it.
    pub(crate) fn is_ours(&self, layer: usize, path: &Path, node: &Node) -> bool {
        self.0
            .get(&(layer, path.to_owned()))
            .is_some_and(|known| *known == (node.place, node.changed))
    }

    /// Takes note of what this apply left, as long as it lasts.
    pub(crate) fn note(&mut self, layer: usize, path: PathBuf, node: &Node) {
        self.0.insert((layer, path), (node.place, node.changed));
    }

    /// Writes down what an apply left.
    pub(crate) fn add(
        change: &Change,
        made: &[(usize, &Path, Node)],
    ) -> Result<(), WorkspaceError> {
        let path = change.directory().join(FILE);
        let mut text = Vec::new();
        for (layer, at, node) in made {
            let line = KnownLine {
                layer: *layer,
                path: (*at).to_owned(),
                place: node.place,
                changed: node.changed,
            };
            serde_json::to_writer(&mut text, &line).map_err(|source| WorkspaceError::Record {
                path: path.clone(),
                source,
            })?;
            text.push(b'\n');
        }
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&text))
            .doing("write", &path)
    }
}

/// Takes what is known over to a copy of a change.
pub(crate) fn copy(change: &Change, to: &Path) -> Result<(), WorkspaceError> {
    let path = change.directory().join(FILE);
    match std::fs::copy(&path, to.join(FILE)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).doing("copy", &path),
    }
}
