//! Failures around kept files.

use ironcage_model::Printable;
use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong with kept files.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The system refused something.
    #[error("cannot {action} {}", Printable::new(path))]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A path that is to be below another is not.
    #[error("{} is not below {}", Printable::new(path), Printable::new(above))]
    NotBelow {
        path: PathBuf,
        /// Where it was to be.
        above: PathBuf,
    },
    /// Something is there already.
    #[error("{} is already kept", Printable::new(path))]
    Exists { path: PathBuf },
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
