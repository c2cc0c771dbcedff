//! What can go wrong with a pending change.

use crate::ChangeId;
use ironcage_model::Printable;
use ironcage_state::StateError;
use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong with a pending change.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The system refused something.
    #[error("cannot {action} {}", Printable::new(path))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A record of ours does not say what it must.
    #[error("{} cannot be understood", Printable::new(path))]
    Record {
        /// The record.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
    /// A tree could not be removed.
    #[error(transparent)]
    State(#[from] StateError),
    /// A cage works on the change, or another command does.
    #[error("the change {id} is in use: by a cage that still runs, or by another command")]
    InUse {
        /// The change.
        id: ChangeId,
    },
    /// There is no such change.
    #[error("there is no change {id}")]
    Unknown {
        /// What was asked for.
        id: ChangeId,
    },
}

pub(crate) trait Doing<T> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T, WorkspaceError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T, WorkspaceError> {
        self.map_err(|source| WorkspaceError::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}
