//! What the user asks for in one run, besides the policy.

use std::ffi::OsString;
use std::path::PathBuf;

/// Ironcage's own directories: never in the reach of a cage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnDirectories {
    /// Configuration, state and runtime directories.
    pub paths: Vec<PathBuf>,
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
    /// The caller's environment, from which the policy may pass variables.
    pub env: Vec<(OsString, OsString)>,
    /// The user said that they know what they do.
    pub i_know: bool,
    /// Ironcage's own directories.
    pub own: OwnDirectories,
}
