//! The watchdog: limits that no cgroup and no mount option enforces.
//!
//! It samples the cage from outside and reports a limit that is exceeded; the supervisor ends the cage.
//! It runs in the supervisor's single-threaded loop: `tick` does a bounded piece of work and returns when
//! to call it again, so that watching costs at most five percent of one CPU, and up to a quarter near a
//! limit.
//!
//! A fast writer exceeds a limit by what it writes between two samples, so such a limit is reported as
//! partial. On disk, a last count after the end of the cage always finds that. Memory that was freed
//! before a sample is not found.
//!
//! It does not see: memory of the kernel itself (pipes, sockets, page tables), memfds in
//! flight between two processes, and growth of older files that is hidden by others freeing as
//! much space on the same file system between the same two looks.
#![forbid(unsafe_code)]
// Read by the supervisor alone.
#![allow(missing_docs)]

mod baseline;
mod guests;
mod memory;
mod pace;
mod processes;
mod sockets;

pub use sockets::listens_on_loopback;
mod storage;
mod walk;

pub use processes::{
    Nameless, OpenFiles, ProcMount, ProcessFiles, anonymous_memory, processor_ticks, tasks,
};

pub use baseline::StorageBaseline;
pub use guests::{Guest, GuestPlaces, Guests, Together};
use ironcage_model::{LimitHit, LimitKind, bytes_as_written};
use memory::MemoryWatch;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
pub use storage::Overrun;
use storage::StorageWatch;

/// What is watched; `None` is left to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchedLimits {
    /// Bytes of memory, tmpfs and memfd included.
    pub memory: Option<u64>,
    /// Bytes added to writable directories of the host.
    pub disk: Option<u64>,
    /// Files added to writable directories of the host.
    pub inodes: Option<u64>,
}

/// Where to look.
#[derive(Debug)]
pub struct WatchedPlaces {
    pub proc: ProcMount,
    pub memory: MemoryPlaces,
    /// Every writable directory of the host, as it was before the command began.
    pub writable: StorageBaseline,
}

/// What of a cage is memory and belongs to no process. Empty where memory is not watched.
#[derive(Debug, Default)]
pub struct MemoryPlaces {
    /// Every tmpfs of the cage, by any descriptor in it.
    pub tmpfs: Vec<OwnedFd>,
    /// The list of the cage's System V shared memory.
    pub segments: Option<OwnedFd>,
    /// Where the kernel lists the cage's sockets.
    pub sockets: Option<OwnedFd>,
}

/// Watches one cage.
#[derive(Debug)]
pub struct Watchdog {
    proc: ProcMount,
    memory: Option<MemoryWatch>,
    storage: StorageWatch,
    memory_due: Instant,
    storage_due: Instant,
}

impl Watchdog {
    pub fn new(limits: WatchedLimits, places: WatchedPlaces, now: Instant) -> io::Result<Watchdog> {
        let memory = limits
            .memory
            .map(|limit| {
                let MemoryPlaces {
                    tmpfs,
                    segments,
                    sockets,
                } = places.memory;
                MemoryWatch::new(limit, tmpfs, (segments, sockets))
            })
            .transpose()?;
        Ok(Watchdog {
            proc: places.proc,
            memory,
            storage: StorageWatch::new(limits.disk, limits.inodes, places.writable),
            memory_due: now,
            storage_due: now,
        })
    }

    /// Watches one more writable directory of the host, from now on.
    pub fn watch_directory(&mut self, directory: OwnedFd, now: Instant) -> io::Result<()> {
        self.storage.add_later(directory)?;
        self.storage_due = now;
        Ok(())
    }

    /// When to look next; `None` when there is nothing to watch.
    pub fn next(&self) -> Option<Instant> {
        let memory = self.memory.as_ref().map(|_| self.memory_due);
        let storage = self.storage.is_needed().then_some(self.storage_due);
        memory.into_iter().chain(storage).min()
    }

    /// Whether the cage is to stand still while it is counted what it wrote.
    pub fn is_counting(&self) -> bool {
        self.storage.is_counting()
    }

    /// Looks at what is due. A hit means that the cage is to be ended.
    pub fn look(&mut self, guests: &Guests, now: Instant) -> Option<LimitHit> {
        let mut hit = None;
        let processes = Together {
            own: &self.proc,
            guests,
        };
        if let Some(memory) = &mut self.memory
            && now >= self.memory_due
        {
            let look = memory.look(&processes, guests);
            self.memory_due = now + look.pause;
            if look.exceeded {
                hit = Some(Overrun {
                    kind: LimitKind::Memory,
                    limit: memory.limit(),
                    used: look.used,
                });
            }
        }
        if self.storage.is_needed() && now >= self.storage_due {
            let look = self.storage.look(&processes);
            self.storage_due = now + look.pause;
            hit = hit.or(look.exceeded);
        }
        hit.map(Overrun::ended)
    }

    /// What the cage has added to writable directories beyond its limits, counted when all of its
    /// processes are gone.
    pub fn last_count(&mut self) -> Vec<Overrun> {
        self.storage.last_count()
    }
}

impl Overrun {
    /// The limit that the cage was ended for.
    pub fn ended(self) -> LimitHit {
        LimitHit {
            limit: self.kind,
            value: match self.kind {
                LimitKind::Memory | LimitKind::Disk => bytes_as_written(self.limit),
                _ => self.limit.to_string(),
            },
            ended: true,
            // Where nothing could be measured, the limit counts as passed by an unknown amount.
            used: Some(self.used).filter(|used| *used < u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
