//! The host's files, as far as a plan asks about them: is something there, what is it, whose.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What a path leads to, without following a link at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeType {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A Unix socket.
    Socket,
    /// A device or a pipe.
    Other,
}

/// A node of the host's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: NodeType,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
    /// How many names it has.
    pub links: u64,
}

/// Questions about the host's tree. Plans are tested with a made-up tree.
pub trait HostFiles {
    /// What is at a path; `None` when nothing is, or nothing that we may see.
    fn node(&self, path: &Path) -> Option<Node>;
    /// The path without links, `.` and `..`.
    fn real(&self, path: &Path) -> io::Result<PathBuf>;
    /// What a symbolic link says.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;
}

/// The tree of the running system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemFiles;

impl HostFiles for SystemFiles {
    fn node(&self, path: &Path) -> Option<Node> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        let kind = metadata.file_type();
        Some(Node {
            kind: if kind.is_dir() {
                NodeType::Directory
            } else if kind.is_file() {
                NodeType::File
            } else if kind.is_symlink() {
                NodeType::Symlink
            } else if kind.is_socket() {
                NodeType::Socket
            } else {
                NodeType::Other
            },
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode() & 0o7777,
            links: metadata.nlink(),
        })
    }

    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(path)
    }
}
