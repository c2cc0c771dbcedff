//! Why a bench gave no numbers.

use std::io;
use std::path::PathBuf;

/// Why a bench gave no numbers.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file or directory of the bench's own could not be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program could not be started at all.
    #[error("cannot start {program}")]
    Spawn {
        /// The name of the arm or of its program.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// What has to work for the bench to mean anything did not.
    #[error("{arm} failed: {reason}")]
    Failed {
        /// Which of the things that are measured.
        arm: String,
        /// Its status and what it wrote on standard error.
        reason: String,
    },
    /// A system call of the bench's own failed.
    #[error("{call} failed")]
    Call {
        /// Which one.
        call: &'static str,
        /// Why.
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
        /// What it said.
        answer: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Request(String),
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
