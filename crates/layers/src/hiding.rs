//! Places of the view that are there and cannot be looked into: covered by a node of ours.

use crate::error::{LayerError, shown};
use crate::view::{View, clone_tree, doing};
use ironcage_plan::NodeKind;
use ironcage_sys::mount::MountAttributes;
use ironcage_sys::rustix::mount::mount_bind;
use std::os::fd::AsFd as _;
use std::path::Path;

/// Where the nodes are that cover others: in the root, where the agent can see but not open or
/// change them. A mount of it is read-only and executes nothing, and so are the mounts of what is
/// in it.
pub(crate) const HIDDEN: &str = ".hidden";
/// What covers a directory.
pub(crate) const HIDDEN_DIRECTORY: &str = ".hidden/directory";
/// What covers a file.
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
        self.cover_with(
            match kind {
                NodeKind::Directory => HIDDEN_DIRECTORY,
                NodeKind::File => HIDDEN_FILE,
            },
            target,
        )
    }

    /// Mounts one of the nodes of [`HIDDEN`] over a place of the view.
    pub(crate) fn cover_with(&self, node: &str, target: &Path) -> Result<(), LayerError> {
        if !self.covers.replace(true) {
            let set = MountAttributes::NO_SUID
                .with(MountAttributes::NO_DEVICES)
                .with(MountAttributes::NO_EXEC)
                .with(MountAttributes::READ_ONLY);
            self.cover(Path::new(HIDDEN), Path::new(HIDDEN), set, false)?;
        }
        let node = Path::new(node);
        if self.is_in_foreign_tree(target) {
            let cover = self.open(node)?;
            let tree = clone_tree(cover.as_fd(), false, target)?;
            self.spend(cover);
            self.attach(&tree, target)?;
            self.spend(tree);
            return Ok(());
        }
        // The attributes of the mount that it is taken from are those of the new one.
        let (from, to) = (self.outside(node), self.outside(target));
        doing(mount_bind(from, to), || {
            format!("mount at {}", shown(target))
        })
    }
}
