//! Why a run ended in an error of our own.

use ironcage_backend::StartError;
use ironcage_model::Printable;
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
        /// The host's port.
        outer: u16,
        /// The port inside.
        inner: u16,
        /// Why.
        source: std::io::Error,
    },
    /// The directory of a socket that was given cannot be held.
    #[error(
        "cannot open the directory of the socket {}; did it move meanwhile?",
        Printable::new(path)
    )]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No randomness for an id.
    #[error("cannot make an id for the cage")]
    Id(#[source] io::Error),
    /// The record could not be written: a cage without one does not run.
    #[error("cannot write the record of the cage")]
    Audit(#[from] ironcage_audit::Error),
    /// There is no place for the record.
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
    CoreFile {
        /// Where that stands.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It was to be the child of a cage that does not let it.
    #[error("{0}")]
    NoChild(String),
    /// The cage did not start.
    #[error("the cage did not start")]
    Start(#[from] StartError),
    /// A writable directory that nobody could watch: its growth would have no bound.
    #[error(
        "cannot open {} to hold the disk limit in it; the cage was ended. Make it readable for yourself, or do not give it for writing",
        Printable::new(path)
    )]
    Unwatched {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The supervisor could not go on; the cage was ended.
    #[error("cannot {action}; the cage was ended")]
    Supervise {
        /// What it was doing.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}
