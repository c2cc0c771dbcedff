//! Places of the view that are there and cannot be looked into: covered by a node of ours.

use crate::error::LayerError;
use crate::view::{View, clone_tree};
use ironcage_plan::NodeKind;
use ironcage_sys::mount::MountAttributes;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// Read-only mounts of the nodes that cover what is hidden. Clones of them are read-only too,
/// which spares a call for each.
#[derive(Debug)]
pub(crate) struct Covers {
    directory: OwnedFd,
    file: OwnedFd,
}

/// Nodes that cover what is hidden. They are in the root, where the agent can see but not
/// open or change them.
pub(crate) const HIDDEN_DIRECTORY: &str = ".hidden/directory";
pub(crate) const HIDDEN_FILE: &str = ".hidden/file";

impl View<'_> {
    /// Hides what stands at a place of the view. In a copy-on-write one that need not be what
    /// the real tree has: an agent may have removed it, or put something else there.
    pub(crate) fn hide_there(&self, target: &Path, planned: NodeKind) -> Result<(), LayerError> {
        let error = match self.hide(target, planned) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match self.kind_of(target)? {
            None => Ok(()),
            Some(kind) if kind == planned => Err(error),
            Some(kind) => self.hide(target, kind),
        }
    }

    pub(crate) fn hide(&self, target: &Path, kind: NodeKind) -> Result<(), LayerError> {
        let covers = match self.covers.get() {
            Some(covers) => covers,
            None => {
                let covers = self.make_covers()?;
                self.covers.get_or_init(|| covers)
            }
        };
        let cover = match kind {
            NodeKind::Directory => &covers.directory,
            NodeKind::File => &covers.file,
        };
        let tree = clone_tree(cover.as_fd(), false, target)?;
        self.attach(&tree, target)
    }

    fn make_covers(&self) -> Result<Covers, LayerError> {
        let set = MountAttributes::NO_SUID
            .with(MountAttributes::NO_DEVICES)
            .with(MountAttributes::NO_EXEC)
            .with(MountAttributes::READ_ONLY);
        let cover = |path: &str| {
            let path = Path::new(path);
            self.cover(path, path, set, false)?;
            self.open(path)
        };
        Ok(Covers {
            directory: cover(HIDDEN_DIRECTORY)?,
            file: cover(HIDDEN_FILE)?,
        })
    }
}
