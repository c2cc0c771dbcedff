//! Copies the new versions into a directory in the real tree's root, from where a rename puts
//! each in its place.

use super::journal::{Action, Journal};
use crate::change::ChangeId;
use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::tree::{self, Kind, Node};
use crate::{Change, content};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fsetxattr, fstat, fsync, futimens, linkat, mkdirat, mkfifoat, openat,
    symlinkat, syncfs, unlinkat, utimensat,
};
use ironcage_sys::rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Up to so many files are written out one by one, more with all of the file system.
const FEW: usize = 128;
/// The longest list of attributes and the longest value that is taken over: the kernel's own.
const LONGEST_ATTRIBUTE: usize = 64 * 1024;

/// The name of the directory that versions are staged in.
pub(crate) fn name(id: &ChangeId) -> String {
    format!(".ironcage-apply-{id}")
}

/// The name of a step's version in it.
pub(crate) fn of_step(number: usize) -> String {
    format!("new-{number}")
}

/// Copies what every step puts, and notes where on the device it is.
pub(crate) fn stage(
    change: &Change,
    roots: &Roots,
    journal: &mut Journal,
) -> Result<(), WorkspaceError> {
    for layer in journal.layers() {
        let real = &change.layers()[layer].real;
        let root = roots.real(layer).doing("open", real)?;
        let before = Node::of(root).doing("look at", real)?;
        step();
        mkdirat(root, name(change.id()), Mode::RWXU).doing("stage in", real)?;
        set_times(root, &before).doing("set the time of", real)?;
    }
    let puts = journal
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::Put { .. }));
    let few = puts.count() <= FEW;
    // Where a file with several names is staged already.
    let mut linked: HashMap<(usize, (u64, u64)), String> = HashMap::new();
    for (number, planned) in journal.steps.iter_mut().enumerate() {
        let Action::Put { staged, .. } = &mut planned.action else {
            continue;
        };
        let shown = change.shown(planned.layer, &planned.path);
        step();
        match stage_one(
            change,
            roots,
            planned.layer,
            &planned.path,
            number,
            &mut linked,
            few,
        ) {
            Ok(place) => *staged = Some(place),
            // The rest can be applied all the same.
            Err(error) if !is_fatal(&error) => {
                planned.held = Some(format!("it cannot be copied: {error}"));
            }
            Err(error) => return Err(error).doing("copy", &shown),
        }
    }
    for layer in journal.layers() {
        let real = &change.layers()[layer].real;
        let root = roots.real(layer).doing("open", real)?;
        if few {
            let staging = open(root, change.id()).doing("open", real)?;
            fsync(&staging).doing("write", real)?;
        } else {
            syncfs(root).doing("write", real)?;
        }
    }
    Ok(())
}

/// Whether there is no use in going on with the next file.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Opens the directory of staged versions.
pub(crate) fn open(root: BorrowedFd<'_>, id: &ChangeId) -> io::Result<OwnedFd> {
    tree::open_directory(root, OsStr::new(&name(id)))
}

fn stage_one(
    change: &Change,
    roots: &Roots,
    layer: usize,
    path: &Path,
    number: usize,
    linked: &mut HashMap<(usize, (u64, u64)), String>,
    sync: bool,
) -> io::Result<(u64, u64)> {
    let staging = open(roots.real(layer)?, change.id())?;
    let above = tree::open_below(roots.upper(layer)?, path.parent().unwrap_or(Path::new("")))?;
    let name = path.file_name().unwrap_or_default();
    let to = of_step(number);
    let node = tree::look(above.as_fd(), name)?
        .ok_or_else(|| io::Error::other("it is not in the change any more"))?;
    if node.kind == Kind::File
        && node.links > 1
        && let Some(first) = linked.get(&(layer, node.place))
    {
        linkat(
            &staging,
            first.as_str(),
            &staging,
            to.as_str(),
            AtFlags::empty(),
        )?;
    } else {
        match node.kind {
            Kind::File => copy_file(above.as_fd(), name, staging.as_fd(), OsStr::new(&to), sync)?,
            Kind::Link => {
                let target = node.target.as_deref().unwrap_or(Path::new(""));
                symlinkat(target, &staging, to.as_str())?;
            }
            Kind::Pipe => mkfifoat(
                &staging,
                to.as_str(),
                Mode::from_raw_mode(node.mode & 0o777),
            )?,
            Kind::Directory | Kind::Socket | Kind::Device => {
                return Err(io::Error::other("it is nothing that is copied"));
            }
        }
        if node.kind != Kind::File {
            dress_link(staging.as_fd(), OsStr::new(&to), &node)?;
        } else if node.links > 1 {
            linked.insert((layer, node.place), to.clone());
        }
    }
    tree::look(staging.as_fd(), OsStr::new(&to))?
        .map(|made| made.place)
        .ok_or_else(|| Errno::NOENT.into())
}

/// Copies a file with all that belongs to it.
pub(crate) fn copy_file(
    above: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    as_name: &OsStr,
    sync: bool,
) -> io::Result<()> {
    let from = tree::open_file(above, name)?;
    let node = Node::of(&from)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = File::from(openat(to, as_name, flags, Mode::RUSR | Mode::WUSR)?);
    content::copy(&from, &made)?;
    dress(from.as_fd(), made.as_fd(), &node)?;
    if sync {
        fsync(&made)?;
    }
    Ok(())
}

/// Gives a file or directory the owner, mode, attributes and times of another.
pub(crate) fn dress(from: BorrowedFd<'_>, to: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
    let owner = (Uid::from_raw(node.owner.0), Gid::from_raw(node.owner.1));
    let now = fstat(to)?;
    if (now.st_uid, now.st_gid) != node.owner {
        // A group that is not ours cannot be given: as with a copy.
        match fchown(to, Some(owner.0), Some(owner.1)) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::INVAL) if now.st_uid == node.owner.0 => {}
            Err(error) => return Err(error.into()),
        }
    }
    copy_attributes(from, to)?;
    // After the owner, whose change takes set-id bits away.
    fchmod(to, Mode::from_raw_mode(node.mode))?;
    futimens(to, &times(node))?;
    Ok(())
}

/// Gives a link or a pipe, which is not opened, the owner and the times of a node.
pub(crate) fn dress_link(above: BorrowedFd<'_>, name: &OsStr, node: &Node) -> io::Result<()> {
    let made = tree::look(above, name)?;
    if made.is_none_or(|made| made.owner != node.owner) {
        let owner = (Uid::from_raw(node.owner.0), Gid::from_raw(node.owner.1));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match chownat(above, name, Some(owner.0), Some(owner.1), flags) {
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(utimensat(
        above,
        name,
        &times(node),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Gives an open file or directory the times of a node.
pub(crate) fn set_times(to: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
    Ok(futimens(to, &times(node))?)
}

fn times(node: &Node) -> Timestamps {
    let time = Timespec {
        tv_sec: node.modified.seconds,
        tv_nsec: node.modified.nanoseconds,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Takes over what a user can set: attributes of the user's, and access lists. Those of an
/// overlay stay behind: in the real tree they would mislead the next overlay.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    for (name, value) in attributes(from)? {
        match fsetxattr(to, &name[..], &value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut names = vec![0; LONGEST_ATTRIBUTE];
    let length = match flistxattr(file, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(found),
        Err(error) => return Err(error.into()),
    };
    for name in names[..length].split(|byte| *byte == 0) {
        let users = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
        if !users && !name.starts_with(b"system.posix_acl_") {
            continue;
        }
        let mut value = vec![0; LONGEST_ATTRIBUTE];
        match fgetxattr(file, name, &mut value[..]) {
            Ok(size) => {
                value.truncate(size);
                found.insert(name.to_vec(), value);
            }
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Whether two files have the same attributes of those that are taken over.
pub(crate) fn same_attributes(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(attributes(a)? == attributes(b)?)
}

/// Removes the directory of staged versions with all that is in it.
pub(crate) fn remove(root: BorrowedFd<'_>, id: &ChangeId) -> io::Result<()> {
    match empty(root, OsStr::new(&name(id))) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a directory of the real tree that was taken out of it, and so is no deeper than
/// what can be read.
fn empty(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let directory = tree::open_directory(above, name)?;
    // Its owner may have taken the right to write from himself.
    fchmod(&directory, Mode::RWXU)?;
    for inside in tree::names(directory.as_fd())? {
        match unlinkat(&directory, &inside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => empty(directory.as_fd(), &inside)?,
            Err(error) => return Err(error.into()),
        }
    }
    unlinkat(above, name, AtFlags::REMOVEDIR)?;
    Ok(())
}
