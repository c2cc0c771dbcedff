//! The types of the native API.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// An object, or null. serde takes a list of its values, too, which the description does not.
fn object<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    match Option::<serde_json::Map<String, serde_json::Value>>::deserialize(from)? {
        Some(fields) => T::deserialize(serde_json::Value::Object(fields))
            .map(Some)
            .map_err(D::Error::custom),
        None => Ok(None),
    }
}

/// A cage to create. Without a directory and an image it gets the system of this host, read-only, and
/// an empty workspace that goes with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateCage {
    /// Profile that the cage extends; the default one where none is named. One other than data, node,
    /// python, rust, shell and strict needs the scope `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "python")]
    pub(crate) profile: Option<String>,
    /// Text of a policy file, used instead of a profile. Needs the scope `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// Directory of this host that becomes the workspace. Needs the scope `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<String>,
    /// What becomes of changes in the directory [default: cow].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workspace_mode: Option<WorkspaceMode>,
    /// Container image that becomes the system, by name or digest. Needs the scope `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// Template that `ironcage template build` made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    /// Snapshot, by its id or name, whose files the cage starts with. Its system, profile, limits and
    /// environment are those of the snapshot's cage where they are not named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<String>,
    /// Free text by which cages are found again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
    /// Variables of every process that the API starts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Seconds until the cage is ended [default: 300].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub(crate) timeout: Option<u32>,
    /// What happens then [default: delete].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on_timeout: Option<OnTimeout>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "object"
    )]
    pub(crate) limits: Option<CageLimits>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "object"
    )]
    pub(crate) network: Option<CageNetwork>,
}

/// What becomes of what the cage changes in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WorkspaceMode {
    /// Changes lie aside, as a pending change that can be applied.
    Cow,
    /// Only leases let changes be made.
    Leased,
    /// The real files are written.
    Direct,
    ReadOnly,
    /// An empty directory that goes with the cage.
    Scratch,
}

impl WorkspaceMode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            WorkspaceMode::Cow => "cow",
            WorkspaceMode::Leased => "leased",
            WorkspaceMode::Direct => "direct",
            WorkspaceMode::ReadOnly => "read-only",
            WorkspaceMode::Scratch => "scratch",
        }
    }
}

/// What happens to a cage whose time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnTimeout {
    #[default]
    Delete,
    Pause,
}

/// Limits that are lower than those of the profile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CageLimits {
    /// Bytes, or a size such as `512M`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "512M")]
    pub(crate) memory: Option<String>,
    /// Number of CPUs, for example `1.5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "1.5")]
    pub(crate) cpus: Option<String>,
    /// Processes and threads, with those of the daemon by which the service works in the cage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 4_194_304)]
    pub(crate) pids: Option<u32>,
    /// Storage in bytes, or a size such as `1G`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "1G")]
    pub(crate) disk: Option<String>,
}

/// What of the network the cage reaches from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CageNetwork {
    /// [default: listed where hosts are allowed, off otherwise]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<NetworkMode>,
    /// Hosts: NAME[:PORT], `*.NAME`, an address or a network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) deny: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NetworkMode {
    Off,
    /// Only allowed hosts.
    Listed,
    /// Also hosts that are allowed later.
    Live,
    /// Every host.
    Open,
}

impl NetworkMode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            NetworkMode::Off => "off",
            NetworkMode::Listed => "listed",
            NetworkMode::Live => "live",
            NetworkMode::Open => "open",
        }
    }
}

/// A cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Cage {
    /// The same as in `ironcage ps`.
    #[schema(example = "c7h2k9m4q1xz8")]
    pub(crate) id: String,
    pub(crate) state: CageState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) template: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// RFC 3339.
    pub(crate) created_at: String,
    /// When its time is over, RFC 3339.
    pub(crate) ends_at: String,
    pub(crate) on_timeout: OnTimeout,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<String>,
    /// The home directory of its processes.
    pub(crate) home: String,
    /// The directory in which its processes start.
    pub(crate) workspace: String,
    /// The pending change of its directory that it works on, or left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CageState {
    Running,
    Paused,
    Ended,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CageList {
    pub(crate) cages: Vec<Cage>,
    /// Give it as `cursor` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListCages {
    /// States, separated by commas: running, paused, ended [default: running,paused].
    #[param(pattern = r"^(running|paused|ended)(,(running|paused|ended))*$")]
    pub(crate) state: Option<String>,
    /// Metadata that cages must have, as a query string of its own: `a=1&b=2`, percent-encoded.
    pub(crate) metadata: Option<String>,
    /// Cages of a page [default: 100].
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<usize>,
    /// Where the page before this one ended [default: the first page].
    pub(crate) cursor: Option<String>,
}

/// What to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateCage {
    /// Seconds from now until the cage is ended.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub(crate) timeout: Option<u32>,
    #[serde(default)]
    pub(crate) on_timeout: Option<OnTimeout>,
    /// Replaces all metadata.
    #[serde(default)]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
}

/// A process to start: either `argv` or `command`.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartProcess {
    /// Program and arguments.
    #[serde(default)]
    pub(crate) argv: Vec<String>,
    /// Text for `/bin/sh -c`.
    #[serde(default)]
    pub(crate) command: Option<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Directory; `~` is the home. [default: the workspace]
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Keep an input open, for the route `stdin`.
    #[serde(default)]
    pub(crate) stdin: bool,
    /// Give it a terminal.
    #[serde(default, deserialize_with = "object")]
    pub(crate) pty: Option<PtySize>,
    /// Name by which it is recognised in lists.
    #[serde(default)]
    pub(crate) tag: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PtySize {
    #[schema(maximum = 65_535)]
    pub(crate) rows: u16,
    #[schema(maximum = 65_535)]
    pub(crate) columns: u16,
}

/// A process of a cage.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct Process {
    /// In the cage's own numbering.
    pub(crate) pid: u32,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
    pub(crate) pty: bool,
    /// RFC 3339.
    pub(crate) started_at: String,
    /// Bytes of output so far.
    pub(crate) output: u64,
    /// The first byte of output that is still kept for `from`.
    pub(crate) output_from: u64,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<ProcessExit>,
}

/// How a process ended: one of the two is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProcessExit {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ProcessList {
    pub(crate) processes: Vec<Process>,
}

/// A command to run to its end.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// Program and arguments; either these or `command`.
    #[serde(default)]
    pub(crate) argv: Vec<String>,
    /// Text for `/bin/sh -c`.
    #[serde(default)]
    pub(crate) command: Option<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Its input.
    #[serde(default)]
    pub(crate) stdin: Option<String>,
    /// How `stdin`, `stdout` and `stderr` are written in JSON [default: utf8].
    #[serde(default)]
    pub(crate) encoding: Encoding,
    /// Seconds after which it is killed with its children [default: 60].
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400)]
    pub(crate) timeout: Option<u32>,
    /// Bytes of each stream that are returned [default: 10 MiB].
    #[serde(default)]
    #[schema(maximum = 16_777_216)]
    pub(crate) max_output: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    /// Text; bytes that are not UTF-8 are replaced.
    #[default]
    Utf8,
    Base64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunResult {
    pub(crate) exit: ProcessExit,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Whether output is missing at the end, because it is longer than `max_output`.
    pub(crate) truncated: bool,
    /// Whether it was killed because its time was over.
    pub(crate) timed_out: bool,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutputQuery {
    /// First byte of output; without it only what comes from now on. Output that is no longer kept is
    /// skipped: the event `start` has the byte at which it begins.
    pub(crate) from: Option<u64>,
}

/// The data of an event `output` of a process.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OutputEvent {
    pub(crate) stream: OutputStream,
    /// The first byte of it in all output of the process.
    pub(crate) offset: u64,
    /// Base64.
    pub(crate) data: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
    Pty,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendSignal {
    /// Name such as `SIGTERM`, or a number.
    #[schema(example = "SIGTERM")]
    pub(crate) signal: String,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StdinQuery {
    /// Whether the input is at its end after this.
    #[serde(default)]
    pub(crate) close: bool,
}

/// A file, directory or link.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    /// Absolute. Bytes that are not UTF-8 are replaced.
    pub(crate) path: String,
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) owner: String,
    pub(crate) group: String,
    /// RFC 3339.
    pub(crate) modified_at: String,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct FileList {
    pub(crate) entries: Vec<FileEntry>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PathQuery {
    /// Absolute, below the home with `~/`, or else below the workspace.
    pub(crate) path: String,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListFiles {
    /// Absolute, below the home with `~/`, or else below the workspace.
    pub(crate) path: String,
    /// Levels of directories [default: 1].
    #[param(minimum = 1, maximum = 64)]
    pub(crate) depth: Option<u32>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteFile {
    /// Absolute, below the home with `~/`, or else below the workspace.
    pub(crate) path: String,
    /// Permission bits, in decimal [default: those of the file that is replaced, or 420].
    #[param(maximum = 511)]
    pub(crate) mode: Option<u32>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveFile {
    /// Absolute, below the home with `~/`, or else below the workspace.
    pub(crate) path: String,
    /// Whether a directory is removed with all that is in it.
    #[serde(default)]
    pub(crate) recursive: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchFiles {
    /// Absolute, below the home with `~/`, or else below the workspace.
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) recursive: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MakeDirectory {
    pub(crate) path: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveFile {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// The data of an event `change` of a watched directory.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct FileChange {
    /// Relative to the directory.
    pub(crate) name: String,
    pub(crate) kind: FileChangeKind,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileChangeKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
    /// Changes were lost: list the directory again.
    Overflow,
}

/// What the service is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ServiceInfo {
    pub(crate) version: String,
    pub(crate) cages: usize,
}

/// A lease of a running cage.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Lease {
    pub(crate) number: u32,
    #[schema(example = "host api.example.com")]
    pub(crate) resource: String,
    /// opening, open or ending.
    pub(crate) state: String,
    pub(crate) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) milliseconds_left: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uses_left: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LeaseList {
    pub(crate) leases: Vec<Lease>,
}

/// A host to allow.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    /// NAME[:PORT], `*.NAME`, an address or a network.
    pub(crate) host: String,
    /// For how long [default: until it is revoked].
    #[serde(default)]
    pub(crate) seconds: Option<u32>,
    /// What for, for the audit log.
    pub(crate) reason: String,
}

/// What came of a request for a lease.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum LeaseResult {
    /// It is open, or was approved for one command, which opens it.
    Granted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<u32>,
    },
    /// The cage has it anyway.
    Unneeded { reason: String },
    /// A person has to approve it.
    Pending { request: u32, reason: String },
    Denied {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        reason: String,
    },
}

/// A request that waits for an answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PermissionRequest {
    pub(crate) number: u32,
    pub(crate) resource: String,
    /// The requester's words: they may be an attacker's.
    pub(crate) reason: String,
    /// How often the same was asked.
    pub(crate) asked: u32,
    pub(crate) milliseconds_left: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PermissionRequestList {
    pub(crate) requests: Vec<PermissionRequest>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approve {
    /// For how long [default: as requested].
    #[serde(default)]
    pub(crate) seconds: Option<u32>,
    /// For how many uses [default: as requested].
    #[serde(default)]
    pub(crate) uses: Option<u32>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deny {
    /// For the requester.
    pub(crate) reason: String,
}

/// What a cage uses. Absent where the host does not count it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Usage {
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    pub(crate) memory_limit: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_peak: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_microseconds: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pids: Option<u64>,
    pub(crate) pids_limit: u64,
    /// Bytes of scratch storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) storage: Option<u64>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Number of the first event [default: 1].
    pub(crate) from: Option<u64>,
}

/// At most 1000 events; `from` continues after the last `seq`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditEvents {
    pub(crate) events: Vec<serde_json::Value>,
}
