//! Why one thing of a policy cannot be planned: the data of the variants of [`super::PlanError`].

use super::shown;
use ironcage_host::Kernel;
use ironcage_policy::InvalidHostRule;
use std::io;
use std::path::PathBuf;

/// Why a directory cannot have a copy-on-write view.
#[derive(Debug, thiserror::Error)]
pub enum NoOverlay {
    /// Overlays are of directories.
    #[error("it is a single file; use its directory, or PATH:direct")]
    SingleFile,
    /// The kernel's overlayfs lacks something.
    #[error("it needs Linux {least} or later, and this is {kernel}")]
    Kernel {
        /// The first that has it.
        least: Kernel,
        /// This one.
        kernel: Kernel,
    },
    /// The upper layer would be in its own lower layer.
    #[error(
        "the change would be stored in {}, which is below it; set XDG_STATE_HOME to another directory",
        shown(change)
    )]
    ChangeBelow {
        /// Where changes are kept.
        change: PathBuf,
    },
    /// Its files cannot be copied up.
    #[error("it belongs to user {0}, and a user namespace can only copy your own files")]
    OtherUser(u32),
    /// Its files cannot be copied up.
    #[error(
        "it belongs to group {gid}, and a user namespace can only copy files of your own group {own}"
    )]
    OtherGroup {
        /// The directory's.
        gid: u32,
        /// The caller's.
        own: u32,
    },
    /// An overlay does not show the mounts of its lower layer.
    #[error(
        "{} is mounted below it, which a copy-on-write view cannot show",
        shown(.0)
    )]
    MountBelow(PathBuf),
    /// There are no more places for a change in memory.
    #[error("at most {0} views can keep their changes in memory")]
    TooManyInMemory(usize),
}

/// Why a capability cannot be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoCapability {
    /// The kernel has no such capability.
    #[error("unknown capability")]
    Unknown,
    /// The catalogue refuses it, for this reason.
    #[error("{0}")]
    Refused(&'static str),
}

/// Why a host socket cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum NoSocket {
    /// There is nothing at its path.
    #[error("cannot find it: {0}")]
    Missing(io::Error),
    /// Something else is at its path.
    #[error("it is not a socket")]
    OtherNode,
    /// It is in Ironcage's own directories.
    #[error("it is one of Ironcage's own sockets")]
    Own,
    /// Whoever connects to it controls this.
    #[error("a connection to it controls {0}; use --i-know to allow it anyway")]
    Controls(&'static str),
}

/// Why a bundle of hosts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoBundle {
    /// There is none of this name.
    #[error("unknown bundle")]
    Unknown,
    /// A host of it is not a rule.
    #[error("{0}")]
    InvalidHost(InvalidHostRule),
    /// The program whose settings name its hosts names none.
    #[error("{0} is not installed, or has no hosts in its settings")]
    NoHosts(&'static str),
}
