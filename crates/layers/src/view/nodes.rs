//! Nodes on the cage's own tmpfs, which mounts are attached to.

use super::{View, doing, relative};
use crate::error::{LayerError, shown};
use ironcage_sys::rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, mkdirat, mknodat, openat,
};
use ironcage_sys::rustix::io::{Errno, write};
use ironcage_sys::rustix::process::{getegid, geteuid};
use std::path::Path;

impl View<'_> {
    pub(super) fn parents(&self, target: &Path) -> Result<(), LayerError> {
        match target.parent() {
            Some(parent) if !relative(parent).as_os_str().is_empty() => {
                self.directory(parent, 0o755)
            }
            _ => Ok(()),
        }
    }

    /// Makes a node; where a parent is missing, makes that first and tries once more. The inner
    /// result is the kernel's answer about the node itself.
    pub(super) fn with_parents<T>(
        &self,
        target: &Path,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<Result<T, Errno>, LayerError> {
        match make() {
            Err(Errno::NOENT) => {
                self.parents(target)?;
                Ok(make())
            }
            answer => Ok(answer),
        }
    }

    pub(crate) fn directory(&self, target: &Path, mode: u32) -> Result<(), LayerError> {
        let path = relative(target);
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        // chmod besides, because the umask takes bits from what mkdir is given.
        let make = || mkdirat(&self.root, path, Mode::from_raw_mode(mode));
        let made = self.with_parents(target, make)?;
        match made {
            Err(Errno::EXIST) => Ok(()),
            Ok(()) if mode & 0o022 != 0 => doing(
                chmodat(
                    &self.root,
                    path,
                    Mode::from_raw_mode(mode),
                    AtFlags::empty(),
                ),
                || format!("set the mode of {}", shown(target)),
            ),
            other => doing(other, || format!("make the directory {}", shown(target))),
        }
    }

    pub(super) fn file(&self, target: &Path, content: &[u8], mode: u32) -> Result<(), LayerError> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let make = || {
            openat(
                &self.root,
                relative(target),
                flags,
                Mode::from_raw_mode(mode),
            )
        };
        let made = self.with_parents(target, make)?;
        let file = doing(made, || format!("make the file {}", shown(target)))?;
        let mut left = content;
        while !left.is_empty() {
            let written = doing(write(&file, left), || format!("fill {}", shown(target)))?;
            left = left.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// A mount point: one call instead of the two that opening and closing would take.
    pub(super) fn empty_file(&self, target: &Path) -> Result<(), LayerError> {
        let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        let make = || mknodat(&self.root, relative(target), FileType::RegularFile, mode, 0);
        let made = self.with_parents(target, make)?;
        match made {
            Err(Errno::EXIST) => Ok(()),
            other => doing(other, || format!("make the file {}", shown(target))),
        }
    }

    pub(super) fn give_to_agent(&self, target: &Path) -> Result<(), LayerError> {
        let (uid, gid) = self.setting.agent;
        // What this process makes belongs to it: without root it is the agent already.
        if (uid, gid) == (geteuid().as_raw(), getegid().as_raw()) {
            return Ok(());
        }
        doing(
            chownat(
                &self.root,
                relative(target),
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            ),
            || format!("give {} to the agent", shown(target)),
        )
    }
}
