//! What `ironcage` hands over: the rules, and where things are.

use crate::error::McpError;
use ironcage_client::{ToolCallError, WaitingCalls};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use ironcage_tools::ToolPolicy;
use sha2::{Digest, Sha256};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes of rules. A policy file has at most 256 KiB.
const LARGEST: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) state: PathBuf,
    pub(crate) workspace: PathBuf,
    pub(crate) ironcage: PathBuf,
    pub(crate) policy: Arc<ToolPolicy>,
}

impl Settings {
    pub(crate) fn new(
        state: PathBuf,
        workspace: PathBuf,
        ironcage: PathBuf,
        rules: Option<RawFd>,
    ) -> Result<Self, McpError> {
        let policy = match rules {
            Some(fd) => {
                let path = PathBuf::from(format!("/proc/self/fd/{fd}"));
                let text = ironcage_files::read_text(&path, LARGEST, ironcage_files::Links::Follow);
                let text = text.map_err(|error| McpError::Rules(std::io::Error::other(error)))?;
                serde_json::from_str(&text).map_err(McpError::RulesText)?
            }
            None => ToolPolicy::default(),
        };
        Ok(Settings {
            state,
            workspace,
            ironcage,
            policy: Arc::new(policy),
        })
    }

    /// Where pins and calls that wait are kept for this workspace: out of reach of every cage.
    pub(crate) fn directory(&self) -> PathBuf {
        let digest = hex(self.workspace.as_os_str().as_encoded_bytes());
        let short = digest.get(..16).unwrap_or(&digest);
        self.state.join("mcp").join(short)
    }

    /// The calls that wait.
    pub(crate) fn calls(&self) -> Result<WaitingCalls, ToolCallError> {
        WaitingCalls::open(self.directory().join("calls"))
    }

    pub(crate) fn audit(&self) -> PathBuf {
        self.state.join("audit")
    }
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fills all of it, or says why not.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), McpError> {
    let wanted = bytes.len();
    match getrandom(bytes, GetRandomFlags::empty()) {
        Ok(filled) if filled == wanted => Ok(()),
        Ok(_) => Err(McpError::Random(std::io::ErrorKind::UnexpectedEof.into())),
        Err(error) => Err(McpError::Random(error.into())),
    }
}

/// Makes a directory of Ironcage's own, for this user alone.
pub(crate) fn private_directory(path: &Path) -> Result<(), McpError> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path);
    made.map_err(|error| McpError::Write(path.to_owned(), error))
}

/// Replaces a file whole.
pub(crate) fn replace(path: &Path, text: &[u8]) -> Result<(), McpError> {
    use std::io::Write;
    let failed = |error| McpError::Write(path.to_owned(), error);
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    file.write_all(text).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}
