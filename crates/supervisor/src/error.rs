//! Why a run ended in an error of our own.

use ironcage_backend::StartError;
use ironcage_model::{Printable, Reason, StartCode, in_full};
use std::io;
use std::path::PathBuf;

/// What a port that cannot be had most likely is.
fn unpublished(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "ports below 1024 are root's own on most hosts.",
        _ => "is something else there?",
    }
}

/// Why a run ended in an error of our own. The cage is gone when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port of the host's loopback cannot be had.
    #[error(
        "cannot publish port {inner} at 127.0.0.1:{outer}; {} `--publish 0:{inner}` takes any that is free",
        unpublished(source)
    )]
    Publish {
        outer: u16,
        inner: u16,
        source: std::io::Error,
    },
    /// The directory of a socket that was given cannot be held.
    #[error(
        "cannot open the directory of the socket {}; did it move meanwhile?",
        Printable::new(path)
    )]
    Socket { path: PathBuf, source: io::Error },
    /// No randomness for an id.
    #[error("cannot make an id for the cage")]
    Id(#[source] io::Error),
    /// A cage without an audit log does not run.
    #[error("cannot write the audit log of the cage")]
    Audit(#[from] ironcage_audit::Error),
    /// There is no place for the audit log.
    #[error(transparent)]
    StateDir(#[from] ironcage_audit::NoStateDir),
    /// There is no place for the control socket, or the name is taken.
    #[error(transparent)]
    Place(#[from] ironcage_control::PlaceError),
    /// The output of a background cage cannot be kept.
    #[error("cannot keep the output of the cage in the state directory")]
    Log(#[source] io::Error),
    /// The user's other cages have the cores.
    #[error(
        "the cage asks for {wanted} processor(s) of its own (--side-channels), and {free} can be had: the user's other such cages have the rest, or there are no more; --cpus asks for less"
    )]
    NoCores {
        /// How many it asks for.
        wanted: u32,
        /// How many could be had.
        free: usize,
    },
    /// It cannot be told which cores are taken.
    #[error(
        "cannot tell which processor cores other cages have, by {}",
        Printable::new(path)
    )]
    CoreFile { path: PathBuf, source: io::Error },
    /// A value that exists only at the start does not fit the plan.
    #[error(transparent)]
    Bind(#[from] ironcage_plan::BindError),
    /// What is put into the cage is not there.
    #[error("cannot give the cage the program with which it asks")]
    Program(#[from] ironcage_programs::FindError),
    /// It was to be the child of a cage that does not let it.
    #[error("{0}")]
    NoChild(Reason),
    /// The cage did not start.
    #[error("the cage did not start")]
    Start(#[from] StartError),
    /// A writable directory that nobody could watch: its growth would have no bound.
    #[error(
        "cannot open {} to hold the disk limit in it; the cage was ended. Make it readable for yourself, or do not give it for writing",
        Printable::new(path)
    )]
    Unwatched { path: PathBuf, source: io::Error },
    /// The supervisor could not go on; the cage was ended.
    #[error("cannot {action}; the cage was ended")]
    Supervise {
        action: &'static str,
        source: io::Error,
    },
}

impl RunError {
    /// The stable code.
    pub fn code(&self) -> StartCode {
        match self {
            RunError::Publish { .. } => StartCode::PortTaken,
            RunError::Socket { .. } => StartCode::SocketDirectory,
            RunError::Id(_) => StartCode::NoId,
            RunError::Audit(_) | RunError::StateDir(_) => StartCode::NoAuditLog,
            RunError::Place(_) => StartCode::NoControlSocket,
            RunError::Log(_) => StartCode::NoOutputLog,
            RunError::NoCores { .. } | RunError::CoreFile { .. } => StartCode::NoCores,
            RunError::Program(_) => StartCode::ProgramMissing,
            RunError::NoChild(_) => StartCode::ChildRefused,
            RunError::Start(error) => error.code(),
            RunError::Bind(_) => StartCode::NotBound,
            RunError::Unwatched { .. } => StartCode::DiskNotMeasured,
            RunError::Supervise { .. } => StartCode::SupervisorFailed,
        }
    }

    /// As it is told and recorded.
    pub fn reason(&self) -> Reason {
        match self {
            RunError::NoChild(reason) => reason.clone(),
            error => Reason::Start {
                code: error.code(),
                text: in_full(error),
            },
        }
    }
}
