//! The resolved policy: every value decided, and each knows where it came from.
//!
//! Made by `resolve` from policy files, profiles and flags; read by `plan`. Nothing here
//! looks at the host: shares of memory are still shares, paths may not exist.

use crate::Origin;
use ironcage_model::Layer;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

impl<T> Sourced<T> {
    /// Joins a value and its origin.
    pub fn new(value: T, origin: Origin) -> Self {
        Sourced { value, origin }
    }
}

/// How the workspace appears in the cage.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceMode {
    /// The real files, writable; protected ones read-only.
    Direct,
    /// The real files, read-only.
    ReadOnly,
    /// An empty directory of its own, gone at the end; no file of the host.
    Scratch,
}

/// An amount of something the host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    /// This many bytes.
    Bytes(u64),
    /// This share of what the host has, in percent.
    Percent(u8),
    /// The smaller of the two: an untrusted file narrowed one form with the other.
    Least {
        /// This many bytes.
        bytes: u64,
        /// This share, in percent.
        percent: u8,
    },
}

/// Processor time in thousandths of one processor, or a share of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cpus {
    /// Thousandths of one processor.
    Milli(u32),
    /// This share of the host's processors, in percent.
    Percent(u8),
    /// The smaller of the two: an untrusted file narrowed one form with the other.
    Least {
        /// Thousandths of one processor.
        milli: u32,
        /// This share, in percent.
        percent: u8,
    },
}

/// What one variable of the environment is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EnvRule {
    /// Set to this value.
    Set {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// Taken over from the caller's environment, if it is there.
    Pass {
        /// The variable.
        name: String,
    },
}

/// Bounds of a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Memory, tmpfs and memfd included.
    pub memory: Sourced<Amount>,
    /// Processor time.
    pub cpus: Sourced<Cpus>,
    /// Processes and threads.
    pub pids: Sourced<u32>,
    /// Bytes in ephemeral storage, and bytes added to writable directories.
    pub disk: Sourced<Amount>,
    /// Files in ephemeral storage, and files added to writable directories.
    pub inodes: Sourced<u64>,
    /// Open descriptors for each process.
    pub files: Sourced<u64>,
    /// Wall-clock time; `None` is no bound.
    pub time: Sourced<Option<Duration>>,
    /// Time without output, input or processor use; `None` is no bound.
    pub idle: Sourced<Option<Duration>>,
}

/// What the operator allows, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The profile at the bottom of the merge.
    pub profile: Sourced<String>,
    /// Layers without which a cage must not start.
    pub require: Vec<Sourced<Layer>>,
    /// Required layers that may be missing all the same, by explicit word.
    pub allow_degraded: Vec<Sourced<Layer>>,
    /// How the workspace appears.
    pub workspace_mode: Sourced<WorkspaceMode>,
    /// Protected paths of the workspace (relative to it) that stay writable.
    pub unprotect: Vec<Sourced<PathBuf>>,
    /// Paths readable beyond the system view. Absolute, or `~/...` already expanded.
    pub read: Vec<Sourced<PathBuf>>,
    /// Paths writable beyond the workspace.
    pub write: Vec<Sourced<PathBuf>>,
    /// Paths that must not be visible even below something that is.
    pub hide: Vec<Sourced<PathBuf>>,
    /// Environment, later rules win.
    pub env: Vec<Sourced<EnvRule>>,
    /// Host name inside.
    pub hostname: Sourced<String>,
    /// Whether the agent is uid 0 of its user namespace.
    pub root_inside: Sourced<bool>,
    /// Capabilities given back inside the namespaces, by their kernel names (`CAP_...`).
    pub capabilities: Vec<Sourced<String>>,
    /// The list of system calls: `standard` or `minimal`.
    pub syscalls: Sourced<String>,
    /// Groups of system calls added to the list, by name.
    pub syscall_groups: Vec<Sourced<String>>,
    /// Bounds.
    pub limits: Limits,
}
