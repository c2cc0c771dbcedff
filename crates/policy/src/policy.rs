//! The resolved policy: every value is set, and has its origin.
//!
//! `resolve` makes it from policy files, profiles and flags; `plan` reads it. It does not depend
//! on the host: shares of memory are still shares, and paths may not exist.

use crate::Origin;
use ironcage_model::{Isolation, Layer};
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sourced<T> {
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
    /// Copy-on-write, and the change is applied when the command ends successfully.
    Apply,
    /// Copy-on-write: the change is kept aside until the user applies it.
    Cow,
    /// Copy-on-write, and read-only where no lease lets it be written.
    Leased,
    /// The real files, read-only.
    ReadOnly,
    /// An empty directory of its own, gone at the end; no file of the host.
    Scratch,
}

impl WorkspaceMode {
    /// Every mode, the widest first.
    pub const ALL: [WorkspaceMode; 6] = [
        WorkspaceMode::Direct,
        WorkspaceMode::Apply,
        WorkspaceMode::Cow,
        WorkspaceMode::Leased,
        WorkspaceMode::ReadOnly,
        WorkspaceMode::Scratch,
    ];

    /// The name in policies and flags.
    pub const fn name(self) -> &'static str {
        match self {
            WorkspaceMode::Direct => "direct",
            WorkspaceMode::Apply => "apply",
            WorkspaceMode::Cow => "cow",
            WorkspaceMode::Leased => "leased",
            WorkspaceMode::ReadOnly => "read-only",
            WorkspaceMode::Scratch => "scratch",
        }
    }

    /// How much of the host it opens; larger is wider.
    pub(crate) const fn width(self) -> u8 {
        match self {
            WorkspaceMode::Scratch => 0,
            WorkspaceMode::ReadOnly => 1,
            WorkspaceMode::Leased => 2,
            WorkspaceMode::Cow => 3,
            WorkspaceMode::Apply => 4,
            WorkspaceMode::Direct => 5,
        }
    }

    /// Whether the agent can change the workspace, or its own copy of it, without a lease.
    pub const fn is_writable(self) -> bool {
        matches!(
            self,
            WorkspaceMode::Direct | WorkspaceMode::Apply | WorkspaceMode::Cow
        )
    }

    /// Whether what the agent changes is kept aside first.
    pub const fn is_copy_on_write(self) -> bool {
        matches!(
            self,
            WorkspaceMode::Apply | WorkspaceMode::Cow | WorkspaceMode::Leased
        )
    }
}

/// What is done against what agents learn of each other by sharing a processor.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SideChannels {
    /// Nothing.
    Off,
    /// Processor cores that no other such cage of the user has.
    Cores,
    /// Also core scheduling and the kernel's speculation controls.
    Hardened,
}

impl SideChannels {
    /// Every value, the weakest first.
    pub const ALL: [SideChannels; 3] = [
        SideChannels::Off,
        SideChannels::Cores,
        SideChannels::Hardened,
    ];

    /// The name in policies and flags.
    pub const fn name(self) -> &'static str {
        match self {
            SideChannels::Off => "off",
            SideChannels::Cores => "cores",
            SideChannels::Hardened => "hardened",
        }
    }
}

impl std::fmt::Display for SideChannels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown side-channel mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown side-channel mode `{}`; expected off, cores or hardened", .0.escape_debug())]
pub struct InvalidSideChannels(pub String);

impl FromStr for SideChannels {
    type Err = InvalidSideChannels;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = SideChannels::ALL.into_iter();
        all.find(|value| value.name() == text)
            .ok_or_else(|| InvalidSideChannels(text.to_owned()))
    }
}

/// Text that is not a workspace mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown workspace mode `{}`; expected cow, apply, leased, direct, read-only or scratch", .0.escape_debug())]
pub struct InvalidMode(pub String);

impl FromStr for WorkspaceMode {
    type Err = InvalidMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        WorkspaceMode::ALL
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| InvalidMode(text.to_owned()))
    }
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
        value: String,
    },
    /// Taken over from the caller's environment, if it is there.
    Pass {
        /// The variable.
        name: String,
    },
}

impl EnvRule {
    /// The variable that it is about.
    pub fn name(&self) -> &str {
        match self {
            EnvRule::Set { name, .. } | EnvRule::Pass { name } => name,
        }
    }
}

/// Text that is neither `NAME` nor `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse `{}`; expected NAME or NAME=VALUE", .0.escape_debug())]
pub struct InvalidEnvRule(pub String);

impl FromStr for EnvRule {
    type Err = InvalidEnvRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if name.is_empty() || text.contains('\0') {
            return Err(InvalidEnvRule(text.to_owned()));
        }
        let name = name.to_owned();
        Ok(match value {
            Some(value) => EnvRule::Set {
                name,
                value: value.to_owned(),
            },
            None => EnvRule::Pass { name },
        })
    }
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
    /// Wall-clock time; `None` is unlimited.
    pub time: Sourced<Option<Duration>>,
    /// Time without output, input or CPU use; `None` is unlimited.
    pub idle: Sourced<Option<Duration>>,
    /// WebAssembly instructions of each command; `None` is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<Sourced<u64>>,
}

/// What the operator allows, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The profile at the bottom of the merge.
    pub profile: Sourced<String>,
    /// How the cage is made.
    pub isolation: Sourced<Isolation>,
    /// Layers without which a cage must not start.
    pub require: Vec<Sourced<Layer>>,
    /// Required layers that may be missing all the same, by explicit word.
    pub allow_degraded: Vec<Sourced<Layer>>,
    /// How the workspace appears.
    pub workspace_mode: Sourced<WorkspaceMode>,
    /// Whether what is changed copy-on-write is in memory while the cage runs.
    pub in_memory: Sourced<bool>,
    /// Protected paths of the workspace (relative to it) that stay writable.
    pub unprotect: Vec<Sourced<PathBuf>>,
    /// Paths readable beyond the system view. Absolute, or `~/...` already expanded.
    pub read: Vec<Sourced<PathBuf>>,
    /// Paths writable beyond the workspace: copy-on-write, unless the workspace is direct.
    pub write: Vec<Sourced<PathBuf>>,
    /// Paths that are written as they are, in every mode of the workspace.
    pub write_direct: Vec<Sourced<PathBuf>>,
    /// Paths that must not be visible even below something that is.
    pub hide: Vec<Sourced<PathBuf>>,
    /// Patterns of such paths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hide_matching: Vec<Sourced<crate::HidePattern>>,
    /// Whether files of the workspace with sensitive names are hidden.
    pub hide_sensitive: Sourced<bool>,
    /// Whether toolchains that the caller's PATH names are readable.
    pub toolchains: Sourced<bool>,
    /// Whether the host's caches can be read through those that are kept.
    pub host_caches: Sourced<bool>,
    /// Most that one workspace keeps of the home directory.
    pub state_limit: Sourced<crate::Size>,
    /// Most that one kept path takes.
    pub state_limit_per_path: Sourced<crate::Size>,
    /// Paths relative to the home directory that are kept between runs.
    pub keep: Vec<Sourced<PathBuf>>,
    /// Caches that are kept between runs, by name.
    pub caches: Vec<Sourced<String>>,
    /// Environment, later rules win.
    pub env: Vec<Sourced<EnvRule>>,
    /// Host name inside.
    pub hostname: Sourced<String>,
    /// Whether the agent is uid 0 of its user namespace.
    pub root_inside: Sourced<bool>,
    /// Whether commands are root of a guest's own kernel.
    pub guest_root: Sourced<bool>,
    /// Whether git inside knows the user's name and address.
    pub git_identity: Sourced<bool>,
    /// What is done against side channels.
    pub side_channels: Sourced<SideChannels>,
    /// Capabilities given back inside the namespaces, by their kernel names (`CAP_...`).
    pub capabilities: Vec<Sourced<String>>,
    /// The list of system calls: `standard` or `minimal`.
    pub syscalls: Sourced<String>,
    /// Groups of system calls added to the list, by name.
    pub syscall_groups: Vec<Sourced<String>>,
    /// What of the network can be reached.
    pub network: crate::Network,
    /// Keys outside that the cage may use.
    pub keys: crate::SigningKeys,
    /// What leases may give beyond all this.
    pub ceiling: crate::Ceiling,
    /// How people are asked about it.
    pub questions: crate::Questions,
    /// A command that judges what the ceiling would grant at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<Sourced<Vec<String>>>,
    /// What is private and what untrusted.
    pub taint: crate::TaintRules,
    /// Which tools may be called, and the MCP servers behind the gateway.
    #[serde(skip_serializing_if = "ironcage_tools::ToolPolicy::is_empty")]
    pub tools: ironcage_tools::ToolPolicy,
    /// Bounds.
    pub limits: Limits,
}

impl Policy {
    /// Whether the cage has an egress proxy: some host is allowed from the start, or by a lease.
    pub fn has_proxy(&self) -> bool {
        let mut others = self.ceiling.others.iter();
        let leased = others.any(|part| part.value.mark.gives() && part.value.needs_proxy());
        self.network.is_given()
            || leased
                && matches!(
                    self.isolation.value,
                    Isolation::Namespace | Isolation::Wasm | Isolation::Microvm
                )
    }

    /// Every bundle whose hosts have to be known: of the base, and of the ceiling.
    pub fn all_bundles(&self) -> Vec<Sourced<String>> {
        let mut all = self.network.bundles.clone();
        for part in &self.ceiling.others {
            if let crate::CeilingWhat::Bundle(name) = &part.value.what
                && all.iter().all(|known| known.value != *name)
            {
                all.push(Sourced::new(name.clone(), part.origin.clone()));
            }
        }
        all
    }
}
