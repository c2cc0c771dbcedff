//! Access lists: the real tree's own stay, the agent's are not brought over.
//!
//! A default list on a directory would decide who may read what the user makes in it afterwards,
//! and no diff shows one. So a version that replaces a file gets that file's list, and a new one
//! the list that its directory gives to whatever is made in it.

use crate::tree;
use ironcage_sys::rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use ironcage_sys::rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

const OF_A_FILE: &str = "system.posix_acl_access";
const FOR_NEW_ONES: &str = "system.posix_acl_default";
/// The longest that the kernel takes.
const LONGEST: usize = 64 * 1024;

/// Gives a staged file the access list that its place in the real tree asks for, if any. The mode
/// has to be set afterwards.
pub(super) fn keep(root: BorrowedFd<'_>, path: &Path, staged: BorrowedFd<'_>) -> io::Result<()> {
    let Some(list) = asked_for(root, path)? else {
        return Ok(());
    };
    fsetxattr(staged, OF_A_FILE, &list, XattrFlags::empty()).map_err(|error| {
        io::Error::other(format!(
            "the access list of the real file cannot be kept: {error}"
        ))
    })
}

fn asked_for(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let above = path.parent().unwrap_or(Path::new(""));
    let mut directory = tree::open_below(root, above);
    if let Ok(directory) = &directory
        && let Ok(replaced) =
            tree::open_file(directory.as_fd(), path.file_name().unwrap_or_default())
    {
        return read(replaced.as_fd(), OF_A_FILE);
    }
    // Directories that are not there yet are going to be made with what the one above gives.
    for above in above.ancestors().skip(1) {
        if directory.is_ok() {
            break;
        }
        directory = tree::open_below(root, above);
    }
    read(directory?.as_fd(), FOR_NEW_ONES)
}

/// Takes from a directory what it would give to new files in it.
pub(super) fn give_none_on(directory: BorrowedFd<'_>) -> io::Result<()> {
    match fremovexattr(directory, FOR_NEW_ONES) {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn read(file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; LONGEST];
    match fgetxattr(file, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
