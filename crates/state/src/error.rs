//! What can go wrong with kept files.

use ironcage_model::Printable;
use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong with kept files.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
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
    /// A path that is to be below another is not.
    #[error("{} is not below {}", Printable::new(path), Printable::new(above))]
    NotBelow {
        /// The path.
        path: PathBuf,
        /// Where it was to be.
        above: PathBuf,
    },
    /// Something is there already.
    #[error("{} is kept already", Printable::new(path))]
    Exists {
        /// What.
        path: PathBuf,
    },
}

pub(crate) trait Doing<T> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T, StateError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, action: &'static str, path: &Path) -> Result<T, StateError> {
        self.map_err(|source| StateError::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        })
    }
}
