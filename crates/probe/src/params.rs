//! The parameters of a probe inside: places, numbers and names, never a nonce.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Descriptors leaked into the launcher on purpose.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Leaks {
    pub(crate) directory: i32,
    /// A pidfd of the canary process.
    pub(crate) pidfd: i32,
    /// A network namespace with a listener of its own.
    pub(crate) network: i32,
    /// One end of a socket pair; the other end answers with a directory.
    pub(crate) socket_pair: i32,
    /// A connected TCP socket.
    pub(crate) tcp: i32,
    /// A host file, open for reading and writing.
    pub(crate) file: i32,
}

/// The canary process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Victim {
    /// Its process id on the stage.
    pub(crate) pid: i32,
    /// Where its secret lies in its memory.
    pub(crate) address: u64,
    /// A descriptor of its own on a deleted file with a secret.
    pub(crate) descriptor: i32,
}

/// A file handle of the secret key, and a path on the same file system.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Handle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

/// The limits of a probe that is started with [`crate::probe::Setup::Limits`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub(crate) memory_mib: u64,
    pub(crate) pids: u64,
    pub(crate) disk_mib: u64,
    pub(crate) inodes: u64,
    pub(crate) files: u64,
    /// In hundredths of a processor: one whole, as that can be held without a cgroup.
    pub(crate) cpu_percent: u64,
}

impl Limits {
    /// Small enough to harm nobody when they do not hold.
    pub(crate) const SMALL: Limits = Limits {
        memory_mib: 256,
        pids: 64,
        disk_mib: 64,
        inodes: 5000,
        files: 256,
        cpu_percent: 100,
    };

    /// The same with a share of a processor.
    pub(crate) const SHARE: Limits = Limits {
        cpu_percent: 20,
        ..Limits::SMALL
    };
}

/// Everything a probe inside is told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Params {
    pub(crate) home: PathBuf,
    pub(crate) workspace: PathBuf,
    /// A directory outside the workspace and the home's secrets, writable by the user.
    pub(crate) outside: PathBuf,
    /// Granted for reading with `Setup::ReadGrant`.
    pub(crate) granted: PathBuf,
    /// Leased for writing with `Setup::Leased`.
    pub(crate) leased: PathBuf,
    /// In the workspace; hidden with `Setup::Mask`.
    pub(crate) masked: PathBuf,
    pub(crate) tmp_secret: PathBuf,
    pub(crate) tmp_plant: PathBuf,
    pub(crate) shm_secret: PathBuf,
    pub(crate) state_secret: PathBuf,
    pub(crate) launcher: PathBuf,
    /// Device and inode of the launcher, so that nothing else is ever overwritten.
    pub(crate) launcher_inode: (u64, u64),
    pub(crate) handle: Handle,
    pub(crate) leaks: Leaks,
    pub(crate) victim: Victim,
    /// The nice value to give the canary process: higher for each run, as it cannot be lowered.
    pub(crate) victim_nice: i32,
    pub(crate) abstract_stream: String,
    pub(crate) abstract_datagram: String,
    pub(crate) socket_paths: Vec<PathBuf>,
    pub(crate) datagram_path: PathBuf,
    pub(crate) tcp4: u16,
    pub(crate) tcp6: u16,
    pub(crate) network_tcp: u16,
    pub(crate) free_port: u16,
    pub(crate) shm_key: i32,
    pub(crate) queue_key: i32,
    pub(crate) queue_name: String,
    pub(crate) terminal: PathBuf,
    /// Whether what a user may have is counted for the stage alone, so that it may be used up.
    pub(crate) own_counters: bool,
    /// Where a sandbox's control socket would lie.
    pub(crate) control_socket: PathBuf,
    /// What the first of two runs is to leave for the second; the second is told nothing.
    pub(crate) legacy: Option<String>,
    pub(crate) sibling_pid: i32,
    pub(crate) sibling_abstract: String,
    pub(crate) sibling_port: u16,
}
