//! Limits by cgroup: one group for each cage, in version 2 or in the hierarchies of version 1.
//!
//! Only groups that this process made are written, read or removed; groups that exist are left
//! as they are. A process enters in one of two ways, both of which spare the migration lock of
//! the kernel (seen here: 11 ms for one move by pid, 0.1 ms by either of these):
//!
//! - version 2: the child is cloned into the group (`clone_fd`, CLONE_INTO_CGROUP);
//! - version 1: the child itself, while it has one thread, writes `ENTRY` to each of `entries`.
//!
//! A cgroup namespace has the group of the process that makes it as its root: a child that enters
//! by `entries` makes its namespace after that; one that is cloned into the group may be cloned
//! into the namespace at once.

mod freeze;
mod group;
mod init;
mod sweep;

pub use freeze::Frozen;
pub use sweep::sweep;

use group::Group;
use init::InitGroup;
use ironcage_host::{CgroupHost, NoCgroup};
use ironcage_model::{CageId, LimitKind, bytes_as_written};
use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What a process writes to a descriptor of `Cgroup::entries` to enter the group.
pub const ENTRY: &[u8] = b"0";
/// The period over which a share of processor time is counted, in microseconds.
const CPU_PERIOD: u64 = 100_000;
/// What the group of an init is called below its cage's.
const INIT: &str = "init";
const PREFIX: &str = "ironcage-";
/// What the group of a scope that has its own limits is called beside its cage's.
const SCOPE: &str = ".scope";

/// Bounds to be held by a cgroup; `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory, page cache and tmpfs included; swap is not given at all.
    pub memory: Option<u64>,
    /// Processor time in thousandths of one processor.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

impl CgroupLimits {
    /// These limits without those whose controller the host does not give. The caller reports
    /// the difference: it is what `HostCaps` calls partial.
    pub fn supported_by(self, host: &CgroupHost) -> CgroupLimits {
        CgroupLimits {
            memory: self.memory.filter(|_| has_controller(host, "memory")),
            cpu_milli: self.cpu_milli.filter(|_| has_controller(host, "cpu")),
            pids: self.pids.filter(|_| has_controller(host, "pids")),
        }
    }

    /// Whether there is nothing to hold.
    pub fn is_empty(&self) -> bool {
        *self == CgroupLimits::default()
    }

    fn wanted(&self) -> impl Iterator<Item = &'static str> {
        let memory = self.memory.map(|_| "memory");
        let cpu = self.cpu_milli.map(|_| "cpu");
        let pids = self.pids.map(|_| "pids");
        [memory, cpu, pids].into_iter().flatten()
    }
}

/// Whether a host gives this controller to cages.
pub fn has_controller(host: &CgroupHost, controller: &str) -> bool {
    match host {
        CgroupHost::V2 { controllers, .. } => controllers.iter().any(|name| name == controller),
        CgroupHost::V1(v1) => v1.controllers.contains_key(controller),
        CgroupHost::None { .. } => false,
    }
}

/// A cgroup could not be made, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The host gives no cgroups.
    #[error("cannot create a cgroup: {}", why.with_remedy())]
    Unavailable { why: NoCgroup },
    /// A limit was asked for whose controller is missing.
    #[error("the cgroup controller `{controller}` is not available to this process")]
    MissingController { controller: &'static str },
    /// A group could not be made.
    #[error("cannot create the cgroup {}", path.display())]
    Make { path: PathBuf, source: io::Error },
    /// Another scope of the same cage has its own limits.
    #[error(
        "another command of this cage has its own limits ({}); wait until it has ended",
        path.display()
    )]
    Taken { path: PathBuf },
    /// A value was refused.
    #[error("cannot write `{value}` to {}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        source: io::Error,
    },
    /// A value could not be read.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A group could not be removed in the time allowed.
    #[error("cannot remove the cgroup {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    /// The group did not freeze, or some process did not die, in the time allowed.
    #[error("the cgroup {} did not become {wanted} in time", path.display())]
    TimedOut {
        path: PathBuf,
        /// The state waited for.
        wanted: &'static str,
    },
    /// The hierarchies of this host have no freezer.
    #[error("this host has no cgroup freezer; stop the cage's processes through its PID 1")]
    NoFreezer,
}

/// A limit that the group's processes ran into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupHit {
    pub limit: LimitKind,
    /// Its value as a person writes it.
    pub value: String,
    /// How often: processes killed for memory, forks refused for pids.
    pub count: u64,
}

/// The most that a group used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// What the group used; `None` where the host does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupStats {
    /// Bytes of memory now.
    pub memory: Option<u64>,
    /// The most bytes of memory at any time.
    pub memory_peak: Option<u64>,
    /// Processor time in microseconds.
    pub cpu_microseconds: Option<u64>,
    /// Processes and threads now.
    pub pids: Option<u64>,
}

/// The group of one cage. Removed when dropped; `remove` says whether that worked.
#[derive(Debug)]
pub struct Cgroup {
    tree: Tree,
    limits: CgroupLimits,
    swap_bounded: bool,
    /// The group of an init system, below this one or in a hierarchy of its own.
    init: Option<InitGroup>,
    /// The most processes that it had when [`Cgroup::peaks`] was asked last.
    pids_peak: Cell<Option<u64>>,
}

#[derive(Debug)]
enum Tree {
    V2(Group),
    V1 {
        /// By controller, `memory` first where it is there.
        groups: Vec<(&'static str, Group)>,
        /// Where a freezer group can be made when it is needed, and its name.
        freezer: Option<PathBuf>,
        name: String,
    },
}

impl Cgroup {
    /// Makes the group of a cage and writes its limits. Every limit given must have its controller.
    pub fn create(
        host: &CgroupHost,
        id: &CageId,
        limits: &CgroupLimits,
    ) -> Result<Cgroup, CgroupError> {
        Self::create_named(host, format!("{PREFIX}{id}"), limits)
    }

    /// Makes the group of a scope of a cage, beside the cage's: a group with processes in it has
    /// no room for others below it in version 2. There is one at a time, so that what a cage has
    /// in all is what its own group holds, and once what its ceiling gives.
    pub fn create_for_scope(
        host: &CgroupHost,
        id: &CageId,
        limits: &CgroupLimits,
    ) -> Result<Cgroup, CgroupError> {
        // The one of a scope whose maker was killed is not in the way.
        sweep(host);
        let made = Self::create_named(host, format!("{PREFIX}{id}{SCOPE}"), limits);
        made.map_err(|error| match error {
            CgroupError::Make { path, source } if source.kind() == io::ErrorKind::AlreadyExists => {
                CgroupError::Taken { path }
            }
            other => other,
        })
    }

    fn create_named(
        host: &CgroupHost,
        name: String,
        limits: &CgroupLimits,
    ) -> Result<Cgroup, CgroupError> {
        if let Some(controller) = limits.wanted().find(|name| !has_controller(host, name)) {
            return Err(match host {
                CgroupHost::None { why } => CgroupError::Unavailable { why: why.clone() },
                _ => CgroupError::MissingController { controller },
            });
        }
        let mut cgroup = Cgroup {
            tree: match host {
                CgroupHost::None { why } => {
                    return Err(CgroupError::Unavailable { why: why.clone() });
                }
                CgroupHost::V2 { parent, .. } => {
                    Tree::V2(Group::make(parent, &name, "cgroup.procs")?)
                }
                CgroupHost::V1(v1) => {
                    let mut groups = Vec::with_capacity(3);
                    for controller in limits.wanted() {
                        if let Some(parent) = v1.controllers.get(controller) {
                            groups.push((controller, Group::make(parent, &name, "tasks")?));
                        }
                    }
                    let freezer = v1.controllers.get("freezer").cloned();
                    Tree::V1 {
                        groups,
                        freezer,
                        name,
                    }
                }
            },
            limits: *limits,
            init: None,
            swap_bounded: true,
            pids_peak: Cell::new(None),
        };
        cgroup.swap_bounded = match (&cgroup.tree, host) {
            (Tree::V2(group), CgroupHost::V2 { parent, .. }) => write_v2(group, parent, limits)?,
            (Tree::V1 { groups, .. }, _) => write_v1(groups, limits)?,
            _ => true,
        };
        Ok(cgroup)
    }

    /// Makes the group of a cage that boots a system, and one for its init in the version 2
    /// hierarchy: below the cage's, or below `place` where the limits are in other hierarchies. The
    /// init's belongs to `owner`, where that is not the caller, and groups can be made in it.
    pub fn create_for_init(
        host: &CgroupHost,
        id: &CageId,
        limits: &CgroupLimits,
        (place, owner): (Option<&Path>, Option<(u32, u32)>),
    ) -> Result<Cgroup, CgroupError> {
        if let Some(place) = place {
            // Those whose maker was killed.
            sweep::sweep_below(place);
        }
        let mut cgroup = match (host, limits.is_empty()) {
            (CgroupHost::None { .. }, true) => Cgroup {
                tree: Tree::V1 {
                    groups: Vec::new(),
                    freezer: None,
                    name: format!("{PREFIX}{id}"),
                },
                limits: *limits,
                init: None,
                swap_bounded: true,
                pids_peak: Cell::new(None),
            },
            _ => Self::create(host, id, limits)?,
        };
        let made = match (&cgroup.tree, place) {
            (Tree::V2(group), _) => InitGroup::make(group.path(), INIT, owner),
            (Tree::V1 { name, .. }, Some(place)) => InitGroup::make(place, name, owner),
            (Tree::V1 { .. }, None) => {
                let why = ironcage_host::NoCgroup::NoVersion2;
                return Err(CgroupError::Unavailable { why });
            }
        };
        cgroup.init = Some(made?);
        Ok(cgroup)
    }

    /// The file by which the first process of a booted cage enters the group of its init.
    pub fn take_init_entry(&mut self) -> Option<OwnedFd> {
        self.init.as_mut().and_then(InitGroup::take_entry)
    }

    /// The descriptor for CLONE_INTO_CGROUP; `None` in version 1, which has no such thing.
    pub fn clone_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.tree {
            Tree::V2(group) => Some(group.directory()),
            Tree::V1 { .. } => None,
        }
    }

    /// Descriptors to each of which the child writes `ENTRY`, once, while it has one thread.
    ///
    /// In version 1 they are `tasks` files: the kernel moves the writing thread without the lock
    /// over all forks and exits, because a thread that is writing neither exits nor execs.
    pub fn entries(&self) -> io::Result<Vec<OwnedFd>> {
        let entries = self.groups().filter_map(Group::entry);
        entries.map(OwnedFd::try_clone).collect()
    }

    /// The same, out of the child's own copy of this.
    pub fn take_entries(&mut self) -> Vec<OwnedFd> {
        match &mut self.tree {
            Tree::V2(group) => group.take_entry().into_iter().collect(),
            Tree::V1 { groups, .. } => {
                let groups = groups.iter_mut();
                groups.filter_map(|(_, group)| group.take_entry()).collect()
            }
        }
    }

    /// Moves a process in by its id. Takes milliseconds on an idle host: the start of a cage uses
    /// `clone_fd` or `entries`.
    pub fn enter(&self, pid: u32) -> Result<(), CgroupError> {
        for group in self.groups() {
            group.write("cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// Whether swap is bounded too: without swap accounting in the kernel it is not.
    pub fn bounds_swap(&self) -> bool {
        self.swap_bounded
    }

    /// The directories of the group.
    pub fn paths(&self) -> Vec<&Path> {
        self.groups().map(Group::path).collect()
    }

    /// The limits that were hit so far.
    pub fn hits(&self) -> Result<Vec<CgroupHit>, CgroupError> {
        let mut hits = Vec::new();
        if let (Some(limit), Some(group)) = (self.limits.memory, self.group("memory")) {
            let file = match self.tree {
                Tree::V2(_) => "memory.events",
                Tree::V1 { .. } => "memory.oom_control",
            };
            let count = field(&group.read(file)?, "oom_kill").unwrap_or(0);
            if count > 0 {
                let value = bytes_as_written(limit);
                hits.push(CgroupHit {
                    limit: LimitKind::Memory,
                    value,
                    count,
                });
            }
        }
        // A group that never was as large as its limit has not met it.
        let below = |limit: u32| {
            let peak = self.pids_peak.get();
            peak.is_some_and(|peak| peak < u64::from(limit))
        };
        if let (Some(limit), Some(group)) = (self.limits.pids, self.group("pids"))
            && !below(limit)
        {
            let count = field(&group.read("pids.events")?, "max").unwrap_or(0);
            if count > 0 {
                hits.push(CgroupHit {
                    limit: LimitKind::Pids,
                    value: limit.to_string(),
                    count,
                });
            }
        }
        Ok(hits)
    }

    /// The most that the group ever used, as far as the kernel counts it.
    pub fn peaks(&self) -> Peaks {
        let number = |controller: &str, file: &str| {
            let text = self.group(controller)?.read(file).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let memory = match &self.tree {
            Tree::V2(_) => "memory.peak",
            Tree::V1 { .. } => "memory.max_usage_in_bytes",
        };
        let pids = number("pids", "pids.peak");
        self.pids_peak.set(pids);
        Peaks {
            memory: number("memory", memory),
            pids,
        }
    }

    /// What the group uses and used.
    pub fn stats(&self) -> CgroupStats {
        let number = |controller: &str, file: &str| {
            let text = self.group(controller)?.read(file).ok()?;
            text.trim().parse::<u64>().ok()
        };
        match &self.tree {
            Tree::V2(group) => CgroupStats {
                memory: number("memory", "memory.current"),
                memory_peak: number("memory", "memory.peak"),
                cpu_microseconds: group
                    .read("cpu.stat")
                    .ok()
                    .and_then(|text| field(&text, "usage_usec")),
                pids: number("pids", "pids.current"),
            },
            Tree::V1 { .. } => CgroupStats {
                memory: number("memory", "memory.usage_in_bytes"),
                memory_peak: number("memory", "memory.max_usage_in_bytes"),
                // Only where cpuacct is mounted together with cpu, as most hosts have it.
                cpu_microseconds: number("cpu", "cpuacct.usage")
                    .map(|nanoseconds| nanoseconds / 1000),
                pids: number("pids", "pids.current"),
            },
        }
    }

    /// Sets a limit of a group that is in use: bytes of memory, thousandths of a processor, or
    /// processes. Less memory than is used is taken back by the kernel, which may kill for it.
    pub fn set(&self, limit: LimitKind, value: u64) -> Result<(), CgroupError> {
        let controller = match limit {
            LimitKind::Memory => "memory",
            LimitKind::Cpus => "cpu",
            _ => "pids",
        };
        let group = self
            .group(controller)
            .ok_or(CgroupError::MissingController { controller })?;
        let text = value.to_string();
        match (&self.tree, limit) {
            (Tree::V2(_), LimitKind::Memory) => group.write("memory.max", &text),
            (Tree::V1 { .. }, LimitKind::Memory) => {
                // Memory and swap together may never be less than memory: the one that has to
                // move out of the way goes first.
                if group.write("memory.limit_in_bytes", &text).is_ok() {
                    group.write_if_there("memory.memsw.limit_in_bytes", &text)?;
                    return Ok(());
                }
                group.write_if_there("memory.memsw.limit_in_bytes", &text)?;
                group.write("memory.limit_in_bytes", &text)
            }
            (tree, LimitKind::Cpus) => {
                let quota = quota(u32::try_from(value).unwrap_or(u32::MAX));
                match tree {
                    Tree::V2(_) => group.write("cpu.max", &format!("{quota} {CPU_PERIOD}")),
                    Tree::V1 { .. } => group.write("cpu.cfs_quota_us", &quota.to_string()),
                }
            }
            _ => group.write("pids.max", &text),
        }
    }

    /// Whether the host counts and bounds this here.
    pub fn bounds(&self, limit: LimitKind) -> bool {
        match limit {
            LimitKind::Memory => self.limits.memory.is_some(),
            LimitKind::Cpus => self.limits.cpu_milli.is_some(),
            LimitKind::Pids => self.limits.pids.is_some(),
            _ => false,
        }
    }

    /// Removes the group, waiting some milliseconds for processes that are still going away.
    /// Descriptors of a group that is gone stay open: the caller is about to end.
    pub fn remove(mut self) -> Result<(), CgroupError> {
        let removed = self.remove_groups();
        std::mem::forget(self);
        removed
    }

    /// As [`remove`](Self::remove), for a caller that goes on: closes the descriptors, too.
    pub fn remove_and_close(mut self) -> Result<(), CgroupError> {
        self.remove_groups()
    }

    fn remove_groups(&mut self) -> Result<(), CgroupError> {
        let mut result = match &mut self.init {
            Some(init) => init.remove(),
            None => Ok(()),
        };
        let groups: Vec<&mut Group> = match &mut self.tree {
            Tree::V2(group) => vec![group],
            Tree::V1 { groups, .. } => groups.iter_mut().map(|(_, group)| group).collect(),
        };
        for group in groups {
            let removed = group.remove();
            if result.is_ok() {
                result = removed;
            }
        }
        result
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        let (unified, by_controller) = match &self.tree {
            Tree::V2(group) => (Some(group), None),
            Tree::V1 { groups, .. } => (None, Some(groups.iter().map(|(_, group)| group))),
        };
        unified
            .into_iter()
            .chain(by_controller.into_iter().flatten())
    }

    /// The group in which a controller's files are.
    fn group(&self, controller: &str) -> Option<&Group> {
        match &self.tree {
            Tree::V2(group) => Some(group),
            Tree::V1 { groups, .. } => groups
                .iter()
                .find(|(name, _)| *name == controller)
                .map(|(_, group)| group),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Whoever wants to know calls `remove`; what stays behind is found by `sweep`.
        let _ = self.remove_groups();
    }
}

/// Writes the limits; returns whether swap is bounded.
fn write_v2(group: &Group, parent: &Path, limits: &CgroupLimits) -> Result<bool, CgroupError> {
    // Missing files mean that the parent has not enabled the controllers for its children yet.
    let first = limits.wanted().next();
    if let Some(controller) = first
        && !group.has(&format!("{controller}.max"))
    {
        group::enable_controllers(parent, limits.wanted())?;
    }
    let mut swap_bounded = true;
    if let Some(bytes) = limits.memory {
        group.write("memory.max", &bytes.to_string())?;
        swap_bounded = group.write_if_there("memory.swap.max", "0")?;
        // One process less leaves a cage in a state nobody asked for: all of it goes.
        group.write("memory.oom.group", "1")?;
    }
    if let Some(pids) = limits.pids {
        group.write("pids.max", &pids.to_string())?;
    }
    if let Some(milli) = limits.cpu_milli {
        group.write("cpu.max", &format!("{} {CPU_PERIOD}", quota(milli)))?;
    }
    Ok(swap_bounded)
}

/// Writes the limits; returns whether swap is bounded.
fn write_v1(groups: &[(&'static str, Group)], limits: &CgroupLimits) -> Result<bool, CgroupError> {
    let mut swap_bounded = true;
    for (controller, group) in groups {
        match *controller {
            "memory" => {
                if let Some(bytes) = limits.memory {
                    let bytes = bytes.to_string();
                    // In this order: memory and swap together may not be less than memory.
                    group.write("memory.limit_in_bytes", &bytes)?;
                    swap_bounded = group.write_if_there("memory.memsw.limit_in_bytes", &bytes)?;
                }
            }
            "pids" => {
                if let Some(pids) = limits.pids {
                    group.write("pids.max", &pids.to_string())?;
                }
            }
            _ => {
                if let Some(milli) = limits.cpu_milli {
                    group.write("cpu.cfs_quota_us", &quota(milli).to_string())?;
                }
            }
        }
    }
    Ok(swap_bounded)
}

/// Microseconds of each period; the kernel takes no less than a thousand.
fn quota(milli: u32) -> u64 {
    (u64::from(milli) * CPU_PERIOD / 1000).max(1000)
}

/// The number after a name in a file of `name number` lines.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests;
