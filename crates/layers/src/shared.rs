//! Mounts that one view takes over from another.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A tree of mounts that another view has, to stand at the same place of this one with all that
/// is mounted in it.
#[derive(Debug)]
pub struct Shared {
    pub target: PathBuf,
    /// The tree, attached nowhere.
    pub tree: OwnedFd,
}
