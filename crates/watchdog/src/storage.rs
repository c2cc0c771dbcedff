//! Bytes and files added to writable directories of the host.
//!
//! Free space and free inodes of the file system are cheap to ask for. While no more was drawn
//! from them than the limits leave, the cage cannot have passed one. When more was drawn, the
//! cage is stopped, a walk counts what is new, and the cage is ended or goes on. After the end of
//! every cage a last walk counts again, when nobody is left to write: so a cage that was faster
//! than all looks is still found out ([ADR 26](../../../../docs/adr/0026-limits-on-disk.md)).
//!
//! Growth is added up from look to look, so that space which others free hides only what
//! is written between the same two looks.
//!
//! Where the walk cannot look (a directory that the cage made unreadable, a tree of absurd depth,
//! a process that hides its descriptors), what the file system has lost is held against the cage;
//! and a walk that does not end is not waited for while the file system goes on falling.

use crate::baseline::{Free, StorageBaseline};
use crate::guests::is_first;
use crate::pace;
use crate::processes::ProcessFiles;
use crate::walk::{self, Added, Amount, Walk};
use ironcage_model::LimitKind;
use ironcage_sys::rustix;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Entries of a walk between two turns of the supervisor's loop: some milliseconds.
const ENTRIES_PER_STEP: usize = 4096;
/// How long a walk may take before a further fall by a limit's worth is taken for its result.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to walk for files where the file system does not count them (btrfs).
const UNCOUNTED: Duration = Duration::from_secs(10);
/// Old entries of a directory that the last walk looks at where nothing is suspicious: some
/// milliseconds. In a larger tree, which the cage has in the mode `direct` only, free space alone
/// says whether a full walk is needed.
const OLD_ENTRIES: usize = 2048;

/// A limit that was passed, and by how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun {
    pub kind: LimitKind,
    pub limit: u64,
    pub used: u64,
}

/// The result of one look at storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StorageLook {
    pub(crate) pause: Duration,
    pub(crate) exceeded: Option<Overrun>,
}

/// What the host's file systems have lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fall {
    pub(crate) bytes: u64,
    /// `None` where one of them does not count files.
    pub(crate) files: Option<u64>,
}

impl Fall {
    const NOTHING: Fall = Fall {
        bytes: 0,
        files: Some(0),
    };

    fn add(&mut self, before: Free, now: Free) {
        self.bytes = (self.bytes).saturating_add(before.bytes.saturating_sub(now.bytes));
        self.files = match (self.files, before.files, now.files) {
            (Some(sum), Some(before), Some(now)) => {
                Some(sum.saturating_add(before.saturating_sub(now)))
            }
            _ => None,
        };
    }
}

/// Watches the writable directories of one cage.
#[derive(Debug)]
pub(crate) struct StorageWatch {
    suspicion: Suspicion,
    baseline: StorageBaseline,
    /// All that was drawn from look to look, whatever was freed between.
    drawn: Fall,
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
    pub(crate) fn new(
        disk: Option<u64>,
        inodes: Option<u64>,
        baseline: StorageBaseline,
    ) -> StorageWatch {
        StorageWatch {
            suspicion: Suspicion::new(disk, inodes),
            baseline,
            drawn: Fall::NOTHING,
            walk: None,
            next_uncounted: Instant::now() + UNCOUNTED,
        }
    }

    /// Watches one more directory, from now on. What lies in a directory that is watched already
    /// is counted with it, from the start.
    pub(crate) fn add_later(&mut self, directory: OwnedFd) -> io::Result<()> {
        let mut place = directory.try_clone()?;
        let mut below = None;
        loop {
            let stat = walk::stat(place.as_fd(), c"", AtFlags::EMPTY_PATH)?;
            let identity = walk::identity(&stat);
            if self.baseline.has_root(identity) {
                return Ok(());
            }
            // The root of the file system is its own parent.
            if below == Some(identity) {
                return self.baseline.add_since(directory, walk::stamp_clock());
            }
            below = Some(identity);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            place = rustix::fs::openat(&place, "..", flags, Mode::empty())?;
        }
    }

    /// Whether there is something to look at.
    pub(crate) fn is_needed(&self) -> bool {
        self.suspicion.has_limits() && !self.baseline.roots.is_empty()
    }

    /// Whether a walk is under way, for which the cage is to stand still.
    pub(crate) fn is_counting(&self) -> bool {
        self.walk.is_some()
    }

    /// One step: either a look at free space or a piece of a walk.
    pub(crate) fn look(&mut self, processes: &dyn ProcessFiles) -> StorageLook {
        let start = Instant::now();
        let fall = self.fall();
        let Some(under_way) = &mut self.walk else {
            let uncounted = fall.files.is_none() && start >= self.next_uncounted;
            if self.suspicion.arises(self.drawn) || uncounted {
                self.walk = Some(UnderWay {
                    walk: Walk::new(),
                    begun: start,
                    spent: Duration::ZERO,
                });
                return go_on(Duration::ZERO);
            }
            return go_on(self.suspicion.pause(self.drawn));
        };
        let done = under_way.walk.step(&self.baseline.roots, ENTRIES_PER_STEP);
        under_way.spent += start.elapsed();
        let Some(mut added) = done else {
            let late = start.duration_since(under_way.begun) > PATIENCE;
            return StorageLook {
                pause: Duration::ZERO,
                exceeded: late
                    .then(|| self.suspicion.overdue(self.drawn, fall))
                    .flatten(),
            };
        };
        let spent = under_way.spent;
        self.walk = None;
        self.next_uncounted = Instant::now() + UNCOUNTED.max(pace::affordable(spent));
        self.add_deleted(processes, &mut added);
        let exceeded = self.suspicion.verdict(self.drawn, fall, added);
        let rest = pace::affordable(spent).max(self.suspicion.pause(self.drawn));
        StorageLook {
            pause: rest,
            exceeded: exceeded.into_iter().flatten().next(),
        }
    }

    /// Counts for the last time, when no process of the cage is left: every limit that is passed.
    pub(crate) fn last_count(&mut self) -> Vec<Overrun> {
        if !self.is_needed() {
            return Vec::new();
        }
        let fall = self.fall();
        let uncounted = fall.files.is_none();
        let mut walk = match self.suspicion.arises(self.drawn) || uncounted {
            true => Walk::new(),
            false => Walk::past_old(OLD_ENTRIES),
        };
        let added = loop {
            if let Some(added) = walk.step(&self.baseline.roots, ENTRIES_PER_STEP) {
                break added;
            }
        };
        let overruns = self.suspicion.verdict(self.drawn, fall, added);
        overruns.into_iter().flatten().collect()
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
                    added.blind |=
                        error.kind() == io::ErrorKind::PermissionDenied && !is_first(pid);
                    continue;
                }
            };
            for file in files.nameless {
                if !file.memory && self.baseline.systems.contains_key(&file.device) {
                    deleted.insert((file.device, file.inode), file.bytes);
                }
            }
        }
        added.possible.bytes += deleted.values().sum::<u64>();
        added.possible.files += u64::try_from(deleted.len()).unwrap_or(u64::MAX);
    }

    /// How far free space lies below what it was at the start; and what was drawn since the last
    /// look is added up.
    fn fall(&mut self) -> Fall {
        let mut total = Fall::NOTHING;
        let StorageBaseline { roots, systems, .. } = &mut self.baseline;
        for system in systems.values_mut() {
            let root = roots.get(system.root);
            let Some(Ok(now)) = root.map(|root| Free::around(&root.directory)) else {
                continue;
            };
            total.add(system.at_start, now);
            self.drawn.add(system.last, now);
            system.last = now;
        }
        total
    }
}

fn go_on(pause: Duration) -> StorageLook {
    StorageLook {
        pause,
        exceeded: None,
    }
}

/// When a walk is worth it, and what its result means. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspicion {
    disk: Option<u64>,
    inodes: Option<u64>,
    /// More drawn than this is suspicious.
    bytes_at: u64,
    files_at: u64,
}

impl Suspicion {
    pub(crate) fn new(disk: Option<u64>, inodes: Option<u64>) -> Suspicion {
        Suspicion {
            disk,
            inodes,
            bytes_at: disk.unwrap_or(u64::MAX),
            files_at: inodes.unwrap_or(u64::MAX),
        }
    }

    fn has_limits(&self) -> bool {
        self.disk.is_some() || self.inodes.is_some()
    }

    /// Whether the cage could have passed a limit.
    pub(crate) fn arises(&self, drawn: Fall) -> bool {
        drawn.bytes > self.bytes_at || drawn.files.is_some_and(|files| files > self.files_at)
    }

    /// The pause before the next look at free space.
    pub(crate) fn pause(&self, drawn: Fall) -> Duration {
        // Where they are not counted, looks at free space tell nothing of them.
        let left = |files| self.files_at.saturating_sub(files);
        let files = drawn.files.map_or(u64::MAX, left);
        pace::next_storage_check(self.bytes_at.saturating_sub(drawn.bytes), files)
    }

    /// What to think of a walk that does not come to its end while the file system falls by
    /// another limit's worth.
    pub(crate) fn overdue(&self, drawn: Fall, fall: Fall) -> Option<Overrun> {
        let beyond = |drawn: u64, at: u64, limit: u64| drawn > at.saturating_add(limit);
        let passed = |kind, limit, used| Some(Overrun { kind, limit, used });
        if let Some(limit) = self.disk
            && beyond(drawn.bytes, self.bytes_at, limit)
        {
            return passed(LimitKind::Disk, limit, fall.bytes);
        }
        if let (Some(limit), Some(files)) = (self.inodes, drawn.files)
            && beyond(files, self.files_at, limit)
        {
            return passed(LimitKind::Inodes, limit, fall.files.unwrap_or(files));
        }
        None
    }

    /// Which limits are passed, after a walk: bytes, then files. What is certain counts whole. Of
    /// what is only possible, no more than the file system has lost is held against the cage; and
    /// all of that where the walk was kept from seeing everything.
    pub(crate) fn verdict(
        &mut self,
        drawn: Fall,
        fall: Fall,
        added: Added,
    ) -> [Option<Overrun>; 2] {
        let held = |certain: u64, possible: u64, fall: u64| {
            let rest = fall.saturating_sub(certain);
            certain
                + if added.blind {
                    rest
                } else {
                    possible.min(rest)
                }
        };
        let Amount { bytes, files } = added.certain;
        let bytes = held(bytes, added.possible.bytes, fall.bytes);
        let files = match fall.files {
            Some(fall) => held(files, added.possible.files, fall),
            None => files.saturating_add(added.possible.files),
        };
        let passed = |kind, used: u64, limit: Option<u64>| {
            let limit = limit.filter(|limit| used > *limit)?;
            Some(Overrun { kind, limit, used })
        };
        // To pass a limit from here on, the cage has to add what is left of it.
        if let Some(limit) = self.disk {
            self.bytes_at = drawn.bytes.saturating_add(limit.saturating_sub(bytes));
        }
        if let Some(limit) = self.inodes {
            let left = limit.saturating_sub(files);
            self.files_at = drawn.files.unwrap_or(0).saturating_add(left);
        }
        [
            passed(LimitKind::Disk, bytes, self.disk),
            passed(LimitKind::Inodes, files, self.inodes),
        ]
    }
}

#[cfg(test)]
#[path = "storage_tests.rs"]
mod tests;
