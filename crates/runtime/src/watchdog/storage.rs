//! Bytes and files added to writable directories of the host.
//!
//! Free space and free inodes of the file system are cheap to ask for: while they have not
//! fallen by a limit's worth, the cage cannot have passed it (unless others freed as much). When
//! they have, a walk finds out whether it was the cage. Deleted files that are still open count.
//!
//! Where the walk cannot look (a directory that the cage made unreadable, a tree of absurd depth,
//! a process that hides its descriptors), what the file system has lost is held against the cage;
//! and a walk that does not end is not waited for while the file system goes on falling.

use super::pace;
use super::processes::ProcessFiles;
use super::walk::{self, Added, Walk};
use ironcage_model::{LimitKind, bytes_as_written};
use ironcage_sys::rustix;
use rustix::fs::AtFlags;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

const PAUSE: Duration = Duration::from_millis(200);
/// While a walk is under way: other work of the supervisor comes between its steps.
const PAUSE_IN_WALK: Duration = Duration::from_millis(2);
const ENTRIES_PER_STEP: usize = 500;
/// How long a walk may take before a further fall by a limit's worth is taken for its result.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to walk for files where the file system does not count them (btrfs).
const UNCOUNTED: Duration = Duration::from_secs(10);

/// The result of one look at storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageLook {
    pub(super) pause: Duration,
    pub(super) exceeded: Option<(LimitKind, String)>,
}

/// Free space and files of one file system; files are `None` where it does not count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) bytes: u64,
    pub(super) files: Option<u64>,
}

/// How far the host's file systems have fallen since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fall {
    pub(super) bytes: u64,
    /// `None` where one of them does not count files.
    pub(super) files: Option<u64>,
}

/// Watches the writable directories of one cage.
#[derive(Debug)]
pub(super) struct StorageWatch {
    suspicion: Suspicion,
    roots: Vec<OwnedFd>,
    /// By device, so that two directories on one file system count once.
    baseline: BTreeMap<(u32, u32), (usize, Free)>,
    started: SystemTime,
    walk: Option<UnderWay>,
    next_uncounted: Instant,
}

/// A walk, when it began, and the time that it took so far.
#[derive(Debug)]
struct UnderWay {
    walk: Walk,
    begun: Instant,
    spent: Duration,
}

impl StorageWatch {
    /// `None` when no limit is given.
    pub(super) fn new(
        disk: Option<u64>,
        inodes: Option<u64>,
        roots: Vec<OwnedFd>,
    ) -> io::Result<Option<StorageWatch>> {
        if disk.is_none() && inodes.is_none() {
            return Ok(None);
        }
        let mut baseline = BTreeMap::new();
        for (number, root) in roots.iter().enumerate() {
            let device = walk::device(&walk::stat(root.as_fd(), c"", AtFlags::EMPTY_PATH)?);
            baseline.entry(device).or_insert((number, free(root)?));
        }
        Ok(Some(StorageWatch {
            suspicion: Suspicion::new(disk, inodes),
            roots,
            baseline,
            started: SystemTime::now(),
            walk: None,
            next_uncounted: Instant::now() + UNCOUNTED,
        }))
    }

    /// One step: either a look at free space or a piece of a walk.
    pub(super) fn look(&mut self, processes: &dyn ProcessFiles) -> StorageLook {
        let start = Instant::now();
        let fall = self.fall();
        let Some(under_way) = &mut self.walk else {
            let uncounted = fall.files.is_none() && start >= self.next_uncounted;
            if self.suspicion.arises(fall) || uncounted {
                self.walk = Some(UnderWay {
                    walk: Walk::new(self.started),
                    begun: start,
                    spent: Duration::ZERO,
                });
                return pause(PAUSE_IN_WALK);
            }
            return pause(PAUSE);
        };
        let done = under_way.walk.step(&self.roots, ENTRIES_PER_STEP);
        under_way.spent += start.elapsed();
        let Some(mut added) = done else {
            let late = start.duration_since(under_way.begun) > PATIENCE;
            return StorageLook {
                pause: PAUSE_IN_WALK,
                exceeded: late.then(|| self.suspicion.overdue(fall)).flatten(),
            };
        };
        let rest = pace::affordable(under_way.spent).max(PAUSE);
        self.walk = None;
        self.next_uncounted = Instant::now() + UNCOUNTED.max(rest);
        self.add_deleted(processes, &mut added);
        StorageLook {
            pause: rest,
            exceeded: self.suspicion.verdict(fall, added),
        }
    }

    /// Files that were deleted while open still take space.
    fn add_deleted(&self, processes: &dyn ProcessFiles, added: &mut Added) {
        let mut deleted = BTreeMap::new();
        for pid in processes.pids().unwrap_or_default() {
            let files = match processes.open_files(pid) {
                Ok(files) => files,
                Err(error) => {
                    // The cage's PID 1 is Ironcage's own and never dumpable. Others have ended,
                    // or hide what they hold.
                    added.blind |= error.kind() == io::ErrorKind::PermissionDenied && pid != 1;
                    continue;
                }
            };
            for file in files.nameless {
                if !file.memory && self.baseline.contains_key(&file.device) {
                    deleted.insert((file.device, file.inode), file.bytes);
                }
            }
        }
        added.bytes += deleted.values().sum::<u64>();
        added.files += u64::try_from(deleted.len()).unwrap_or(u64::MAX);
    }

    fn fall(&self) -> Fall {
        let mut total = Fall {
            bytes: 0,
            files: Some(0),
        };
        for (number, before) in self.baseline.values() {
            let Some(Ok(now)) = self.roots.get(*number).map(free) else {
                continue;
            };
            total.bytes += before.bytes.saturating_sub(now.bytes);
            total.files = match (total.files, before.files, now.files) {
                (Some(sum), Some(before), Some(now)) => Some(sum + before.saturating_sub(now)),
                _ => None,
            };
        }
        total
    }
}

fn pause(pause: Duration) -> StorageLook {
    StorageLook {
        pause,
        exceeded: None,
    }
}

fn free(root: &OwnedFd) -> io::Result<Free> {
    let usage = rustix::fs::fstatvfs(root)?;
    Ok(Free {
        bytes: usage.f_bfree.saturating_mul(usage.f_frsize),
        files: (usage.f_files > 0).then_some(usage.f_ffree),
    })
}

/// When a walk is worth it, and what its result means. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspicion {
    disk: Option<u64>,
    inodes: Option<u64>,
    /// A fall beyond these is suspicious.
    bytes_at: u64,
    files_at: u64,
}

impl Suspicion {
    pub(super) fn new(disk: Option<u64>, inodes: Option<u64>) -> Suspicion {
        Suspicion {
            disk,
            inodes,
            bytes_at: disk.unwrap_or(u64::MAX),
            files_at: inodes.unwrap_or(u64::MAX),
        }
    }

    /// Whether the cage could have passed a limit.
    pub(super) fn arises(&self, fall: Fall) -> bool {
        fall.bytes > self.bytes_at || fall.files.is_some_and(|files| files > self.files_at)
    }

    /// What to think of a walk that does not come to its end while the file system falls by
    /// another limit's worth.
    pub(super) fn overdue(&self, fall: Fall) -> Option<(LimitKind, String)> {
        let beyond = |fall: u64, at: u64, limit: u64| fall > at.saturating_add(limit);
        if let Some(limit) = self.disk
            && beyond(fall.bytes, self.bytes_at, limit)
        {
            return Some((LimitKind::Disk, bytes_as_written(limit)));
        }
        if let (Some(limit), Some(files)) = (self.inodes, fall.files)
            && beyond(files, self.files_at, limit)
        {
            return Some((LimitKind::Inodes, limit.to_string()));
        }
        None
    }

    /// Whether it has, after a walk. A changed file counts whole in `added`, though little of it
    /// may be new: no more than the fall is held against the cage; but all of it where the walk
    /// was kept from seeing everything.
    pub(super) fn verdict(&mut self, fall: Fall, added: Added) -> Option<(LimitKind, String)> {
        let blind = added.blind;
        let held = |added: u64, fall: u64| if blind { fall } else { added.min(fall) };
        let bytes = held(added.bytes, fall.bytes);
        let files = fall
            .files
            .map_or(added.files, |fall| held(added.files, fall));
        if let Some(limit) = self.disk {
            if bytes > limit {
                return Some((LimitKind::Disk, bytes_as_written(limit)));
            }
            // To pass the limit now, the cage has to add what is left of it.
            self.bytes_at = fall.bytes.saturating_add(limit - bytes);
        }
        if let Some(limit) = self.inodes {
            if files > limit {
                return Some((LimitKind::Inodes, limit.to_string()));
            }
            self.files_at = fall.files.unwrap_or(0).saturating_add(limit - files);
        }
        None
    }
}

#[cfg(test)]
#[path = "storage_tests.rs"]
mod tests;
