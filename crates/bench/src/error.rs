//! Why a bench gave no numbers.

use std::io;
use std::path::PathBuf;

/// Why a bench gave no numbers.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file or directory of the bench's own could not be used.
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A program could not be started at all.
    #[error("cannot start {program}")]
    Spawn {
        /// The name of the arm or of its program.
        program: String,
        source: io::Error,
    },
    /// What has to work for the bench to mean anything did not.
    #[error("{arm} failed: {reason}")]
    Failed {
        /// Which of the things that are measured.
        arm: String,
        reason: ArmError,
    },
    /// A system call of the bench's own failed.
    #[error("{call} failed")]
    Call {
        call: &'static str,
        source: io::Error,
    },
    /// Programs that the bench needs are not installed.
    #[error("not installed: {}", names.join(", "))]
    Missing {
        /// Each with the package that brings it.
        names: Vec<String>,
    },
    /// A measuring process of ours answered what it should not.
    #[error("the measuring process of {arm} answered {answer:?}")]
    Protocol {
        /// For which of the things that are measured.
        arm: String,
        answer: String,
    },
    /// A corpus of others is not on this machine.
    #[error("cannot read the corpus {name}: {} does not exist", path.display())]
    NoCorpus { name: &'static str, path: PathBuf },
    /// The request makes no sense.
    #[error("{0}")]
    Request(String),
}

/// Why one measurement failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ArmError {
    /// It ended by itself, with what it wrote on standard error.
    #[error("{status}: {complaints}")]
    Status { status: String, complaints: String },
    #[error("not installed (package {package})")]
    NotInstalled { package: &'static str },
    #[error("needs root")]
    NeedsRoot,
    #[error("no samples")]
    NoSamples,
    #[error("nothing to compare with")]
    NothingToCompare,
    #[error("it ended early: {complaints}")]
    Ended { complaints: String },
    /// Its measuring process told why.
    #[error("{reason}: {complaints}")]
    Resident { reason: String, complaints: String },
    #[error("cannot {action}: {error}")]
    System { action: &'static str, error: String },
    #[error("the cage is gone")]
    CageGone,
    #[error("expected {expected}, got {got}")]
    Answer { expected: &'static str, got: String },
    /// Its result is not the one that it must have.
    #[error("{0}")]
    Result(String),
}

impl ArmError {
    pub(crate) fn system<E: std::fmt::Display>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |error| ArmError::System {
            action,
            error: error.to_string(),
        }
    }
}

impl BenchError {
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| BenchError::File {
            action,
            path,
            source,
        }
    }

    pub(crate) fn call(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| BenchError::Call { call, source }
    }
}
