//! Steps in a tree that an agent may have made: no link is followed, nothing leaves the tree.

use ironcage_sys::rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use ironcage_sys::rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

/// For the owner alone.
pub(crate) const PRIVATE: Mode = Mode::RWXU;

/// Opens a directory to list it or to work below it.
pub(crate) fn open_directory(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(above, name, flags, Mode::empty())?)
}

/// Whether something is at a path below a directory, reached without any link.
pub(crate) fn exists(root: BorrowedFd<'_>, path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(root, path, flags, Mode::empty(), resolve).is_ok()
}

/// Makes a directory and those above it, up to the root, where they are missing.
pub(crate) fn make_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut at: OwnedFd = root.try_clone_to_owned()?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            return Err(Errno::INVAL.into());
        };
        match mkdirat(&at, name, PRIVATE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = open_directory(at.as_fd(), name)?;
    }
    Ok(at)
}

/// Names in a directory, without `.` and `..`.
pub(crate) fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in ironcage_sys::rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

pub(crate) fn as_os(name: &CString) -> &OsStr {
    OsStr::from_bytes(name.as_bytes())
}
