//! Removes a tree that an agent may have made, however deep it is and whoever still writes in
//! it: every directory is first moved to one level, so that no path grows and none is resolved
//! through what the agent can change.

use crate::error::{Doing, StateError};
use crate::tree::{as_os, names, open_directory};
use ironcage_sys::rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

/// Begins the names of what is to go. No key begins with a dot.
pub(crate) const GONE: &str = ".gone-";

/// Removes an entry of a directory, whatever it is; returns whether it was there. It is out of
/// its place at once, before the work begins.
///
/// # Errors
/// Where the system refuses.
pub fn remove_tree(directory: &Path, name: &OsStr) -> Result<bool, StateError> {
    let shown = directory.join(name);
    let above = match open_path(directory) {
        Ok(above) => above,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).doing("open", directory),
    };
    take_out(above.as_fd(), name, above.as_fd()).doing("remove", &shown)
}

/// Removes an open directory by its name in another one. What is moved on the way stays in it: whoever
/// is killed meanwhile leaves nothing beside it.
///
/// # Errors
/// Where the system refuses, and where something new is in it at the end.
pub fn remove_from_inside(
    above: BorrowedFd<'_>,
    name: &OsStr,
    tree: BorrowedFd<'_>,
) -> io::Result<()> {
    for entry in names(tree)? {
        take_out(tree, as_os(&entry), tree)?;
    }
    match unlinkat(above, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory anew: empty, closed to others, with the owner that it had. For the work
/// directory of an overlay, which the kernel refuses a second time where it synced nothing.
///
/// # Errors
/// Where the system refuses.
pub fn renew_directory(path: &Path) -> Result<(), StateError> {
    let before = std::fs::symlink_metadata(path).doing("look at", path)?;
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    remove_tree(above, name)?;
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(path)
        .doing("make", path)?;
    let made = std::fs::symlink_metadata(path).doing("look at", path)?;
    if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
        std::os::unix::fs::lchown(path, Some(before.uid()), Some(before.gid()))
            .doing("give away", path)?;
    }
    Ok(())
}

/// Removes an entry of an open directory by way of another on the same file system.
pub(crate) fn take_out(
    above: BorrowedFd<'_>,
    name: &OsStr,
    bins: BorrowedFd<'_>,
) -> io::Result<bool> {
    let bin = make_bin(bins)?;
    let found = match renameat_with(above, name, &bin.fd, "0", RenameFlags::empty()) {
        Ok(()) => true,
        Err(Errno::NOENT) => false,
        Err(error) => return Err(error.into()),
    };
    if found {
        empty(bin.fd.as_fd())?;
    }
    unlinkat(bins, bin.name.as_str(), AtFlags::REMOVEDIR)?;
    Ok(found)
}

/// Removes what an interrupted removal left.
pub(crate) fn sweep(directory: &Path) -> Result<(), StateError> {
    let Ok(above) = open_path(directory) else {
        return Ok(());
    };
    for name in names(above.as_fd()).doing("read", directory)? {
        if name.as_bytes().starts_with(GONE.as_bytes()) {
            remove_tree(directory, as_os(&name))?;
        }
    }
    Ok(())
}

struct Bin {
    name: String,
    fd: OwnedFd,
}

pub(crate) fn open_path(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(
        ironcage_sys::rustix::fs::CWD,
        directory,
        flags,
        Mode::empty(),
    )?)
}

fn make_bin(above: BorrowedFd<'_>) -> io::Result<Bin> {
    for number in 0..u32::MAX {
        let name = format!("{GONE}{}-{number}", std::process::id());
        match mkdirat(above, name.as_str(), crate::tree::PRIVATE) {
            Ok(()) => {
                let fd = open_directory(above, OsStr::new(&name))?;
                return Ok(Bin { name, fd });
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Empties the bin. Its entries are numbered; what is found in one of them goes on the end.
fn empty(bin: BorrowedFd<'_>) -> io::Result<()> {
    let (mut first, mut next) = (0_u64, 1_u64);
    while first < next {
        let name = first.to_string();
        first += 1;
        match unlinkat(bin, name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let directory = open_up(bin, OsStr::new(&name))?;
        // A cage that still runs may put in more while we take out.
        loop {
            for inside in names(directory.as_fd())? {
                match unlinkat(&directory, &inside, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR | Errno::PERM) => {}
                    Err(error) => return Err(error.into()),
                }
                match unlinkat(&directory, &inside, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => {}
                    Err(error) => return Err(error.into()),
                }
                // To be moved, a directory must be writable itself: its `..` changes.
                drop(open_up(directory.as_fd(), as_os(&inside)));
                let to = next.to_string();
                match renameat_with(
                    &directory,
                    &inside,
                    bin,
                    to.as_str(),
                    RenameFlags::NOREPLACE,
                ) {
                    Ok(()) => next += 1,
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            match unlinkat(bin, name.as_str(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => break,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Opens a directory, giving ourselves the right to where its mode does not.
fn open_up(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = openat(above, name, flags, Mode::empty())?;
    // Through the handle: a path could have become a link since.
    let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
    ironcage_sys::rustix::fs::chmod(itself.as_str(), Mode::RWXU)?;
    open_directory(handle.as_fd(), OsStr::new("."))
}
