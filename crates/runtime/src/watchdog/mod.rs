//! The watchdog: limits that no cgroup and no mount option holds.
//!
//! It looks at the cage from outside, now and then, and says when a limit is passed; whoever
//! supervises the cage ends it. It runs in the supervisor's single-threaded loop: `tick` does a
//! bounded piece of work and says when it wants to be called again, so that watching costs five
//! percent of one processor at most, and only near a limit up to a quarter.
//!
//! What it does not see: memory of the kernel itself (pipes, sockets, page tables), memfds in
//! flight between two processes, deleted files of a program that hides its descriptors, and writes
//! that are hidden by others freeing as much space on the same file system at the same time. A
//! fast writer passes a limit by what it writes between two looks. This is why such a limit is
//! reported as partial.

mod memory;
mod pace;
mod processes;
mod storage;
mod walk;

#[cfg(test)]
pub(crate) use processes::OpenFiles;
pub(crate) use processes::{ProcMount, ProcessFiles, anonymous_memory, processor_ticks, tasks};

use ironcage_model::{LimitHit, LimitKind, bytes_as_written};
use memory::MemoryWatch;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use storage::StorageWatch;

/// What is watched; `None` is left to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WatchedLimits {
    /// Bytes of memory, tmpfs and memfd included.
    pub(crate) memory: Option<u64>,
    /// Bytes added to writable directories of the host.
    pub(crate) disk: Option<u64>,
    /// Files added to writable directories of the host.
    pub(crate) inodes: Option<u64>,
}

/// Where to look.
#[derive(Debug)]
pub(crate) struct WatchedPlaces {
    /// The cage's processes.
    pub(crate) proc: ProcMount,
    /// Every tmpfs of the cage, by any descriptor in it.
    pub(crate) tmpfs: Vec<OwnedFd>,
    /// The list of the cage's System V shared memory.
    pub(crate) segments: Option<OwnedFd>,
    /// Every writable directory of the host, opened for reading (not O_PATH).
    pub(crate) writable: Vec<OwnedFd>,
}

/// The result of one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tick {
    /// When to look again.
    pub(crate) next: Instant,
    /// The limit that was passed; the cage is to be ended.
    pub(crate) hit: Option<LimitHit>,
}

/// Watches one cage.
#[derive(Debug)]
pub(crate) struct Watchdog {
    proc: ProcMount,
    memory: Option<MemoryWatch>,
    storage: Option<StorageWatch>,
    memory_due: Instant,
    storage_due: Instant,
}

impl Watchdog {
    /// Takes the baseline. Call it before the cage's command starts. `None` when there is
    /// nothing to watch.
    pub(crate) fn new(
        limits: WatchedLimits,
        places: WatchedPlaces,
        now: Instant,
    ) -> io::Result<Option<Watchdog>> {
        let memory = limits
            .memory
            .map(|limit| MemoryWatch::new(limit, places.tmpfs, places.segments))
            .transpose()?;
        let storage = if places.writable.is_empty() {
            None
        } else {
            StorageWatch::new(limits.disk, limits.inodes, places.writable)?
        };
        if memory.is_none() && storage.is_none() {
            return Ok(None);
        }
        Ok(Some(Watchdog {
            proc: places.proc,
            memory,
            storage,
            memory_due: now,
            storage_due: now,
        }))
    }

    /// Looks at what is due.
    pub(crate) fn tick(&mut self, now: Instant) -> Tick {
        let mut hit = None;
        if let Some(memory) = &mut self.memory
            && now >= self.memory_due
        {
            let look = memory.look(&self.proc);
            self.memory_due = now + look.pause;
            if look.exceeded {
                hit = Some(ended(LimitKind::Memory, bytes_as_written(memory.limit())));
            }
        }
        if let Some(storage) = &mut self.storage
            && now >= self.storage_due
        {
            let look = storage.look(&self.proc);
            self.storage_due = now + look.pause;
            hit = hit.or(look.exceeded.map(|(kind, value)| ended(kind, value)));
        }
        let memory = self.memory.as_ref().map(|_| self.memory_due);
        let storage = self.storage.as_ref().map(|_| self.storage_due);
        let next = memory.into_iter().chain(storage).min().unwrap_or(now);
        Tick { next, hit }
    }
}

fn ended(limit: LimitKind, value: String) -> LimitHit {
    LimitHit {
        limit,
        value,
        ended: true,
    }
}

#[cfg(test)]
mod tests;
