//! The files beside an index, as they are after an apply.

use super::index::{FILE, LINK, ObjectFormat, PROGRAM, SUBMODULE};
use super::plumbing::Plumbing;
use crate::tree::{self, Kind, Node};
use crate::{Moment, content, ignored};
use ironcage_sys::rustix::fs::{AtFlags, statat};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

const EXECUTABLE: u32 = 0o100;

/// The files beside an index.
pub(crate) struct WorkTree {
    path: PathBuf,
    root: OwnedFd,
    format: ObjectFormat,
}

impl WorkTree {
    pub(crate) fn open(path: &Path, format: ObjectFormat) -> io::Result<WorkTree> {
        Ok(WorkTree {
            path: path.to_owned(),
            root: tree::open_root(path)?,
            format,
        })
    }

    /// The whole path of one below it.
    pub(crate) fn real(&self, path: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(path))
    }

    fn node(&self, path: &Path) -> Option<Node> {
        let above = path.parent().unwrap_or(Path::new(""));
        let above = tree::open_below(self.root.as_fd(), above).ok()?;
        tree::look(above.as_fd(), path.file_name()?).ok().flatten()
    }

    /// Mode and object that `git add` would give a path, without any filter; `None` where there
    /// is no file, link or submodule.
    pub(crate) fn entry(&self, path: &[u8]) -> Option<(u32, Vec<u8>)> {
        let path = Path::new(OsStr::from_bytes(path));
        let node = self.node(path)?;
        match node.kind {
            Kind::File => {
                let mode = if node.mode & EXECUTABLE != 0 {
                    PROGRAM
                } else {
                    FILE
                };
                let file = tree::open_file_below(self.root.as_fd(), path).ok()?;
                Some((mode, self.format.hash_blob(&file).ok()?))
            }
            Kind::Link => {
                let target = node.target?;
                let target = target.as_os_str().as_bytes();
                let header = format!("blob {}\0", target.len());
                Some((LINK, self.format.hash(&[header.as_bytes(), target])))
            }
            Kind::Directory => Some((SUBMODULE, self.submodule(path)?)),
            _ => None,
        }
    }

    /// Whether a file or a link, or a submodule that is checked out, has a path.
    pub(crate) fn has(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        match self.node(path) {
            Some(node) if node.kind == Kind::Directory => self.node(&path.join(".git")).is_some(),
            found => found.is_some(),
        }
    }

    /// The commit that a submodule is at.
    fn submodule(&self, path: &Path) -> Option<Vec<u8>> {
        self.node(&path.join(".git"))?;
        let git = ignored::git_directory(&self.path.join(path))?;
        let head = Plumbing::of(&git).head().ok()??;
        super::plumbing::from_hexadecimal(&head)
    }

    /// Whether a path is as it was at some time; not for one that cannot be looked at.
    pub(crate) fn is_unchanged_since(&self, path: &[u8], moment: Moment) -> bool {
        // Only times are looked at, so a link on the way does no harm.
        statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            let changed = Moment {
                seconds: stat.st_ctime,
                nanoseconds: i64::try_from(stat.st_ctime_nsec).unwrap_or(0),
            };
            changed < moment
        })
    }
}

impl ObjectFormat {
    fn hash_blob(self, file: &std::fs::File) -> io::Result<Vec<u8>> {
        let bytes = content::read_bounded(file, LARGEST)?;
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let header = format!("blob {}\0", bytes.len());
        Ok(self.hash(&[header.as_bytes(), &bytes]))
    }
}

/// A larger file is not compared with what is staged of it, and so comes over unstaged.
const LARGEST: u64 = 256 * 1024 * 1024;
