//! Copies files of the user's own into what is kept.
//!
//! Regular files and directories only: links, sockets and devices stay outside and are told.

use crate::error::{Doing, StateError};
use crate::tree::{PRIVATE, open_directory};
use ironcage_sys::rustix::fs::{Mode, OFlags, mkdirat, openat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub bytes: u64,
    /// What is neither a file nor a directory and stayed outside.
    pub left_out: Vec<PathBuf>,
}

/// Copies a file or a tree to a name that is not there yet, in an open directory.
pub(crate) fn copy(from: &Path, to: BorrowedFd<'_>, name: &OsStr) -> Result<Copied, StateError> {
    let mut copied = Copied::default();
    let mut work: Vec<(PathBuf, OwnedFd, OsString)> = vec![(
        from.to_owned(),
        to.try_clone_to_owned().doing("open", from)?,
        name.to_owned(),
    )];
    while let Some((from, to, name)) = work.pop() {
        let metadata = std::fs::symlink_metadata(&from).doing("look at", &from)?;
        if metadata.is_dir() {
            mkdirat(&to, &name, PRIVATE).doing("copy", &from)?;
            let inside = open_directory(to.as_fd(), &name).doing("copy", &from)?;
            for entry in std::fs::read_dir(&from).doing("read", &from)? {
                let entry = entry.doing("read", &from)?;
                let inside = inside.try_clone().doing("copy", &from)?;
                work.push((entry.path(), inside, entry.file_name()));
            }
        } else if metadata.is_file() {
            let mode = metadata.permissions().mode() & 0o700;
            copied.bytes += copy_file(&from, to.as_fd(), &name, mode).doing("copy", &from)?;
            copied.files += 1;
        } else {
            copied.left_out.push(from);
        }
    }
    Ok(copied)
}

fn copy_file(from: &Path, to: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut source = File::from(openat(
        ironcage_sys::rustix::fs::CWD,
        from,
        flags,
        Mode::empty(),
    )?);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut target = File::from(openat(to, name, flags, Mode::from_raw_mode(mode))?);
    io::copy(&mut source, &mut target)
}
