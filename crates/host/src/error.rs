//! Why the facts about a host could not be gathered, or are not enough.

use crate::Kernel;
use std::io;
use std::path::PathBuf;

/// The host cannot be used, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The kernel is older than the least one.
    #[error(
        "kernel {release} is too old: Ironcage needs Linux {least} or later (Landlock, mount_setattr and idmapped mounts); \
         install a newer kernel (Debian 12, Ubuntu 22.04, RHEL 9.4 and Fedora 35 or later have one)"
    )]
    KernelTooOld {
        /// What the kernel calls itself.
        release: String,
        least: Kernel,
    },
    /// The kernel's name for itself has no version in it.
    #[error("cannot parse the kernel version `{release}`")]
    UnreadableRelease {
        /// What the kernel calls itself.
        release: String,
    },
    /// A system call failed that does not fail on a working system.
    #[error("{call} failed")]
    Call {
        call: &'static str,
        source: io::Error,
    },
    /// A file of the kernel could not be read.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
}
