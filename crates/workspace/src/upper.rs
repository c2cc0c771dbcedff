//! Takes parts out of an upper layer: what was applied, or what is not wanted.
//!
//! No cage runs on the layer meanwhile: its lock is held. Each step leaves the overlay's view of
//! everything else as it was.

use crate::tree::{self, Kind};
use ironcage_sys::rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, XattrFlags, fremovexattr, fsetxattr, mknodat,
    renameat_with, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const OPAQUE: &str = "user.overlay.opaque";

/// Makes a directory of the upper layer that hides all of the real one hide the same by name,
/// so that single names of it can be taken out. What `path` leads to, seen from the directory,
/// is not hidden by name.
pub(crate) fn reveal(upper: BorrowedFd<'_>, real: BorrowedFd<'_>, but: &OsStr) -> io::Result<()> {
    if !tree::is_opaque(upper)? {
        return Ok(());
    }
    for name in tree::names(real)? {
        match tree::look(upper, &name)? {
            None if name == but => {}
            None => {
                // A whiteout is the one device that anybody may make.
                let made = mknodat(upper, &name, FileType::CharacterDevice, Mode::empty(), 0);
                match made {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Some(node) if node.kind == Kind::Directory => {
                let inside = tree::open_directory(upper, &name)?;
                fsetxattr(&inside, OPAQUE, b"y", XattrFlags::empty())?;
            }
            Some(_) => {}
        }
    }
    fremovexattr(upper, OPAQUE)?;
    Ok(())
}

/// [`reveal`]s every directory on the way to a path, as far as both trees have them.
pub(crate) fn reveal_to(
    upper: BorrowedFd<'_>,
    real: BorrowedFd<'_>,
    path: &Path,
) -> io::Result<()> {
    let (mut upper, mut real): (OwnedFd, OwnedFd) =
        (upper.try_clone_to_owned()?, real.try_clone_to_owned()?);
    for part in path.components() {
        let name = part.as_os_str();
        reveal(upper.as_fd(), real.as_fd(), name)?;
        let inside = tree::open_directory(upper.as_fd(), name);
        let below = tree::open_directory(real.as_fd(), name);
        let (Ok(inside), Ok(below)) = (inside, below) else {
            return Ok(());
        };
        (upper, real) = (inside, below);
    }
    Ok(())
}

/// Lets all of the real directory be seen through one of the upper layer that hid it: what was
/// hidden is gone by now, and what is there since then is the host's.
pub(crate) fn show_all(upper: BorrowedFd<'_>, path: &Path, place: (u64, u64)) -> io::Result<()> {
    let directory = match tree::open_below(upper, path) {
        Ok(directory) => directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if tree::Node::of(&directory)?.place != place {
        return Ok(());
    }
    match fremovexattr(&directory, OPAQUE) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes a file, a link or a whiteout out of the upper layer; a directory when it is empty.
pub(crate) fn take_out(upper: BorrowedFd<'_>, path: &Path, directory: bool) -> io::Result<()> {
    let above = match tree::open_below(upper, path.parent().unwrap_or(Path::new(""))) {
        Ok(above) => above,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let name = path.file_name().unwrap_or_default();
    let flags = if directory {
        AtFlags::REMOVEDIR
    } else {
        AtFlags::empty()
    };
    match unlinkat(&above, name, flags) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Moves all that the upper layer has at a path to a name in another directory, at once.
pub(crate) fn move_out(
    upper: BorrowedFd<'_>,
    path: &Path,
    to: BorrowedFd<'_>,
    name: &OsStr,
) -> io::Result<bool> {
    let above = match tree::open_below(upper, path.parent().unwrap_or(Path::new(""))) {
        Ok(above) => above,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let from = path.file_name().unwrap_or_default();
    match renameat_with(&above, from, to, name, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
