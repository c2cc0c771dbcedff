//! The facts about a host that a plan depends on.

use crate::{NoCgroup, SideChannelHost};
use ironcage_model::{Enforcement, Layer};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// A kernel version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Kernel {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// With which power Ironcage itself runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Privilege {
    /// Root of the initial user namespace, or of one that maps enough ids and has the needed
    /// capabilities: a range of ids of its own for each cage, idmapped mounts.
    Root,
    /// Anybody else: the user's own id is the agent's.
    User,
}

/// Where version 1 controllers are mounted and in which group this process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CgroupV1 {
    /// Directory for each usable (writable) controller: `memory`, `pids`, `cpu`, and `freezer`
    /// where it is. The directory is that of the process's own group.
    pub controllers: BTreeMap<String, PathBuf>,
}

/// How limits by cgroup can be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupHost {
    /// A version 2 directory below which groups can be made, with the controllers that are
    /// enabled for its children.
    V2 {
        parent: PathBuf,
        /// Controllers usable in children.
        controllers: Vec<String>,
    },
    /// Version 1 hierarchies.
    V1(CgroupV1),
    /// Neither.
    None { why: NoCgroup },
}

/// How much of inotify a user may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Inotify {
    pub instances: u64,
    pub watches: u64,
}

impl Default for Inotify {
    /// What kernels have had at the least.
    fn default() -> Self {
        Inotify {
            instances: 128,
            watches: 8192,
        }
    }
}

/// What this host can enforce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostCaps {
    /// Kernel version.
    pub kernel: Kernel,
    /// Power of this process.
    pub privilege: Privilege,
    /// Effective user id outside.
    pub uid: u32,
    /// Effective group id outside.
    pub gid: u32,
    /// Landlock's ABI version; zero where the kernel has none.
    pub landlock_abi: u32,
    /// Whether refused system calls can be reported by user notification.
    pub seccomp_notify: bool,
    /// Memory of the host in bytes.
    pub memory: u64,
    /// Bytes of the file system on which changes are kept, taken or free.
    pub disk: u64,
    /// Processors usable.
    pub cpus: u32,
    /// Limits by cgroup.
    pub cgroup: CgroupHost,
    /// Whether the host has swap and the kernel does not count it by cgroup: a limit on memory
    /// then moves pages out instead of refusing them.
    pub swap_uncounted: bool,
    /// What all of the caller's processes may have of inotify together, cages included.
    pub inotify: Inotify,
    /// What there is against side channels; looked at only where the policy asks for it.
    pub side_channels: Option<SideChannelHost>,
    /// How far each layer can hold here. Every layer has an entry.
    pub layers: BTreeMap<Layer, Enforcement>,
}
