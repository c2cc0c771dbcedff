//! Lets a change go, or a part of it.

use crate::error::{Doing as _, WorkspaceError};
use crate::reading::open_layer;
use crate::{Change, Selection, Store, tree, upper};
use ironcage_state::remove_tree;
use std::ffi::OsStr;
use std::os::fd::AsFd as _;

const OUT: &str = "discarded";

impl Store {
    /// Lets the selected part of a change go: there the next run sees the real tree again. The
    /// real tree is not touched.
    ///
    /// # Errors
    /// When somebody uses the change, or the system refuses.
    pub fn discard(&self, change: &Change, selection: &Selection) -> Result<(), WorkspaceError> {
        let _lock = change.lock()?;
        if selection.is_everything() {
            return self.remove_locked(change);
        }
        let directory = change.directory();
        let out = tree::open_root(directory).doing("open", directory)?;
        // Left by one that was killed.
        remove_tree(directory, OsStr::new(OUT))?;
        for (number, path) in selection.named() {
            let layer = &change.layers()[*number];
            let (upper, real) = open_layer(layer)?;
            let shown = change.shown(*number, path);
            if path.as_os_str().is_empty() {
                for name in tree::names(upper.as_fd()).doing("read", &shown)? {
                    upper::move_out(upper.as_fd(), name.as_ref(), out.as_fd(), OsStr::new(OUT))
                        .doing("discard", &shown)?;
                    remove_tree(directory, OsStr::new(OUT))?;
                }
                continue;
            }
            upper::reveal_to(upper.as_fd(), real.as_fd(), path).doing("discard", &shown)?;
            let moved = upper::move_out(upper.as_fd(), path, out.as_fd(), OsStr::new(OUT))
                .doing("discard", &shown)?;
            if moved {
                remove_tree(directory, OsStr::new(OUT))?;
            }
        }
        Ok(())
    }
}
