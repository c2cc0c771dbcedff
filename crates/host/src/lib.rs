//! Finds out what this host can enforce.
//!
//! `HostCaps` is gathered once before planning. `HostCaps::quick` costs a few system calls
//! and is what `run` uses; the deep examination behind `ironcage doctor` tries things out.
//! Nothing here changes the host.
#![forbid(unsafe_code)]

mod assess;
mod caps;
mod cgroup;
pub mod doctor;
mod error;
mod files;
mod listing;
mod no_cgroup;
mod quick;
pub mod setup;
mod side_channels;

pub use assess::{WATCHED_DISK, WATCHED_INODES};
pub use caps::{CgroupHost, CgroupV1, HostCaps, Inotify, Kernel, Privilege};
pub use error::HostError;
pub use files::{HostFiles, Node, NodeType, SystemFiles};
pub use no_cgroup::NoCgroup;
pub use quick::LEAST_KERNEL;
pub use side_channels::{Mitigation, SideChannelHost};
