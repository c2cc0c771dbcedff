//! The plan: what will be enforced, in order, with the origin of each item.
//!
//! Absolute, fully resolved, serialisable. Nothing in it means "default", nothing is left
//! to be decided after the fork. Values that exist only when the cage starts are symbols in it,
//! which [`Plan::bind`] replaces.

mod view_op;

pub use view_op::*;

use crate::bytes;
use crate::leases::{Leases, PermissionRequestTerms};
use crate::microvm::Microvm;
use crate::network::Network;
use crate::oci::OciRuntime;
use crate::seccomp::Filter;
use crate::signing::Signing;
use crate::taint::Marking;
use ironcage_host::CgroupHost;
use ironcage_model::{Isolation, Layer, LayerReport};
use ironcage_tools::ToolPolicy;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One item of a plan and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item<T> {
    /// What is to be done.
    #[serde(flatten)]
    pub what: T,
    /// Where that came from, as shown to the user.
    pub origin: String,
}

/// The program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Program and arguments.
    #[serde(serialize_with = "bytes::os_list")]
    pub argv: Vec<OsString>,
    /// Paths to try for the program, in order.
    #[serde(serialize_with = "bytes::path_list")]
    pub candidates: Vec<PathBuf>,
    /// The whole environment.
    pub env: Vec<Item<Variable>>,
    /// Working directory.
    #[serde(serialize_with = "bytes::path")]
    pub cwd: PathBuf,
}

/// One variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name.
    #[serde(serialize_with = "bytes::os")]
    pub name: OsString,
    /// Its value.
    #[serde(serialize_with = "bytes::os")]
    pub value: OsString,
}

/// Who the agent is inside, and who that is outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Ids outside.
    pub map: IdMap,
}

/// How ids inside become ids outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdMap {
    /// The agent's id is the caller's own; there is no other.
    Own {
        /// The caller's user id.
        uid: u32,
        /// The caller's group id.
        gid: u32,
    },
    /// A range of ids that no other cage has, chosen at the start.
    Range {
        /// How many.
        count: u32,
    },
}

/// A place in Ironcage's own directories that is made before the cage starts, where it is
/// not there yet, and outlives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptPlace {
    /// Its path on the host.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// What it is.
    pub kind: NodeKind,
}

/// A path on which Landlock lets writes through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WriteRule {
    /// Path inside.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// What is let through.
    pub rights: WriteRights,
}

/// Rights of a write rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteRights {
    /// Everything in a directory tree.
    Tree,
    /// Writing to existing files and devices.
    Existing,
}

/// A capability given back inside the namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Its kernel name.
    pub name: String,
    /// Its number.
    pub number: u32,
}

/// A per-user counter of the kernel, limited in the cage's user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// File below `/proc/sys/user`.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
}

/// Resources that rlimits bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Core dumps.
    Core,
    /// Private writable memory of each process.
    Data,
    /// Size of each file written.
    FileSize,
    /// Locked memory.
    LockedMemory,
    /// Bytes in message queues.
    MessageQueues,
    /// Nice ceiling.
    Nice,
    /// Open descriptors.
    OpenFiles,
    /// Processes of the agent's id.
    Processes,
    /// Real-time priority.
    RealTimePriority,
    /// Queued signals.
    PendingSignals,
}

/// One rlimit: soft and hard are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rlimit {
    /// Of what.
    pub resource: Resource,
    /// How much.
    pub value: u64,
}

/// Bounds that the supervisor and the cgroup hold, in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Bytes of memory.
    pub memory: Item<Bound>,
    /// Thousandths of a processor.
    pub cpu: Item<Bound>,
    /// Processes and threads.
    pub pids: Item<Bound>,
    /// Bytes of ephemeral storage, and bytes added to writable directories.
    pub disk: Item<Bound>,
    /// Files of ephemeral storage, and files added to writable directories.
    pub inodes: Item<Bound>,
    /// Open descriptors for each process.
    pub files: Item<Bound>,
    /// Wall-clock time.
    pub time: Item<TimeBound>,
    /// Time without sign of life.
    pub idle: Item<TimeBound>,
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// The number.
    pub value: u64,
}

/// A duration, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TimeBound {
    /// How long; `null` is without end.
    pub value: Option<Duration>,
}

/// Stands for the cage's id in paths that are known only when it starts.
pub const CAGE: &str = "CAGE";

/// Stands for the name of a change that is made only when the cage starts.
pub const CHANGE: &str = "CHANGE";

/// How the cage is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IsolationLevel {
    /// The isolation level.
    pub isolation: Isolation,
    /// The program that makes the container, where the isolation level is `oci`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<OciRuntime>,
    /// The virtual machine, where the isolation level is `microvm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microvm: Option<Microvm>,
}

/// A path that may be opened where Landlock is the first lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccessRule {
    /// Its path on the host.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// For what.
    pub rights: AccessRights,
}

/// Rights of an access rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessRights {
    /// Reading and executing everything in a directory.
    ReadTree,
    /// Reading and executing a file.
    ReadFile,
    /// Everything in a directory.
    WriteTree,
    /// Reading and writing a file.
    WriteFile,
    /// Using a device.
    Device,
}

/// Something that the policy asks for and the isolation level does not enforce. It goes with a layer that
/// is off, and so only where the user allowed that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unenforced {
    /// The layer that would enforce it.
    pub layer: Layer,
    /// What it is.
    pub what: String,
}

/// A directory of the cage's own on the host, where there is no ephemeral storage: made at the
/// start, removed at the end. It holds the agent's home and its temporary files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Scratch {
    /// Its path; [`CAGE`] stands for the cage's id.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// Directories in it.
    pub directories: Vec<&'static str>,
    /// Files in it, with what they hold.
    pub files: Vec<(&'static str, String)>,
}

/// An init system as the first process of a PID namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Boot {
    /// The group of the version 2 hierarchy below which the init gets one of its own; `null` is the
    /// cage's group.
    pub group: Option<PathBuf>,
    /// The signal by which it shuts down.
    pub stop_signal: i32,
}

/// Whose command a scope is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScopeOf {
    /// The agent's own shell's, which finds there what its commands before have left.
    Shell,
    /// Somebody's outside, who obeys nothing that the agent left in its home.
    Operator,
}

/// What will be enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// How the cage is made.
    #[serde(rename = "rung")]
    pub isolation_level: Item<IsolationLevel>,
    /// Profile at the bottom of the policy.
    pub profile: String,
    /// The program. A sticky cage may have none.
    pub command: Command,
    /// The init system that the command is; `null` is an ordinary command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<Item<Boot>>,
    /// Whether user 0 inside is root of a system that it can write: it has the capabilities below
    /// again after execve, and loses them when it becomes another user.
    #[serde(skip_serializing_if = "is_false")]
    pub system_root: bool,
    /// Whether the cage outlives its command: it then ends when it is stopped, or by a limit.
    #[serde(skip_serializing_if = "is_false")]
    pub sticky: bool,
    /// Whose scope it is the plan of, if it is one's, made of its cage's.
    #[serde(skip)]
    pub scope: Option<ScopeOf>,
    /// The workspace's path, outside and inside.
    #[serde(serialize_with = "bytes::path")]
    pub workspace: PathBuf,
    /// Directories of the host that are filled from inside: the watchdog looks at these.
    #[serde(serialize_with = "bytes::path_list")]
    pub writable: Vec<PathBuf>,
    /// Places that must be made before the cage starts, for what outlives it.
    pub kept: Vec<Item<KeptPlace>>,
    /// Who the agent is.
    pub identity: Identity,
    /// Host name inside.
    pub hostname: Item<Hostname>,
    /// Whether a time namespace is made.
    pub time_namespace: bool,
    /// The file view.
    pub view: Vec<Item<ViewOp>>,
    /// Capabilities given back; none by default.
    pub capabilities: Vec<Item<Capability>>,
    /// Kernel counters.
    pub counters: Vec<Item<Counter>>,
    /// Rlimits.
    pub rlimits: Vec<Item<Rlimit>>,
    /// Where Landlock lets writes through; empty with `landlock` false.
    pub write_rules: Vec<Item<WriteRule>>,
    /// Whether Landlock is applied.
    pub landlock: bool,
    /// What Landlock lets be opened where it is the first lock; empty elsewhere.
    pub access_rules: Vec<Item<AccessRule>>,
    /// The cage's own directory on the host, where there is no other storage.
    pub scratch: Option<Scratch>,
    /// To how many whole processors the cage is kept, where no cgroup bounds their use;
    /// `null` leaves it to the cgroup, or to all of them.
    pub processors: Option<u32>,
    /// What is done against side channels; `null` is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardening: Option<Item<Hardening>>,
    /// What the egress proxy lets through; `null` is no network and no door.
    pub network: Option<Network>,
    /// What leases may give to the running cage; `null` is nothing, and no lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<Leases>,
    /// Keys outside that the cage may use; `null` is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing: Option<Signing>,
    /// How many child cages may live at once, with theirs.
    #[serde(skip_serializing_if = "is_zero")]
    pub children: u32,
    /// How many channels to and from other cages there may be.
    #[serde(skip_serializing_if = "is_zero")]
    pub channels: u32,
    /// What marks the cage; `null` is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<Marking>,
    /// Which tool calls `exec --intent` carries out; not there where the policy has no rules.
    #[serde(default, skip_serializing_if = "ToolPolicy::is_empty")]
    pub tools: ToolPolicy,
    /// The system call filter.
    pub seccomp: Filter,
    /// Bounds in numbers.
    pub bounds: Bounds,
    /// Where cgroups are made.
    pub cgroup: CgroupHost,
    /// How far each layer holds.
    pub layers: Vec<LayerReport>,
    /// Required layers that are off by explicit word.
    pub degraded: Vec<Layer>,
    /// What the policy asks for and this isolation level does not enforce.
    pub unenforced: Vec<Item<Unenforced>>,
    /// Names in writable trees that would be protected if they were there, looked for when the
    /// cage is gone: what appeared is reported.
    #[serde(serialize_with = "bytes::path_list")]
    pub absent: Vec<PathBuf>,
    /// What the user should know: protections that could not be had.
    pub notes: Vec<String>,
}

impl Plan {
    /// The copy-on-write views whose changes are in memory: the real directory, and the place on
    /// the ephemeral storage.
    pub fn in_memory(&self) -> impl Iterator<Item = (&Path, &'static str)> {
        self.view.iter().filter_map(|item| match &item.what {
            ViewOp::Overlay {
                lower,
                memory: Some(place),
                ..
            } => Some((lower.as_path(), *place)),
            _ => None,
        })
    }

    /// SHA-256 of the instructions of the system call filter as the kernel has them, in
    /// hexadecimal.
    pub fn filter_digest(&self) -> String {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        for step in &self.seccomp.program {
            hash.update(step.bytes());
        }
        hexadecimal(&hash.finalize())
    }

    /// How people are asked, where they may be.
    pub fn request_terms(&self) -> Option<&PermissionRequestTerms> {
        let leases = self.leases.as_ref().map(|leases| &leases.questions);
        let signing = self.signing.as_ref();
        leases.or_else(|| signing.and_then(|signing| signing.confirm.as_ref()))
    }

    /// SHA-256 of the plan, in hexadecimal.
    pub fn digest(&self) -> String {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        match serde_json::to_vec(self) {
            Ok(text) => hash.update(text),
            // What JSON refuses counts all the same.
            Err(_) => hash.update(format!("{self:?}")),
        }
        let proxy = self
            .network
            .iter()
            .flat_map(|network| &network.proxy_filter);
        let keys = self.signing.iter().flat_map(|signing| &signing.filter);
        for step in self.seccomp.program.iter().chain(proxy).chain(keys) {
            hash.update(step.bytes());
        }
        hexadecimal(&hash.finalize())
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Means against what agents learn of each other by sharing a processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hardening {
    /// How many processors of its own the cage gets, in whole cores.
    pub wanted: u32,
    /// Which; empty until [`Plan::bind`], as only then those that no other cage reserved are known.
    pub processors: Vec<u32>,
    /// Whether core scheduling and speculation controls are asked for as well.
    pub speculation: bool,
}

/// A host name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hostname {
    /// The name.
    pub name: String,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}
