//! Failures around a pending change.

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
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A state file cannot be parsed.
    #[error("cannot parse {}", Printable::new(path))]
    Record {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// A tree could not be removed.
    #[error(transparent)]
    State(#[from] StateError),
    /// A cage works on the change, or another command does.
    #[error("change {id} is in use by a running cage or another command")]
    InUse { id: ChangeId },
    /// The change is in the memory of a cage.
    #[error(
        "change {id} is in the memory of its cage and is saved when the cage ends; it is lost if the cage was killed with its supervisor"
    )]
    InMemory { id: ChangeId },
    /// A path is not below any directory of the change.
    #[error("{} is not in a directory of change {id}", Printable::new(path))]
    Elsewhere { path: PathBuf, id: ChangeId },
    /// A path that was named is not in the change.
    #[error("{} is not in change {id}", Printable::new(path))]
    NotThere { path: PathBuf, id: ChangeId },
    /// The directory below a layer is not the one for which the layer was created.
    #[error(
        "{} is not the directory in which the change started; move it back, or discard the change",
        Printable::new(path)
    )]
    Moved { path: PathBuf },
    /// A snapshot with that name already exists.
    #[error("the snapshot `{name}` already exists")]
    SnapshotExists { name: String },
    /// There is no such snapshot.
    #[error("the snapshot `{}` does not exist", name.escape_debug())]
    UnknownSnapshot { name: String },
    #[error(
        "invalid snapshot name `{}`; expected letters, digits, dots, dashes and underscores",
        name.escape_debug()
    )]
    SnapshotName { name: String },
    /// The cage changed files while the change was read.
    #[error(
        "cannot use change {id} while its cage runs: {what}; nothing was changed, stop the cage first"
    )]
    Unsteady { id: ChangeId, what: String },
    /// The change, or what it lies over, is not what was reviewed.
    #[error("change {id} is not what was reviewed; nothing was applied")]
    NotReviewed { id: ChangeId },
    /// There is no such change.
    #[error("change {id} does not exist")]
    Unknown { id: ChangeId },
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
