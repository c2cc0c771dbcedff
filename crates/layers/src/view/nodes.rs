//! Nodes on the cage's own tmpfs, which mounts are attached to.

use super::{View, doing, relative};
use crate::error::{LayerError, shown};
use ironcage_sys::process::close_together;
use ironcage_sys::rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, mkdirat, mknodat, openat, symlinkat,
};
use ironcage_sys::rustix::io::{Errno, write};
use std::path::Path;

impl View<'_> {
    /// Makes the directories above a node, where this view has not made them.
    fn parents(&self, target: &Path) -> Result<(), LayerError> {
        match target.parent() {
            Some(parent) => self.directory(parent, 0o755),
            None => Ok(()),
        }
    }

    pub(crate) fn directory(&self, target: &Path, mode: u32) -> Result<(), LayerError> {
        let path = relative(target);
        if path.as_os_str().is_empty() || !self.directories.borrow_mut().insert(path.to_owned()) {
            return Ok(());
        }
        self.parents(path)?;
        match mkdirat(self.nodes(), path, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => Ok(()),
            other => doing(other, || format!("make the directory {}", shown(target))),
        }
    }

    pub(super) fn link(&self, target: &Path, to: &Path) -> Result<(), LayerError> {
        self.parents(target)?;
        doing(symlinkat(to, self.nodes(), relative(target)), || {
            format!("make the link {}", shown(target))
        })
    }

    pub(super) fn file(&self, target: &Path, content: &[u8], mode: u32) -> Result<(), LayerError> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.parents(target)?;
        let mode = Mode::from_raw_mode(mode);
        let made = openat(self.nodes(), relative(target), flags, mode);
        let file = doing(made, || format!("make the file {}", shown(target)))?;
        let mut left = content;
        while !left.is_empty() {
            let written = doing(write(&file, left), || format!("fill {}", shown(target)))?;
            left = left.get(written..).unwrap_or_default();
        }
        self.written.borrow_mut().push(file);
        Ok(())
    }

    /// Closes the files that were written. Other descriptors stay open longer, but the root cannot
    /// become read-only while a file in it is open for writing.
    pub(super) fn close_written(&self) -> Result<(), LayerError> {
        doing(close_together(self.written.take()), || {
            "close the files of the view".into()
        })
    }

    /// A mount point: one call instead of the two that opening and closing would take.
    pub(super) fn empty_file(&self, target: &Path) -> Result<(), LayerError> {
        let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        self.parents(target)?;
        match mknodat(
            self.nodes(),
            relative(target),
            FileType::RegularFile,
            mode,
            0,
        ) {
            Err(Errno::EXIST) => Ok(()),
            other => doing(other, || format!("make the file {}", shown(target))),
        }
    }

    pub(super) fn give_to_agent(&self, target: &Path) -> Result<(), LayerError> {
        if !self.gives_to_agent {
            return Ok(());
        }
        let (uid, gid) = self.setting.agent;
        let path = match relative(target) {
            root if root.as_os_str().is_empty() => Path::new("."),
            path => path,
        };
        doing(
            chownat(
                self.nodes(),
                path,
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            || format!("give {} to the agent", shown(target)),
        )
    }
}
