//! What the user asks for in one run, besides the policy.

use crate::GitSetting;
use std::ffi::OsString;
use std::path::PathBuf;

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
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Program and arguments.
    pub argv: Vec<OsString>,
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
    /// The user said that they know what they do.
    pub i_know: bool,
    /// Ironcage's own directories.
    pub own: OwnDirectories,
    /// Where what is kept lies.
    pub kept: KeptPlaces,
    /// The user's settings of git that are harmless; used where the policy gives them.
    pub git: Vec<GitSetting>,
}
