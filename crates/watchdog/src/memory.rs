//! How much memory a cage has, in three steps of rising cost; each is taken only when the one
//! before it cannot rule out that the limit is passed.
//!
//! 1. Anonymous memory of all processes, with pages shared after a fork counted for each, what
//!    waits in sockets, and all shared memory and swap of the whole host: more than the cage can
//!    have.
//! 2. The same with the cage's own tmpfs, memfds and mapped shared memory: still more, since
//!    what is mapped is counted twice.
//! 3. Proportional shares, and mappings of shared memory one by one: what it has.
//!
//! A process that is not dumpable in a user namespace without a root of its own hides its
//! descriptors from a supervisor without privileges (`fd` then belongs to the host's root), and
//! with them its memfds. While one does, shared memory that the host gained since the start and
//! that nothing else explains is held against the cage.

use crate::guests::{Guests, is_first};
use crate::pace;
use crate::processes::{Nameless, ProcessFiles, kilobytes, read_all};
use crate::sockets;
use ironcage_sys::rustix;
use ironcage_sys::rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How many descriptors one look goes through before it leaves the other processes to the next.
const FILES_PER_LOOK: usize = 10_000;

/// The result of one look at memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLook {
    pub(crate) pause: Duration,
    /// Bytes in use; more than the truth only where that is still below the limit.
    pub(crate) used: u64,
    pub(crate) exceeded: bool,
}

/// Sources of numbers that are not in the cage's `/proc`.
pub(crate) trait MemorySources: std::fmt::Debug {
    /// Shared memory and used swap of the whole host, in bytes.
    fn host_shared(&self) -> io::Result<u64>;
    /// Bytes used in the cage's tmpfs.
    fn tmpfs(&self) -> u64;
    /// Bytes of the cage's System V segments, attached or not; `None` where they cannot be
    /// listed.
    fn segments(&self) -> Option<u64>;
    /// Bytes that wait in the cage's sockets.
    fn sockets(&self) -> io::Result<u64>;
}

/// Watches the memory of one cage.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    limit: u64,
    sources: Box<dyn MemorySources>,
    /// Memfds by process, from the last time each was looked at.
    memfds: BTreeMap<u32, Vec<Nameless>>,
    /// Where the next round over the processes goes on.
    resume_at: u32,
    /// Processes whose descriptors could not be read when they were last looked at.
    hiding: BTreeSet<u32>,
    /// Shared memory of the host when the watch began.
    shared_at_start: Option<u64>,
}

/// The most that a socket may send before somebody reads it, twice what the host lets programs ask
/// for. Where that cannot be read, the kernel's own default.
fn largest_socket() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max");
    let most = most.ok().and_then(|text| text.trim().parse().ok());
    2 * most.unwrap_or(212_992_u64)
}

/// Bytes in sockets that are listed; none where the kernel has no such list.
fn listed_sockets(list: Option<&OwnedFd>) -> io::Result<u64> {
    let Some(list) = list else { return Ok(0) };
    match sockets::bytes(list, largest_socket()) {
        Err(error) if is_blind(&error) => Err(error),
        found => Ok(found.unwrap_or(0)),
    }
}

/// Bytes in the storage and segments of those beside the cage; and whether all segments are
/// listed.
fn of_guests(guests: &Guests) -> (u64, bool) {
    let (mut bytes, mut listed) = (0_u64, true);
    for guest in guests.places() {
        bytes = bytes.saturating_add(used_of(&guest.tmpfs));
        match guest.segments.as_ref().map(listed_segments) {
            Some(Some(segments)) => bytes = bytes.saturating_add(segments),
            Some(None) | None => listed = false,
        }
    }
    (bytes, listed)
}

/// Bytes used in the file system of a descriptor.
fn used_of(file: &OwnedFd) -> u64 {
    let Ok(usage) = rustix::fs::fstatvfs(file) else {
        return 0;
    };
    let blocks = usage.f_blocks.saturating_sub(usage.f_bfree);
    blocks.saturating_mul(usage.f_frsize)
}

/// Bytes of the segments in a list; `None` where it cannot be read.
fn listed_segments(list: &OwnedFd) -> Option<u64> {
    rustix::fs::seek(list, rustix::fs::SeekFrom::Start(0)).ok()?;
    Some(segment_bytes(&read_all(list).ok()?))
}

/// Whether something is not seen for want of means to look: a limit that cannot be watched counts as
/// passed, whoever used the means up.
pub(crate) fn is_blind(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
    )
}

impl MemoryWatch {
    pub(crate) fn new(
        limit: u64,
        tmpfs: Vec<OwnedFd>,
        (segments, sockets): (Option<OwnedFd>, Option<OwnedFd>),
    ) -> io::Result<MemoryWatch> {
        let meminfo = std::fs::File::open("/proc/meminfo")?.into();
        Ok(MemoryWatch::with_sources(
            limit,
            Box::new(HostSources {
                meminfo,
                tmpfs,
                segments,
                sockets,
            }),
        ))
    }

    pub(crate) fn with_sources(limit: u64, sources: Box<dyn MemorySources>) -> MemoryWatch {
        MemoryWatch {
            limit,
            shared_at_start: sources.host_shared().ok(),
            hiding: BTreeSet::new(),
            sources,
            memfds: BTreeMap::new(),
            resume_at: 0,
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes as many steps as needed to know whether the limit is passed.
    pub(crate) fn look(&mut self, processes: &dyn ProcessFiles, guests: &Guests) -> MemoryLook {
        let start = Instant::now();
        let used = self.measure(processes, guests);
        MemoryLook {
            pause: pace::next_check(used, self.limit, start.elapsed()),
            used,
            exceeded: used > self.limit,
        }
    }

    /// Bytes in use; more than the truth only where that is still below the limit.
    pub(crate) fn measure(&mut self, processes: &dyn ProcessFiles, guests: &Guests) -> u64 {
        let pids = match processes.pids() {
            Ok(pids) => pids,
            Err(error) if is_blind(&error) => return u64::MAX,
            // No list of processes means no processes: the cage's PID 1 is gone.
            Err(_) => Vec::new(),
        };
        let mut resident: Vec<(u32, Resident)> = Vec::with_capacity(pids.len());
        for pid in &pids {
            match processes.read(*pid, "status") {
                Ok(status) => resident.push((*pid, Resident::parse(&status))),
                Err(error) if is_blind(&error) => return u64::MAX,
                Err(_) => {}
            }
        }
        let Ok(waiting) = self.in_sockets(guests) else {
            return u64::MAX;
        };
        let anonymous: u64 = resident.iter().map(|(_, one)| one.anonymous).sum();
        let own = anonymous.saturating_add(waiting);
        // Where the host cannot be asked, the next step decides.
        let host_shared = self.sources.host_shared().ok();
        if let Some(shared) = host_shared {
            let bound = own.saturating_add(shared);
            if bound <= self.limit {
                return bound;
            }
        }
        self.scan_memfds(processes, &pids);
        let segments = self.sources.segments();
        let (tmpfs, listed) = of_guests(guests);
        let tmpfs = tmpfs
            .saturating_add(self.sources.tmpfs())
            .saturating_add(segments.unwrap_or(0));
        let segments_listed = segments.is_some() && listed;
        let memfds = self.memfd_sizes();
        let mapped: u64 = resident.iter().map(|(_, one)| one.shared).sum();
        let unmapped = tmpfs.saturating_add(memfds.values().sum());
        let hidden = self.hidden(host_shared, unmapped);
        let bound = own
            .saturating_add(mapped)
            .saturating_add(unmapped)
            .saturating_add(hidden);
        if bound <= self.limit {
            return bound;
        }
        let (anonymous, shared) = self.exact(processes, &resident, memfds, segments_listed);
        let explained = tmpfs.saturating_add(shared);
        anonymous
            .saturating_add(waiting)
            .saturating_add(explained)
            .saturating_add(self.hidden(host_shared, explained))
    }

    /// Bytes in the sockets of the cage and of those beside it, each in a namespace of its own.
    fn in_sockets(&self, guests: &Guests) -> io::Result<u64> {
        let mut bytes = self.sources.sockets()?;
        for guest in guests.places() {
            bytes = bytes.saturating_add(listed_sockets(guest.sockets.as_ref())?);
        }
        Ok(bytes)
    }

    /// Growth of the host's shared memory that must be taken for the cage's, because a process of
    /// it hides its descriptors, after what is explained.
    fn hidden(&self, host_shared: Option<u64>, explained: u64) -> u64 {
        if self.hiding.is_empty() {
            return 0;
        }
        match (host_shared, self.shared_at_start) {
            (Some(now), Some(then)) => now.saturating_sub(then).saturating_sub(explained),
            _ => 0,
        }
    }

    /// Proportional shares of anonymous memory, and shared memory outside the cage's tmpfs.
    fn exact(
        &self,
        processes: &dyn ProcessFiles,
        resident: &[(u32, Resident)],
        mut memfds: BTreeMap<u64, u64>,
        segments_listed: bool,
    ) -> (u64, u64) {
        let mut total = 0u64;
        let mut shared_total = 0u64;
        let mut mapped_memfds: BTreeMap<u64, u64> = BTreeMap::new();
        for (pid, rough) in resident {
            let own = match processes.read(*pid, "smaps_rollup") {
                Ok(rollup) => {
                    let field = |name| kilobytes(&rollup, name).unwrap_or(0);
                    field("Pss_Anon").saturating_add(field("SwapPss"))
                }
                // What everybody sees is more than the process's share.
                Err(_) => rough.anonymous,
            };
            total = total.saturating_add(own);
            if rough.shared == 0 {
                continue;
            }
            match processes.read(*pid, "smaps") {
                Ok(smaps) => {
                    let shared = SharedMappings::parse(&smaps, segments_listed);
                    shared_total = shared_total.saturating_add(shared.without_file);
                    for (inode, bytes) in shared.memfds {
                        *mapped_memfds.entry(inode).or_default() += bytes;
                    }
                }
                Err(_) => shared_total = shared_total.saturating_add(rough.shared),
            }
        }
        // A memfd that is mapped may have no descriptor any more.
        for (inode, bytes) in mapped_memfds {
            let size = memfds.entry(inode).or_default();
            *size = (*size).max(bytes);
        }
        (total, shared_total.saturating_add(memfds.values().sum()))
    }

    /// Looks for memfds, a bounded number at a time; what is known of the others is kept.
    fn scan_memfds(&mut self, processes: &dyn ProcessFiles, pids: &[u32]) {
        let alive: BTreeSet<u32> = pids.iter().copied().collect();
        self.memfds.retain(|pid, _| alive.contains(pid));
        self.hiding.retain(|pid| alive.contains(pid));
        let order: Vec<u32> = alive
            .range(self.resume_at..)
            .chain(alive.range(..self.resume_at))
            .copied()
            .collect();
        let mut seen = 0;
        self.resume_at = 0;
        for pid in order {
            if seen >= FILES_PER_LOOK {
                self.resume_at = pid;
                break;
            }
            match processes.open_files(pid) {
                Ok(files) => {
                    seen += files.seen;
                    let nameless = files.nameless.into_iter();
                    self.hiding.remove(&pid);
                    self.memfds
                        .insert(pid, nameless.filter(|file| file.memory).collect());
                }
                // The cage's PID 1 is Ironcage's own and never dumpable; it has no memfd.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_first(pid) => {
                    self.hiding.insert(pid);
                }
                // It has ended since.
                Err(_) => {}
            }
        }
    }

    /// Sizes by inode: the same memfd in several processes is one.
    fn memfd_sizes(&self) -> BTreeMap<u64, u64> {
        let files = self.memfds.values().flatten();
        files.map(|file| (file.inode, file.bytes)).collect()
    }
}

/// What everybody can read of a process's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Resident {
    /// Anonymous pages and those swapped out.
    anonymous: u64,
    /// Pages of tmpfs, memfd and shared anonymous mappings.
    shared: u64,
}

impl Resident {
    fn parse(status: &str) -> Resident {
        let field = |name| kilobytes(status, name).unwrap_or(0);
        Resident {
            anonymous: field("RssAnon").saturating_add(field("VmSwap")),
            shared: field("RssShmem"),
        }
    }
}

/// Shares of mapped shared memory that no tmpfs of the cage accounts for.
#[derive(Debug, Default, PartialEq, Eq)]
struct SharedMappings {
    /// Anonymous shared mappings and System V segments.
    without_file: u64,
    /// Memfds by inode.
    memfds: BTreeMap<u64, u64>,
}

impl SharedMappings {
    /// Segments that are listed are counted there already.
    fn parse(smaps: &str, segments_listed: bool) -> SharedMappings {
        enum Kind {
            Other,
            WithoutFile,
            Memfd(u64),
        }
        let mut found = SharedMappings::default();
        let mut kind = Kind::Other;
        for line in smaps.lines() {
            if let Some((inode, path)) = mapping(line) {
                let segment = path.starts_with("/SYSV") && !segments_listed;
                kind = if path.starts_with("/dev/zero (deleted)") || segment {
                    Kind::WithoutFile
                } else if path.starts_with("/memfd:") {
                    Kind::Memfd(inode)
                } else {
                    Kind::Other
                };
                continue;
            }
            let share = kilobytes(line, "Pss").or_else(|| kilobytes(line, "SwapPss"));
            match (&kind, share) {
                (Kind::WithoutFile, Some(bytes)) => found.without_file += bytes,
                (Kind::Memfd(inode), Some(bytes)) => {
                    *found.memfds.entry(*inode).or_default() += bytes
                }
                _ => {}
            }
        }
        found
    }
}

/// Inode and path of a line that begins a mapping: `from-to rights offset device inode path`.
fn mapping(line: &str) -> Option<(u64, &str)> {
    let first = line.split(' ').next()?;
    let (from, to) = first.split_once('-')?;
    let is_address =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_address(from) || !is_address(to) {
        return None;
    }
    let mut rest = line;
    for _ in 0..4 {
        rest = rest.trim_start().split_once(' ')?.1;
    }
    let rest = rest.trim_start();
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((inode.parse().ok()?, path.trim_start()))
}

#[derive(Debug)]
struct HostSources {
    meminfo: OwnedFd,
    tmpfs: Vec<OwnedFd>,
    segments: Option<OwnedFd>,
    sockets: Option<OwnedFd>,
}

impl MemorySources for HostSources {
    fn host_shared(&self) -> io::Result<u64> {
        rustix::fs::seek(&self.meminfo, rustix::fs::SeekFrom::Start(0))?;
        let text = read_all(&self.meminfo)?;
        host_shared(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn tmpfs(&self) -> u64 {
        self.tmpfs.iter().map(used_of).sum()
    }

    fn segments(&self) -> Option<u64> {
        listed_segments(self.segments.as_ref()?)
    }

    fn sockets(&self) -> io::Result<u64> {
        listed_sockets(self.sockets.as_ref())
    }
}

/// Resident and swapped bytes of all segments: the last two columns of the list.
fn segment_bytes(list: &str) -> u64 {
    let of_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace().rev();
        let swap: u64 = fields.next()?.parse().ok()?;
        let resident: u64 = fields.next()?.parse().ok()?;
        Some(resident.saturating_add(swap))
    };
    list.lines().filter_map(of_line).sum()
}

fn host_shared(meminfo: &str) -> Option<u64> {
    let field = |name| kilobytes(meminfo, name);
    let swapped = field("SwapTotal")?.saturating_sub(field("SwapFree")?);
    Some(field("Shmem")?.saturating_add(swapped))
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
