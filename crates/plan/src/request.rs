//! The user's request for one run, besides the policy.

use crate::key_agent_error::{GpgKeyError, KeyAgentError, PublicKeyError};
use crate::task::TaskScope;
use crate::{GitSetting, GuestFiles};
use ironcage_model::HostRule;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Ironcage's own directories: never in the reach of a cage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnDirectories {
    /// Configuration, state and runtime directories.
    pub paths: Vec<PathBuf>,
}

/// Where what outlives the run lies, in Ironcage's own directories; empty where nothing does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptPlaces {
    /// The directory that stands for the home directory.
    pub home: PathBuf,
    /// The directory of the caches.
    pub caches: PathBuf,
    /// Where the changes to the user's own caches go; `None` while another cage uses them, or
    /// where they are not read.
    pub layers: Option<PathBuf>,
}

/// Where one layer of a change lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeLayer {
    /// The real directory that it belongs to.
    pub real: PathBuf,
    /// What was changed in it.
    pub upper: PathBuf,
    /// What the kernel needs beside that.
    pub work: PathBuf,
}

impl ChangeLayer {
    fn at(real: &Path, place: &Path) -> ChangeLayer {
        ChangeLayer {
            real: real.to_owned(),
            upper: place.join("upper"),
            work: place.join("work"),
        }
    }
}

/// Where what the agent changes is kept aside, in Ironcage's own directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangePlace {
    /// The change's own directory.
    pub directory: PathBuf,
    /// Layers that an earlier run made; further ones get places of their own.
    pub layers: Vec<ChangeLayer>,
}

impl ChangePlace {
    /// The layer of a real directory. Its name follows from the path, so that the next run
    /// finds it again.
    pub(crate) fn layer(&self, real: &Path, workspace: &Path) -> ChangeLayer {
        use sha2::{Digest as _, Sha256};
        use std::fmt::Write as _;
        if let Some(layer) = self.layers.iter().find(|layer| layer.real == real) {
            return layer.clone();
        }
        if real == workspace {
            return ChangeLayer::at(real, &self.directory);
        }
        let mut name = String::with_capacity(16);
        for byte in Sha256::digest(real.as_os_str().as_bytes()).iter().take(8) {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        ChangeLayer::at(real, &self.directory.join("layers").join(name))
    }
}

/// A host that a tool of the user's named when it was asked for its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedHost {
    /// The bundle that it belongs to.
    pub bundle: String,
    /// Which host and port.
    pub rule: HostRule,
    /// The setting that names it, for the plan's reader.
    pub said_by: String,
}

/// Settings of a tool of the user's, for the bundle that follows it: without passwords.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolSettings {
    /// The bundle.
    pub bundle: String,
    /// Variables that the tool reads.
    pub variables: Vec<(String, String)>,
    /// Files that it reads, with what is in them.
    pub files: Vec<(PathBuf, String)>,
    /// What the user is to know of them.
    pub notes: Vec<String>,
}

/// A place that the user's git runs, obeys or takes for a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitPlace {
    /// Its path, through whatever links.
    pub path: PathBuf,
    /// Whether a directory counts with all that is in it; else only a file does.
    pub whole: bool,
    /// What git does with it.
    pub why: String,
}

/// An image that stands for the host's system in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRoot {
    /// Its name, as the user said it.
    pub name: String,
    /// Its layers as one tree, in Ironcage's own store.
    pub root: PathBuf,
    /// The variables of its configuration.
    pub env: Vec<(String, String)>,
    /// Its list of users, to which the agent is added.
    pub passwd: String,
    /// Its list of groups.
    pub group: String,
    /// Where what the cage writes to it goes; `None` where it is read-only.
    pub layers: Option<PathBuf>,
}

/// A user that the command is to run as, instead of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunUser {
    /// Its name inside, if it has one.
    pub name: Option<String>,
    /// User ID inside.
    pub uid: u32,
    /// Group ID inside.
    pub gid: u32,
    /// Who names it.
    pub origin: UserOrigin,
}

/// Who names a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserOrigin {
    /// The flag `--user`.
    Flag,
    /// An image of this name.
    Image(String),
}

/// A request to boot the system of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRequest {
    /// Where its init can have a group: see [`Boot::group`](crate::Boot::group). An error says why
    /// nowhere, and what to do.
    pub group: Result<Option<PathBuf>, String>,
    /// The signal by which it shuts down.
    pub stop_signal: i32,
}

/// A key of the user's ssh-agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshAgentKey {
    /// Its type, such as `ssh-ed25519`.
    pub kind: String,
    /// The public key.
    pub blob: Vec<u8>,
    /// Its fingerprint, as OpenSSH shows it.
    pub fingerprint: String,
    /// Its comment.
    pub comment: String,
}

/// The user's ssh-agent.
#[derive(Debug, Clone)]
pub struct SshAgent {
    /// Its socket, real path.
    pub socket: PathBuf,
    /// Its keys.
    pub keys: Vec<SshAgentKey>,
    /// The public keys in the files that the policy names.
    pub files: Vec<(PathBuf, Result<Vec<u8>, PublicKeyError>)>,
}

/// A key of the user's gpg that signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpgAgentKey {
    /// Its fingerprint.
    pub fingerprint: String,
    /// The keygrips of what signs in it.
    pub grips: Vec<String>,
    /// The public key, as gpg exports it.
    pub keyring: Vec<u8>,
}

/// The user's gpg-agent.
#[derive(Debug, Clone)]
pub struct GpgAgent {
    /// Its restricted socket, real path.
    pub socket: PathBuf,
    /// Its version.
    pub version: String,
    /// The keys that the policy names.
    pub keys: Vec<(String, Result<GpgAgentKey, GpgKeyError>)>,
}

/// The user's agents, as far as the policy names keys of them; an error says why one cannot be
/// asked.
#[derive(Debug, Clone, Default)]
pub struct KeyAgents {
    /// The ssh-agent.
    pub ssh: Option<Result<SshAgent, KeyAgentError>>,
    /// The gpg-agent.
    pub gpg: Option<Result<GpgAgent, KeyAgentError>>,
    /// A key of the ssh-agent as `--ssh-key` would name it, where the policy gives none.
    pub offered: Option<String>,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Request {
    /// Program and arguments. A sticky cage may start without.
    pub argv: Vec<OsString>,
    /// Whether the cage outlives its first command.
    pub sticky: bool,
    /// Whether every file, program and call of a group that is used goes on record.
    pub observed: bool,
    /// Whether it shares its workspace with a cage to which files can be leased.
    pub leased_beside: bool,
    /// Working directory, outside and inside.
    pub cwd: PathBuf,
    /// The workspace, real path.
    pub workspace: PathBuf,
    /// Whether the user named the workspace.
    pub workspace_named: bool,
    /// The user's home directory; the agent's home has the same path.
    pub home: PathBuf,
    /// Home directories of others that credentials may lie in: that of the workspace's owner,
    /// and of who called through sudo.
    pub other_homes: Vec<PathBuf>,
    /// The files of the policy in force, real paths.
    pub policy_documents: Vec<PathBuf>,
    /// The caller's environment, from which the policy may pass variables.
    pub env: Vec<(OsString, OsString)>,
    /// A directory that stands for the host's system in the view.
    pub root: Option<PathBuf>,
    /// An image that does.
    pub image: Option<ImageRoot>,
    /// The user that a flag or the image names.
    pub user: Option<RunUser>,
    /// Where the command starts inside, if not in the working directory outside.
    pub workdir: Option<PathBuf>,
    /// The command is an init system.
    pub boot: Option<BootRequest>,
    /// The OCI runtime to use, by name or absolute path; `None` takes the first that is found.
    pub oci_runtime: Option<PathBuf>,
    /// The first process of a container, where a runtime makes one.
    pub program: PathBuf,
    /// What a guest is made of, where one is set up.
    pub guest: Option<GuestFiles>,
    /// Where temporary files are made: for an isolation level that has no storage of its own.
    pub temporary: PathBuf,
    /// What the user's task names, where one was given.
    pub task: Option<TaskScope>,
    /// The user said that they know what they do.
    pub i_know: bool,
    /// Ironcage's own directories.
    pub own: OwnDirectories,
    /// Where what is kept lies.
    pub kept: KeptPlaces,
    /// Where the change of a copy-on-write view goes; used where something is one.
    pub change: ChangePlace,
    /// The git directory of the workspace where that lies outside of it, as a worktree's does.
    pub git_directory: Option<PathBuf>,
    /// The user's settings of git that are harmless; used where the policy gives them.
    pub git: Vec<GitSetting>,
    /// What git on the host runs, obeys or takes for a repository in trees of real files that the
    /// agent can write.
    pub git_places: Vec<GitPlace>,
    /// What the user's files of known hosts say; used where the cage may reach a host.
    pub known_hosts: String,
    /// What the user's agents have; used where the policy gives keys of them.
    pub key_agents: KeyAgents,
    /// What makes the placeholders of this cage's secrets its own.
    pub nonce: u64,
    /// Hosts that the user's tools named, for the bundles that follow them.
    pub asked_hosts: Vec<AskedHost>,
    /// Settings of the same tools.
    pub tool_settings: Vec<ToolSettings>,
}
