//! How the writable directories of a cage were before its command began.
//!
//! PID 1 starts the command as soon as it is ready, and waits for nobody. On a busy host the
//! supervisor sees the cage seconds later, and what the command wrote until then must count. So
//! the launcher takes the baseline before it permits the start.

use crate::walk::{self, Identity, Root};
use ironcage_sys::rustix;
use rustix::fs::AtFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Free space and files of one file system; files are `None` where it does not count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) bytes: u64,
    pub(crate) files: Option<u64>,
}

impl Free {
    pub(crate) fn around(directory: &OwnedFd) -> io::Result<Free> {
        let usage = rustix::fs::fstatvfs(directory)?;
        Ok(Free {
            bytes: usage.f_bfree.saturating_mul(usage.f_frsize),
            files: (usage.f_files > 0).then_some(usage.f_ffree),
        })
    }
}

/// One file system with watched directories.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    pub(crate) root: usize,
    pub(crate) at_start: Free,
    pub(crate) last: Free,
}

/// Writable directories of the host, and the free space around them when the baseline was taken.
#[derive(Debug)]
pub struct StorageBaseline {
    pub(crate) taken: Duration,
    pub(crate) roots: Vec<Root>,
    /// By device, so that two directories on one file system count once.
    pub(crate) systems: BTreeMap<(u32, u32), Watched>,
}

impl StorageBaseline {
    /// Takes it. The directories are opened for reading (not O_PATH). What is made in them from
    /// now on is new.
    ///
    /// # Errors
    /// Where the kernel says nothing about a directory.
    pub fn take(directories: impl IntoIterator<Item = OwnedFd>) -> io::Result<StorageBaseline> {
        let mut baseline = StorageBaseline {
            taken: walk::stamp_clock(),
            roots: Vec::new(),
            systems: BTreeMap::new(),
        };
        let mut directories = directories.into_iter();
        directories.try_for_each(|directory| baseline.add(directory))?;
        Ok(baseline)
    }

    /// Adds a directory that was made for the cage since: all in it is new.
    ///
    /// # Errors
    /// Where the kernel says nothing about it.
    pub fn add(&mut self, directory: OwnedFd) -> io::Result<()> {
        self.add_since(directory, self.taken)
    }

    /// Adds a directory of which only what is made from `since` on is new.
    pub(crate) fn add_since(&mut self, directory: OwnedFd, since: Duration) -> io::Result<()> {
        let stat = walk::stat(directory.as_fd(), c"", AtFlags::EMPTY_PATH)?;
        let identity = walk::identity(&stat);
        if self.has_root(identity) {
            return Ok(());
        }
        let now = Free::around(&directory)?;
        self.systems.entry(identity.0).or_insert(Watched {
            root: self.roots.len(),
            at_start: now,
            last: now,
        });
        self.roots.push(Root {
            identity,
            directory,
            since,
        });
        Ok(())
    }

    pub(crate) fn has_root(&self, identity: Identity) -> bool {
        self.roots.iter().any(|root| root.identity == identity)
    }
}
