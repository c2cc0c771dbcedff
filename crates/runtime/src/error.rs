//! Why a run ended in an error of our own.

use ironcage_namespace::StartError;
use std::io;

/// Why a run ended in an error of our own. The cage is gone when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No randomness for an id.
    #[error("cannot make an id for the cage")]
    Id(#[source] io::Error),
    /// The record could not be written: a cage without one does not run.
    #[error("cannot write the record of the cage")]
    Audit(#[from] ironcage_audit::Error),
    /// There is no place for the record.
    #[error(transparent)]
    StateDir(#[from] ironcage_audit::NoStateDir),
    /// The cage did not start.
    #[error("the cage did not start")]
    Start(#[from] StartError),
    /// The supervisor could not go on; the cage was ended.
    #[error("cannot {action}; the cage was ended")]
    Supervise {
        /// What it was doing.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}
