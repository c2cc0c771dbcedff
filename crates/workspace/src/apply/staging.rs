//! Copies the new versions into a directory in the real tree's root, from where a rename puts
//! each in its place.

use super::access;
use super::journal::{Action, Journal, JudgedEntry};
use crate::change::ChangeId;
use crate::differences::Roots;
use crate::error::{Doing as _, WorkspaceError};
use crate::tree::{self, Kind, Node};
use crate::{Change, Moment, content};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fsetxattr, fstat, fsync, futimens, linkat, mkdirat, mkfifoat, openat,
    symlinkat, syncfs, unlinkat, utimensat,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::geteuid;
use serde::{Deserialize, Serialize};
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

/// Beginnings of attributes by which overlays and container tools, not people, know files: in the
/// real tree they would mislead the next one, as to what is hidden there and whose a file is.
const MISLEADING: [&[u8]; 3] = [
    b"user.overlay.",
    b"user.fuseoverlayfs.",
    b"user.containers.",
];

const OF_STEP: &str = "new-";
const NOT_OURS: &str = "the directory of staged versions is not the one that was made for them";

/// The name of the directory that versions are staged in.
pub(crate) fn name(id: &ChangeId) -> String {
    format!(".ironcage-apply-{id}")
}

/// The name of a step's version in it.
pub(crate) fn of_step(number: usize) -> String {
    format!("{OF_STEP}{number}")
}

/// Whether something in it is a step's version.
fn is_of_step(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(OF_STEP));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
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
        let made = open(root, change.id()).doing("open", real)?;
        is_new(made.as_fd()).doing("stage in", real)?;
        access::give_none_on(made.as_fd()).doing("stage in", real)?;
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
        let Some(judged) = &planned.judged else {
            planned.held = Some("it was not judged".into());
            continue;
        };
        let one = One {
            change,
            roots,
            layer: planned.layer,
            path: &planned.path,
            judged,
            number,
        };
        match one.stage(&mut linked, few) {
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

/// Opens the directory of staged versions. Where root applies in a tree of another user's, that
/// user could have put a directory of his own in its place, and would then choose what is given
/// away with a change of owner.
pub(crate) fn open(root: BorrowedFd<'_>, id: &ChangeId) -> io::Result<OwnedFd> {
    const OTHERS_WRITE: u32 = 0o022;
    let opened = tree::open_directory(root, OsStr::new(&name(id)))?;
    let node = Node::of(&opened)?;
    if geteuid().is_root() && (node.owner.0 != 0 || node.mode & OTHERS_WRITE != 0) {
        return Err(io::Error::other(NOT_OURS));
    }
    Ok(opened)
}

/// Whether it is the one that was made: it has nothing in it yet.
fn is_new(made: BorrowedFd<'_>) -> io::Result<()> {
    match tree::names(made)?.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(NOT_OURS)),
    }
}

/// One version that is to be staged.
struct One<'a> {
    change: &'a Change,
    roots: &'a Roots,
    layer: usize,
    path: &'a Path,
    judged: &'a JudgedEntry,
    number: usize,
}

impl One<'_> {
    /// Makes it as it was judged: kind, mode, times and where a link points are not looked at
    /// again.
    fn stage(
        &self,
        linked: &mut HashMap<(usize, (u64, u64)), String>,
        sync: bool,
    ) -> io::Result<(u64, u64)> {
        let real = self.roots.real(self.layer)?;
        let staging = open(real, self.change.id())?;
        let to = of_step(self.number);
        let node = &self.judged.node;
        let key = (self.layer, node.place);
        match node.kind {
            Kind::File => match linked.get(&key).filter(|_| node.links > 1) {
                Some(first) => linkat(
                    &staging,
                    first.as_str(),
                    &staging,
                    to.as_str(),
                    AtFlags::empty(),
                )?,
                None => {
                    self.copy(staging.as_fd(), OsStr::new(&to), sync)?;
                    if node.links > 1 {
                        linked.insert(key, to.clone());
                    }
                }
            },
            Kind::Link => {
                let target = node.target.as_deref().unwrap_or(Path::new(""));
                symlinkat(target, &staging, to.as_str())?;
                dress_link(staging.as_fd(), OsStr::new(&to), &Dress::from(node))?;
            }
            Kind::Pipe => {
                let mode = Mode::from_raw_mode(node.mode & 0o777);
                mkfifoat(&staging, to.as_str(), mode)?;
                dress_link(staging.as_fd(), OsStr::new(&to), &Dress::from(node))?;
            }
            Kind::Directory | Kind::Socket | Kind::Device => {
                return Err(io::Error::other("it is nothing that is copied"));
            }
        }
        if node.kind == Kind::File && self.judged.same {
            // Only then nobody asked whether the host's version may be replaced.
            let staged = tree::open_file(staging.as_fd(), OsStr::new(&to))?;
            if !content::same(&staged, &tree::open_file_below(real, self.path)?)? {
                return Err(io::Error::other(
                    "it was written meanwhile; apply once more",
                ));
            }
        }
        tree::look(staging.as_fd(), OsStr::new(&to))?
            .map(|made| made.place)
            .ok_or_else(|| Errno::NOENT.into())
    }

    fn copy(&self, to: BorrowedFd<'_>, as_name: &OsStr, sync: bool) -> io::Result<()> {
        let real = self.roots.real(self.layer)?;
        let upper = self.roots.upper(self.layer)?;
        let above = tree::open_below(upper, self.path.parent().unwrap_or(Path::new("")))?;
        let from = tree::open_file(above.as_fd(), self.path.file_name().unwrap_or_default())?;
        let made = create(to, as_name)?;
        content::copy(&from, &made)?;
        access::keep(real, self.path, made.as_fd())?;
        dress(from.as_fd(), made.as_fd(), &Dress::from(&self.judged.node))?;
        if sync {
            fsync(&made)?;
        }
        Ok(())
    }
}

fn create(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(above, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Copies a file with all that belongs to it.
pub(crate) fn copy_file(
    above: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    as_name: &OsStr,
    as_dressed: &Dress,
) -> io::Result<()> {
    let from = tree::open_file(above, name)?;
    let made = create(to, as_name)?;
    content::copy(&from, &made)?;
    dress(from.as_fd(), made.as_fd(), as_dressed)
}

/// Owner, mode and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dress {
    owner: (u32, u32),
    mode: u32,
    modified: Moment,
}

impl From<&Node> for Dress {
    fn from(node: &Node) -> Dress {
        Dress {
            owner: node.owner,
            mode: node.mode,
            modified: node.modified,
        }
    }
}

impl Dress {
    /// Whether something belongs to who is to have it, whatever its group.
    pub(crate) fn is_owner_of(&self, node: &Node) -> bool {
        node.owner.0 == self.owner.0
    }

    /// Gives it to its owner.
    pub(crate) fn give(&self, to: BorrowedFd<'_>) -> io::Result<()> {
        let owner = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
        let now = fstat(to)?;
        if (now.st_uid, now.st_gid) == self.owner {
            return Ok(());
        }
        // A group that is not ours cannot be given: as with a copy.
        match fchown(to, Some(owner.0), Some(owner.1)) {
            Ok(()) => Ok(()),
            Err(Errno::PERM | Errno::INVAL) if now.st_uid == self.owner.0 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Gives a file or directory what it is to be dressed in, and the attributes of another.
pub(crate) fn dress(from: BorrowedFd<'_>, to: BorrowedFd<'_>, node: &Dress) -> io::Result<()> {
    node.give(to)?;
    copy_attributes(from, to)?;
    // After the owner, whose change takes set-id bits away.
    fchmod(to, Mode::from_raw_mode(node.mode))?;
    futimens(to, &times(node.modified))?;
    Ok(())
}

/// Gives a link or a pipe, which is not opened, its owner and its times.
pub(crate) fn dress_link(above: BorrowedFd<'_>, name: &OsStr, node: &Dress) -> io::Result<()> {
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
        &times(node.modified),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Gives an open file or directory the times of a node.
pub(crate) fn set_times(to: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
    Ok(futimens(to, &times(node.modified))?)
}

fn times(modified: Moment) -> Timestamps {
    let time = Timespec {
        tv_sec: modified.seconds,
        tv_nsec: modified.nanoseconds,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

/// Takes over the attributes that a user gives a file for programs to read. No access list:
/// who may read what the user makes in a directory later is not for an agent to say.
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
        let users = name.starts_with(b"user.");
        if !users || MISLEADING.iter().any(|start| name.starts_with(start)) {
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

/// Removes the directory of staged versions with all that is in it. Where anything else is in it,
/// it is another directory of root's, and nothing is removed.
pub(crate) fn remove(root: BorrowedFd<'_>, id: &ChangeId) -> io::Result<()> {
    let removed = open(root, id).and_then(|staging| {
        let names = tree::names(staging.as_fd())?;
        if !names.iter().all(|name| is_of_step(name)) {
            return Err(io::Error::other(NOT_OURS));
        }
        empty_opened(&staging)?;
        Ok(unlinkat(root, name(id), AtFlags::REMOVEDIR)?)
    });
    match removed {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a directory of the real tree that was taken out of it, and so is no deeper than
/// what can be read.
fn empty(above: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    empty_opened(&tree::open_directory(above, name)?)?;
    unlinkat(above, name, AtFlags::REMOVEDIR)?;
    Ok(())
}

fn empty_opened(directory: &OwnedFd) -> io::Result<()> {
    // Its owner may have taken the right to write from himself.
    fchmod(directory, Mode::RWXU)?;
    for inside in tree::names(directory.as_fd())? {
        match unlinkat(directory, &inside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => empty(directory.as_fd(), &inside)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
