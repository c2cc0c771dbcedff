//! The steps in which the file view is built.

use crate::bytes;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The owner of files outside, who is the agent inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// User id on disk.
    pub uid: u32,
    /// Group id on disk.
    pub gid: u32,
    /// Whether every id of a system on disk is the same id inside, not only the owner's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl Owner {
    /// One user, who is the agent inside.
    pub fn one(uid: u32, gid: u32) -> Owner {
        let all = false;
        Owner { uid, gid, all }
    }
}

/// What a bind mount lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reading and executing.
    Read,
    /// Also writing.
    Write,
    /// A device node: reading and writing, no execution.
    Device,
}

/// What kind of mount point is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// Anything else.
    File,
}

/// Why a place is hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HiddenBy {
    /// It holds credentials of a user.
    Credentials,
    /// It is a secret of the system.
    SystemSecret,
    /// It is one of Ironcage's own directories, which no cage sees.
    Ironcage,
    /// The policy hides it.
    Policy,
    /// The policy hides files of the workspace with sensitive names. A lease shows one.
    Sensitive,
}

/// Places on the ephemeral storage for changes that are in memory, one for each view.
pub const MEMORY: [&str; 8] = [
    "/.hidden/changes/0",
    "/.hidden/changes/1",
    "/.hidden/changes/2",
    "/.hidden/changes/3",
    "/.hidden/changes/4",
    "/.hidden/changes/5",
    "/.hidden/changes/6",
    "/.hidden/changes/7",
];

/// What a copy-on-write view is a view of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlaid {
    /// The workspace.
    Workspace,
    /// A git directory of its own.
    Git,
    /// A directory that was given for writing.
    Granted,
    /// The user's own cache of a tool.
    Cache,
    /// The system of a container image.
    System,
}

/// A file that the supervisor puts into the view. Its path on the host is known only when the cage
/// starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupervisorFile {
    /// The socket proxy in the place of a host socket.
    SocketProxy,
    /// The socket at which the agent asks for permissions.
    RequestSocket,
    /// The socket at which ssh finds keys.
    SshAgent,
    /// The socket at which gpg finds keys.
    GpgAgent,
    /// The public keys of gpg.
    GpgKeyring,
    /// The program that asks there.
    InsideProgram,
    /// The program that reads what a command executes, for the shell shim.
    ReaderProgram,
    /// The program that runs WebAssembly.
    WasmProgram,
}

/// One step in the building of the file view. Targets are paths inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ViewOp {
    /// An empty directory; missing parents are made.
    Directory {
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// Permission bits.
        mode: u32,
        /// Whether the agent owns it.
        agents: bool,
    },
    /// A symbolic link.
    Symlink {
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// What it says.
        #[serde(serialize_with = "bytes::path")]
        to: PathBuf,
    },
    /// A small file made for the cage.
    File {
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// What is in it.
        content: String,
        /// Permission bits.
        mode: u32,
    },
    /// A file with certificate authorities: the host's, and the cage's own, which is made at the
    /// start.
    Authorities {
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// The host's, as files of certificates.
        #[serde(serialize_with = "bytes::path_list")]
        bundles: Vec<PathBuf>,
        /// Whether it is in the form that Java reads.
        java: bool,
    },
    /// A file made before is seen at a place of the host's tree; skipped where nothing is there.
    Cover {
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// The file.
        #[serde(serialize_with = "bytes::path")]
        with: PathBuf,
    },
    /// A directory made before becomes writable, on the cage's ephemeral storage.
    Ephemeral {
        /// Which.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// Whether programs in it can be executed.
        executable: bool,
    },
    /// A part of the host's tree.
    Bind {
        /// Real path on the host.
        #[serde(serialize_with = "bytes::path")]
        source: PathBuf,
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// What it lets through.
        access: Access,
        /// Mount point to make.
        kind: NodeKind,
        /// On-disk owner who is the agent inside; `null` leaves ids as they are.
        owner: Option<Owner>,
    },
    /// A file of the supervisor's, read-only. [`Plan::bind`](crate::Plan::bind) turns it into a
    /// [`ViewOp::Bind`].
    Supervisor {
        /// Which file.
        file: SupervisorFile,
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
    },
    /// A directory of the host's as a copy-on-write view: what is changed in it goes to a
    /// directory of Ironcage's own, and the real one stays as it is.
    Overlay {
        /// What it is a view of.
        of: Overlaid,
        /// Real path on the host.
        #[serde(serialize_with = "bytes::path")]
        lower: PathBuf,
        /// Where.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// Where the change goes.
        #[serde(serialize_with = "bytes::path")]
        upper: PathBuf,
        /// What the kernel needs beside it, on the same file system.
        #[serde(serialize_with = "bytes::path")]
        work: PathBuf,
        /// Whether it is read-only where no lease lets it be written.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        locked: bool,
        /// Where both are while the cage runs, on its ephemeral storage; `null` is the places above.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<&'static str>,
        /// On-disk owner who is the agent inside; `null` leaves ids as they are.
        owner: Option<Owner>,
    },
    /// A place of the view made before, mounted onto itself so that it is read-only or, when
    /// writable, cannot be renamed away from under what is mounted below it.
    Pin {
        /// Which.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// What it lets through.
        access: Access,
    },
    /// A place that is there but cannot be looked into.
    Hide {
        /// Which.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// What stands there.
        kind: NodeKind,
        /// Why.
        by: HiddenBy,
    },
    /// The process file system of the cage's own pid namespace, at `/proc`.
    Proc,
    /// A place of `/proc` that cannot be looked into; skipped where the kernel has it not.
    MaskProc {
        /// Which.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
        /// A file made before that is seen instead; `null` is nothing.
        instead: Option<&'static str>,
    },
    /// A place of `/proc` that is read-only; skipped where the kernel has it not.
    ReadOnlyProc {
        /// Which.
        #[serde(serialize_with = "bytes::path")]
        target: PathBuf,
    },
    /// The version 2 cgroup hierarchy below the group of the cage's init, at `/sys/fs/cgroup`.
    Cgroup,
    /// Pseudo-terminals of the cage's own, at `/dev/pts`.
    Terminals,
    /// From here on, what is not mounted writable is read-only.
    Seal,
}

impl ViewOp {
    /// What of the host's tree is mounted, and where: a bind or a copy-on-write view.
    pub fn from_host(&self) -> Option<(&Path, NodeKind)> {
        match self {
            ViewOp::Bind { target, kind, .. } => Some((target, *kind)),
            ViewOp::Overlay { target, .. } => Some((target, NodeKind::Directory)),
            _ => None,
        }
    }
}
