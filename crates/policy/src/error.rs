//! Why there is no policy.

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
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not one that can be a policy.
    #[error("{} is not a policy file: {reason}", Printable::new(path))]
    NotAPolicy {
        /// The file.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
    /// A profile that does not exist was named on the command line.
    #[error(
        "there is no profile `{}`; the profiles are {profiles}",
        Printable::new(name)
    )]
    UnknownProfile {
        /// The name.
        name: String,
        /// Those that exist.
        profiles: String,
    },
    /// A flag has a value that it cannot have.
    #[error("{flag}: {reason}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Two values that cannot both hold.
    #[error("{what} ({first}; {second}); {remedy}")]
    Contradiction {
        /// What cannot be.
        what: String,
        /// Where one of them came from.
        first: Origin,
        /// Where the other came from.
        second: Origin,
        /// What to do.
        remedy: String,
    },
    /// A value that no cage can have.
    #[error("{what} ({origin}); {remedy}")]
    Refused {
        /// What cannot be.
        what: String,
        /// Where it came from.
        origin: Origin,
        /// What to do.
        remedy: String,
    },
    /// The built-in defaults leave a value open; a fault of this build.
    #[error("the built-in defaults say nothing about {0}")]
    Incomplete(&'static str),
}

impl From<Diagnostic> for PolicyError {
    fn from(diagnostic: Diagnostic) -> Self {
        PolicyError::Invalid(diagnostic)
    }
}
