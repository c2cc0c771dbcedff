//! The host's files, as far as a plan asks about them: is something there, what is it, whose.

use crate::listing::Listings;
use crate::quick::whole;
use ironcage_sys::rustix;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// What a path leads to, without following a link at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeType {
    Directory,
    File,
    Symlink,
    Socket,
    /// A device or a pipe.
    Other,
}

impl NodeType {
    fn of(kind: FileType) -> NodeType {
        match kind {
            FileType::Directory => NodeType::Directory,
            FileType::RegularFile => NodeType::File,
            FileType::Symlink => NodeType::Symlink,
            FileType::Socket => NodeType::Socket,
            _ => NodeType::Other,
        }
    }

    /// What a directory's listing says; `None` where the file system leaves it out.
    pub(crate) fn listed(kind: FileType) -> Option<NodeType> {
        (kind != FileType::Unknown).then(|| NodeType::of(kind))
    }
}

/// A node of the host's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    pub kind: NodeType,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    /// How many names it has.
    pub links: u64,
}

/// Questions about the host's tree. Plans are tested with a made-up tree.
pub trait HostFiles {
    /// What is at a path; `None` when nothing is, or nothing that we may see.
    fn node(&self, path: &Path) -> Option<Node>;
    /// The kind of what is at a path, as [`HostFiles::node`] has it.
    fn kind(&self, path: &Path) -> Option<NodeType> {
        self.node(path).map(|node| node.kind)
    }
    /// Says that much will be asked about what lies in a directory.
    fn read_ahead(&self, directory: &Path) {
        let _ = directory;
    }
    /// The path without links, `.` and `..`.
    fn real(&self, path: &Path) -> io::Result<PathBuf>;
    /// What a symbolic link says.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;
    /// What is mounted below a directory, not at it.
    fn mounts_below(&self, path: &Path) -> Vec<PathBuf>;
    /// The content of a regular file of at most this size; `None` where it cannot be had.
    fn content(&self, path: &Path, largest: u64) -> Option<Vec<u8>> {
        let _ = (path, largest);
        None
    }
    /// What is in a directory.
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, NodeType)>>;
}

/// The tree of the running system, as it is at one time: what was looked at is not looked at
/// again. For the making of one plan, or for one look.
#[derive(Debug, Default)]
pub struct SystemFiles {
    pub(crate) listings: Listings,
    nodes: RefCell<BTreeMap<Box<[u8]>, Option<Node>>>,
    links: RefCell<BTreeMap<Box<[u8]>, Link>>,
}

/// What `readlink` said of a path.
#[derive(Debug, Clone)]
enum Link {
    To(PathBuf),
    None,
    Absent,
}

/// As many links are followed on the way of one path, as the kernel does.
const MOST_LINKS: usize = 40;

impl SystemFiles {
    /// Asks the kernel what is at a path, and remembers the answer.
    fn look_at(&self, path: &Path) -> Result<Node, Errno> {
        let found = rustix::fs::lstat(path).map(|found| Node {
            kind: NodeType::of(FileType::from_raw_mode(found.st_mode)),
            uid: found.st_uid,
            gid: found.st_gid,
            mode: found.st_mode & 0o7777,
            links: found.st_nlink,
        });
        if found == Err(Errno::NOENT) {
            self.listings.was_absent(path);
        }
        let key = path.as_os_str().as_bytes();
        self.nodes.borrow_mut().insert(key.into(), found.ok());
        found
    }

    /// Whether a directory above a path was looked at and nothing was there, or nothing that we may
    /// see.
    fn is_below_nothing(&self, path: &Path) -> bool {
        let nodes = self.nodes.borrow();
        let mut above = path.ancestors().skip(1);
        above.any(|above| matches!(nodes.get(above.as_os_str().as_bytes()), Some(None)))
    }

    /// What a link says; `None` where something else is at the path.
    fn link_at(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let key = path.as_os_str().as_bytes();
        let seen = || self.nodes.borrow().get(key).copied().flatten();
        let known = self.listings.kind(path);
        let known = known.or_else(|| seen().map(|node| node.kind));
        if known.is_some_and(|kind| kind != NodeType::Symlink) {
            return Ok(None);
        }
        let remembered = self.links.borrow().get(key).cloned();
        let found = match remembered {
            Some(remembered) => remembered,
            None if self.listings.is_absent(path) => Link::Absent,
            None => {
                // Most names on the way of a path are not links, and are asked about again.
                let kind = match known {
                    Some(kind) => Ok(kind),
                    None => self.look_at(path).map(|node| node.kind),
                };
                let found = match kind {
                    Ok(NodeType::Symlink) => {
                        let text = rustix::fs::readlink(path, Vec::new())?;
                        Link::To(OsString::from_vec(text.into_bytes()).into())
                    }
                    Ok(_) => Link::None,
                    Err(Errno::NOENT) => Link::Absent,
                    Err(error) => return Err(error.into()),
                };
                self.links.borrow_mut().insert(key.into(), found.clone());
                found
            }
        };
        match found {
            Link::To(text) => Ok(Some(text)),
            Link::None => Ok(None),
            Link::Absent => Err(Errno::NOENT.into()),
        }
    }

    /// Takes a path apart, name by name. `None` where the kernel has to say whether something on
    /// the way is a directory.
    fn walk(&self, path: &Path) -> Option<io::Result<PathBuf>> {
        let mut real = PathBuf::from("/");
        // The next one last.
        let mut rest = names(path).filter(|_| path.is_absolute())?;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == ".." {
                real.pop();
                continue;
            }
            real.push(&name);
            let text = match self.link_at(&real) {
                Ok(Some(text)) => text,
                Ok(None) => continue,
                Err(error) => return Some(Err(error)),
            };
            links += 1;
            if links > MOST_LINKS {
                return Some(Err(Errno::LOOP.into()));
            }
            real.pop();
            if text.is_absolute() {
                real = "/".into();
            }
            rest.extend(names(&text)?);
        }
        Some(Ok(real))
    }
}

/// The names of a path, the last one first. `None` where one of them is told to be a directory
/// by what follows: `name/..` or `name/`.
fn names(path: &Path) -> Option<Vec<OsString>> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > 1 && (bytes.ends_with(b"/") || bytes.ends_with(b"/.")) {
        return None;
    }
    let mut found = Vec::new();
    for component in path.components() {
        match component {
            Component::ParentDir if found.iter().any(|name| name != "..") => return None,
            Component::ParentDir => found.push("..".into()),
            Component::Normal(name) => found.push(name.to_owned()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    found.reverse();
    Some(found)
}

impl HostFiles for SystemFiles {
    fn node(&self, path: &Path) -> Option<Node> {
        let key = path.as_os_str().as_bytes();
        if let Some(known) = self.nodes.borrow().get(key) {
            return *known;
        }
        if self.listings.is_absent(path) || self.is_below_nothing(path) {
            return None;
        }
        self.look_at(path).ok()
    }

    fn kind(&self, path: &Path) -> Option<NodeType> {
        let listed = self.listings.kind(path);
        listed.or_else(|| self.node(path).map(|node| node.kind))
    }

    fn read_ahead(&self, directory: &Path) {
        self.listings.read_ahead(directory);
    }

    fn content(&self, path: &Path, largest: u64) -> Option<Vec<u8>> {
        ironcage_files::read(path, largest, ironcage_files::Links::Refuse).ok()
    }

    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        let walked = self.walk(path);
        walked.unwrap_or_else(|| std::fs::canonicalize(path))
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let text = self.link_at(path)?;
        text.ok_or_else(|| Errno::INVAL.into())
    }

    fn mounts_below(&self, path: &Path) -> Vec<PathBuf> {
        // Without it nothing is known to be mounted there, and the kernel says so at the start.
        let text = whole(Path::new("/proc/self/mountinfo")).unwrap_or_default();
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
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn real_paths_are_those_of_the_standard_library() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/file"), "").unwrap();
        for (text, name) in [
            ("a/b", "relative"),
            ("../a/file", "a/up"),
            ("../../a/./b", "a/b/far"),
            ("b/../file", "a/around"),
            ("b/", "a/slash"),
            ("nothing", "dangling"),
            ("loop", "loop"),
        ] {
            symlink(text, at(name)).unwrap();
        }
        symlink(at("a"), at("absolute")).unwrap();
        let files = SystemFiles::default();
        for name in [
            "a/b",
            "relative",
            "absolute/b",
            "absolute/file",
            "a/up",
            "a/b/far",
            "a/around",
            "a/slash",
            "dangling",
            "loop",
            "a/file/..",
            "a/file/",
            "a/../a",
            "a/file/b",
            "nothing",
        ] {
            let expected = fs::canonicalize(at(name));
            // Asked twice: the second time from memory.
            for _ in 0..2 {
                let found = files.real(&at(name));
                let kinds = (
                    found.as_ref().map_err(io::Error::raw_os_error),
                    expected.as_ref().map_err(io::Error::raw_os_error),
                );
                assert_eq!(kinds.0, kinds.1, "{name}");
            }
        }
        assert_eq!(files.link(&at("relative")).unwrap(), Path::new("a/b"));
        assert!(files.link(&at("a")).is_err());
        files.read_ahead(directory.path());
        assert_eq!(files.kind(&at("absolute")), Some(NodeType::Symlink));
        assert_eq!(files.real(&at("absolute/b")).unwrap(), at("a/b"));
    }

    #[test]
    fn mount_points_are_read_with_the_bytes_that_the_kernel_writes_in_octal() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b rw - ext3 /dev/root rw\n\
                     37 35 98:0 / /mnt/plain rw,noatime shared:1 - tmpfs t rw\n";
        let points: Vec<PathBuf> = mount_points(text).collect();
        assert_eq!(points, [Path::new("/mnt/a b"), Path::new("/mnt/plain")]);
    }
}
