//! The host's files, as far as a plan asks about them: is something there, what is it, whose.

use crate::listing::Listings;
use ironcage_sys::rustix;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
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
    /// What is mounted below a directory, not at it.
    fn mounts_below(&self, path: &Path) -> Vec<PathBuf>;
    /// What is in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, NodeType)>>;
}

/// The tree of the running system, as it is at one time: a name that was seen to be absent is
/// not looked for again. For the making of one plan, or for one look.
#[derive(Debug, Default)]
pub struct SystemFiles {
    pub(crate) listings: Listings,
}

impl HostFiles for SystemFiles {
    fn node(&self, path: &Path) -> Option<Node> {
        if self.listings.is_absent(path) {
            return None;
        }
        let wanted = StatxFlags::BASIC_STATS;
        let found = match rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                self.listings.was_absent(path);
                return None;
            }
            Err(_) => return None,
        };
        Some(Node {
            kind: match FileType::from_raw_mode(found.stx_mode.into()) {
                FileType::Directory => NodeType::Directory,
                FileType::RegularFile => NodeType::File,
                FileType::Symlink => NodeType::Symlink,
                FileType::Socket => NodeType::Socket,
                _ => NodeType::Other,
            },
            uid: found.stx_uid,
            gid: found.stx_gid,
            mode: u32::from(found.stx_mode) & 0o7777,
            links: found.stx_nlink.into(),
        })
    }

    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(path)
    }

    fn mounts_below(&self, path: &Path) -> Vec<PathBuf> {
        // Without it nothing is known to be mounted there, and the kernel says so at the start.
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        mount_points(&text)
            .filter(|point| point != path && point.starts_with(path))
            .collect()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, NodeType)>> {
        use std::os::unix::fs::FileTypeExt as _;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let kind = if kind.is_dir() {
                NodeType::Directory
            } else if kind.is_file() {
                NodeType::File
            } else if kind.is_symlink() {
                NodeType::Symlink
            } else if kind.is_socket() {
                NodeType::Socket
            } else {
                NodeType::Other
            };
            found.push((entry.file_name(), kind));
        }
        Ok(found)
    }
}

/// The fifth field of each line, in which the kernel writes a few bytes in octal.
fn mount_points(mountinfo: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    lines.filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        let mut path = Vec::with_capacity(field.len());
        let mut rest = field;
        while let Some((first, after)) = rest.split_first() {
            let octal = after
                .get(..3)
                .filter(|_| *first == b'\\')
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| u8::from_str_radix(digits, 8).ok());
            match octal {
                Some(byte) => {
                    path.push(byte);
                    rest = after.get(3..).unwrap_or_default();
                }
                None => {
                    path.push(*first);
                    rest = after;
                }
            }
        }
        Some(PathBuf::from(OsString::from_vec(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_the_bytes_that_the_kernel_writes_in_octal() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b rw - ext3 /dev/root rw\n\
                     37 35 98:0 / /mnt/plain rw,noatime shared:1 - tmpfs t rw\n";
        let points: Vec<PathBuf> = mount_points(text).collect();
        assert_eq!(points, [Path::new("/mnt/a b"), Path::new("/mnt/plain")]);
    }
}
