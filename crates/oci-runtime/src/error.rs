//! The errors. Engines look for some of these words: `does not exist`, `container not
//! running`, `executable file not found in $PATH`, `no such file or directory`.

use std::fmt::Display;
use std::io;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kernel or a file refused.
    #[error("cannot {action}: {}", plain(source))]
    Failed { action: String, source: io::Error },
    /// This program refuses.
    #[error("cannot {action}: {why}")]
    Refused {
        action: String,
        why: String,
        hint: Option<String>,
    },
    /// What the process in the container said before it ended.
    #[error("{0}")]
    InContainer(String),
    /// There is no container of this name.
    #[error("container {id:?} does not exist")]
    NoContainer { id: String },
    /// There is one, in the wrong state.
    #[error("cannot {action} container {id:?}: container not {wanted} ({status})")]
    WrongStatus {
        action: &'static str,
        id: String,
        wanted: &'static str,
        status: &'static str,
    },
    /// There is one already.
    #[error("cannot create container {id:?}: container with given ID already exists")]
    Exists { id: String },
}

impl Error {
    pub(crate) fn failed(action: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Failed {
            action: action.into(),
            source: source.into(),
        }
    }

    pub(crate) fn refused(action: impl Into<String>, why: impl Display) -> Error {
        Error::Refused {
            action: action.into(),
            why: why.to_string(),
            hint: None,
        }
    }

    pub(crate) fn with_hint(self, text: impl Into<String>) -> Error {
        match self {
            Error::Refused { action, why, .. } => Error::Refused {
                action,
                why,
                hint: Some(text.into()),
            },
            other => other,
        }
    }

    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused { hint, .. } => hint.as_deref(),
            _ => None,
        }
    }
}

impl From<ironcage_layers::LayerError> for Error {
    fn from(error: ironcage_layers::LayerError) -> Error {
        Error::failed(error.action.clone(), error.source)
    }
}

/// The words of an error as engines compare them: in lower case, without the number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Adds what was being done to an error of the kernel.
pub(crate) trait IoContext<T> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::failed(action(), error))
    }
}
