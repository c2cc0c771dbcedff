//! Access to trees that an agent wrote or that others change meanwhile: one name at a time from
//! an open directory, so that no link is followed and no path leaves the tree.

use crate::Moment;
use ironcage_sys::rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fgetxattr, flistxattr, fstat, openat,
    openat2, readlinkat, statat, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// Beyond this many levels a tree is not read: two descriptors are open for each.
pub(crate) const DEEPEST: usize = 200;

/// So long a path is taken by the kernel at once; its own bound is `PATH_MAX`.
const LONGEST_AT_ONCE: usize = 4000;

/// What something in a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    Pipe,
    Socket,
    /// A device; never a whiteout, which is no thing but the absence of one.
    Device,
}

/// What is known of one thing in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: Kind,
    /// The mode's permission and set-id bits.
    pub mode: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Where a link points.
    pub target: Option<PathBuf>,
    /// When its content last changed.
    pub modified: Moment,
    /// When anything of it last changed.
    pub changed: Moment,
    pub(crate) owner: (u32, u32),
    pub(crate) place: (u64, u64),
    pub(crate) links: u64,
    pub(crate) whiteout: bool,
}

impl Node {
    fn from_stat(stat: &Stat) -> Node {
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let kind = match file_type {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            FileType::Fifo => Kind::Pipe,
            FileType::Socket => Kind::Socket,
            _ => Kind::Device,
        };
        Node {
            kind,
            mode: stat.st_mode & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            target: None,
            modified: Moment {
                seconds: stat.st_mtime,
                nanoseconds: i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
            },
            changed: Moment {
                seconds: stat.st_ctime,
                nanoseconds: i64::try_from(stat.st_ctime_nsec).unwrap_or(0),
            },
            owner: (stat.st_uid, stat.st_gid),
            place: (stat.st_dev, stat.st_ino),
            links: stat.st_nlink,
            whiteout: file_type == FileType::CharacterDevice && stat.st_rdev == 0,
        }
    }

    /// What an open file is.
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Node> {
        Ok(Node::from_stat(&fstat(fd)?))
    }
}

/// What has a name in an open directory.
pub(crate) fn look(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Node>> {
    let stat = match statat(above, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut node = Node::from_stat(&stat);
    if node.kind == Kind::Link {
        node.target = match readlinkat(above, name, Vec::new()) {
            Ok(target) => Some(OsString::from_vec(target.into_bytes()).into()),
            Err(Errno::NOENT | Errno::INVAL) => None,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Some(node))
}

const STRICT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a directory in an open one. A mount point is not entered.
pub(crate) fn open_directory(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(above, name, flags, Mode::empty(), STRICT)?)
}

/// Opens a directory below an open one, without any link on the way.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return open_directory(root, OsStr::new("."));
    }
    names_only(path)?;
    if path.as_os_str().len() <= LONGEST_AT_ONCE {
        return open_directory(root, path.as_os_str());
    }
    // Name by name, where a path is longer than the kernel takes at once.
    let mut at: Option<OwnedFd> = None;
    for part in path.components() {
        let above = at.as_ref().map_or(root, AsFd::as_fd);
        at = Some(open_directory(above, part.as_os_str())?);
    }
    at.ok_or_else(|| Errno::INVAL.into())
}

/// A path of the agent's may hold `..` or begin at the root: no file of a tree is called so.
fn names_only(path: &Path) -> io::Result<()> {
    let mut parts = path.components();
    match parts.all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(()),
        false => Err(Errno::INVAL.into()),
    }
}

/// Opens the root of a tree by its path, of which the last part must be no link.
pub(crate) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let cwd = ironcage_sys::rustix::fs::CWD;
    Ok(ironcage_sys::rustix::fs::openat(
        cwd,
        path,
        flags,
        Mode::empty(),
    )?)
}

/// Opens a regular file to read it. What became a pipe meanwhile does not block us.
pub(crate) fn open_file(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat2(above, name, flags, Mode::empty(), STRICT)?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("no longer a regular file"));
    }
    Ok(File::from(file))
}

/// Opens a regular file below an open directory to read it, without any link on the way.
pub(crate) fn open_file_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    names_only(path)?;
    if path.as_os_str().len() <= LONGEST_AT_ONCE {
        return open_file(root, path.as_os_str());
    }
    let above = open_below(root, path.parent().unwrap_or(Path::new("")))?;
    open_file(above.as_fd(), path.file_name().unwrap_or_default())
}

/// Makes a file under a temporary name of ours. What has that name is a leftover of a command that
/// was killed, or was put there by somebody who can write in the directory: a link, a second name
/// of another file. It goes, and the new file is made exclusively.
pub(crate) fn create_temporary(above: BorrowedFd<'_>, name: &str, mode: Mode) -> io::Result<File> {
    match unlinkat(above, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(above, name, flags, mode)?))
}

/// Names in a directory, in order.
pub(crate) fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The value of an attribute of an overlay, as far as it fits.
fn attribute(file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = [0; 256];
    match fgetxattr(file, name, &mut value) {
        Ok(length) => Ok(Some(value[..length].to_vec())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(Errno::RANGE) => Ok(Some(Vec::new())),
        Err(error) => Err(error.into()),
    }
}

/// Whether a directory of an upper layer hides what the lower one has there.
pub(crate) fn is_opaque(directory: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(attribute(directory, "user.overlay.opaque")?.is_some_and(|value| value == b"y"))
}

/// An attribute that would make an overlay show something else than what lies there. No
/// overlay of ours writes one, and an agent inside cannot: it is a sign of something wrong.
pub(crate) fn foreign_attribute(file: BorrowedFd<'_>) -> io::Result<Option<&'static str>> {
    // One call tells of most files that they have no attribute at all.
    let mut nothing: [u8; 0] = [];
    match flistxattr(file, &mut nothing) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    for name in [
        "user.overlay.redirect",
        "user.overlay.metacopy",
        "user.overlay.whiteout",
    ] {
        if attribute(file, name)?.is_some() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
