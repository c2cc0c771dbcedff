//! Errors while a policy is read and merged.

use crate::{Diagnostic, Origin};
use ironcage_model::Printable;
use std::path::PathBuf;

/// Why a policy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Something in a file is wrong; shown at its line.
    #[error("{0}")]
    Invalid(Diagnostic),
    /// A file cannot be read.
    #[error("cannot read the policy {}", Printable::new(path))]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file cannot be a policy.
    #[error("cannot use {} as a policy file: {reason}", Printable::new(path))]
    NotAPolicy { path: PathBuf, reason: String },
    /// A profile that does not exist was named on the command line.
    #[error(
        "unknown profile `{}`; expected one of {profiles}",
        Printable::new(name)
    )]
    UnknownProfile {
        name: String,
        /// Those that exist.
        profiles: String,
    },
    /// A flag has an invalid value.
    #[error("{flag}: {reason}")]
    Flag {
        flag: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Two values that contradict each other.
    #[error("{what} ({first}; {second}); {remedy}")]
    Contradiction {
        what: String,
        /// Where one of them came from.
        first: Origin,
        /// Where the other came from.
        second: Origin,
        remedy: String,
    },
    /// A value that no cage can have.
    #[error("{what} ({origin}); {remedy}")]
    Refused {
        what: String,
        origin: Origin,
        remedy: String,
    },
    /// The built-in defaults do not set a value: a bug in this build.
    #[error("the built-in defaults do not set {0}")]
    Incomplete(&'static str),
}

impl From<Diagnostic> for PolicyError {
    fn from(diagnostic: Diagnostic) -> Self {
        PolicyError::Invalid(diagnostic)
    }
}
