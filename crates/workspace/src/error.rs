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
    /// The change is in the memory of a cage.
    #[error(
        "the change {id} is in the memory of its cage, and is written down when that ends; if the cage was killed with its supervisor, it is lost"
    )]
    InMemory {
        /// The change.
        id: ChangeId,
    },
    /// A path that was named belongs to no layer of the change.
    #[error("{} is in no part of the change {id}", Printable::new(path))]
    Elsewhere {
        /// The path.
        path: PathBuf,
        /// The change.
        id: ChangeId,
    },
    /// A path that was named is not in the change.
    #[error("{} is not in the change {id}", Printable::new(path))]
    NotThere {
        /// The path.
        path: PathBuf,
        /// The change.
        id: ChangeId,
    },
    /// The directory that a layer lies over is not the one that it was begun over.
    #[error(
        "{} is not the directory that the change began in: move it back, or discard the change",
        Printable::new(path)
    )]
    Moved {
        /// The directory.
        path: PathBuf,
    },
    /// A snapshot of that name is there already.
    #[error("there is a snapshot `{name}` already")]
    SnapshotExists {
        /// The name.
        name: String,
    },
    /// There is no such snapshot.
    #[error("there is no snapshot `{}`", name.escape_debug())]
    UnknownSnapshot {
        /// The name.
        name: String,
    },
    /// A name that no snapshot can have.
    #[error(
        "`{}` cannot be the name of a snapshot: letters, digits, dots, dashes and underscores can",
        name.escape_debug()
    )]
    SnapshotName {
        /// The name.
        name: String,
    },
    /// The cage that works on the change did not stand still while it was read.
    #[error("nothing of {id} was applied: {what}; end the cage, then apply it")]
    Unsteady {
        /// The change.
        id: ChangeId,
        /// What moved.
        what: String,
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
