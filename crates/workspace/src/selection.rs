//! Which part of a change a command is about.

use crate::path_text::plain;
use crate::{Change, WorkspaceError};
use std::path::{Path, PathBuf};

/// Which part of a change a command is about: all of it, or what was named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The layer and the path in it; nothing means everything.
    named: Vec<(usize, PathBuf)>,
}

impl Selection {
    /// All of a change, but for what has to be named.
    pub fn everything() -> Selection {
        Selection::default()
    }

    /// What paths name, absolute or relative to a directory. Without any it is everything.
    ///
    /// # Errors
    /// [`WorkspaceError::Elsewhere`] when a path lies in no layer of the change.
    pub fn of(change: &Change, cwd: &Path, paths: &[PathBuf]) -> Result<Selection, WorkspaceError> {
        let mut named = Vec::with_capacity(paths.len());
        for path in paths {
            let absolute = plain(&cwd.join(path));
            // The innermost layer has it: a git directory may lie in a workspace.
            let layer = change
                .layers()
                .iter()
                .enumerate()
                .filter(|(_, layer)| absolute.starts_with(&layer.real))
                .max_by_key(|(_, layer)| layer.real.components().count());
            let Some((number, layer)) = layer else {
                return Err(WorkspaceError::Elsewhere {
                    path: path.clone(),
                    id: change.id().clone(),
                });
            };
            let relative = absolute.strip_prefix(&layer.real).unwrap_or(&absolute);
            named.push((number, relative.to_owned()));
        }
        Ok(Selection { named })
    }

    pub fn is_everything(&self) -> bool {
        self.named.is_empty()
    }

    /// What was named: the layer, and the path in it.
    pub(crate) fn named(&self) -> &[(usize, PathBuf)] {
        &self.named
    }

    /// Whether a path is in it.
    pub(crate) fn covers(&self, layer: usize, path: &Path) -> bool {
        self.named.is_empty()
            || self
                .named
                .iter()
                .any(|(number, named)| *number == layer && path.starts_with(named))
    }

    /// Whether a path in a git directory was named, or something there that it lies in.
    pub(crate) fn names_in(&self, layer: usize, git: &Path, path: &Path) -> bool {
        self.named.iter().any(|(number, named)| {
            *number == layer && named.starts_with(git) && path.starts_with(named)
        })
    }

    /// Whether a path itself was named: naming a part is not enough for what is applied whole.
    pub(crate) fn names_whole(&self, layer: usize, path: &Path) -> bool {
        self.named
            .iter()
            .any(|(number, named)| *number == layer && named == path)
    }

    /// Whether a path, or something below it, was named: naming what lies above is not enough
    /// for what has to be named.
    pub(crate) fn names(&self, layer: usize, path: &Path) -> bool {
        self.named
            .iter()
            .any(|(number, named)| *number == layer && named.starts_with(path))
    }
}
