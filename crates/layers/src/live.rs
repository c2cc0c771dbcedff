//! Mounts that come and go in a running cage: what a lease on files is made of.
//!
//! Two mount namespaces are at work. In the *outer* one the host's tree is seen, and a part of
//! it is cloned; in the *cage's* one the clone is attached, flipped and taken off. Each function
//! says in which the caller must be. No path is resolved twice: a source is compared with what
//! was decided upon, a target is a handle that follows no link, and the mount is known by its
//! own descriptor from then on.

use crate::error::{LayerError, shown};
use crate::view::{clone_tree, doing};
use ironcage_model::Right;
use ironcage_sys::faults::lease_step as step;
use ironcage_sys::mount::{
    AttributeChange, MountAttributes, open_below, open_source, set_attributes,
};
use ironcage_sys::rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, mkdirat, mknodat, openat2,
    statx, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use ironcage_sys::rustix::process::fchdir;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Which file or directory was decided upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

impl Identity {
    /// That of what a descriptor stands for.
    pub fn of(handle: BorrowedFd<'_>) -> io::Result<Identity> {
        let stat = fstat(handle)?;
        Ok(Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

/// A part of the host's tree that is attached nowhere yet.
#[derive(Debug)]
pub struct Source {
    tree: OwnedFd,
    directory: bool,
}

/// Whose files a source holds on disk.
pub type DiskOwner = (u32, u32);

/// Opens what was decided upon, in the outer namespace; refused where something else has taken
/// its place since, or a link leads there.
pub fn open_decided(path: &Path, decided: Identity) -> Result<(OwnedFd, DiskOwner), LayerError> {
    let action = || format!("open {}", shown(path));
    let handle = doing(open_source(path), action)?;
    let stat = doing(fstat(&handle), action)?;
    let found = Identity {
        device: stat.st_dev,
        inode: stat.st_ino,
    };
    if found != decided {
        let changed = io::Error::other("the object is not the one that was approved");
        return doing(Err(changed), action);
    }
    Ok((handle, (stat.st_uid, stat.st_gid)))
}

/// Makes views read-only in which only leases write, in the cage's namespace: there this can be
/// taken back by nobody in the cage, and where the view was built it stays writable.
pub fn lock<'a>(places: impl Iterator<Item = &'a Path>) -> Result<(), LayerError> {
    for place in places {
        let action = || format!("lock {}", shown(place));
        let root = doing(open_source(Path::new("/")), action)?;
        let view = doing(open_below(root.as_fd(), place), action)?;
        let change = AttributeChange {
            set: MountAttributes::READ_ONLY,
            ..AttributeChange::default()
        };
        doing(set_attributes(view.as_fd(), change), action)?;
    }
    Ok(())
}

/// Clones a part of such a view, with all that is mounted in it, where it was built: in the
/// namespace of `root`, which is the caller's.
pub fn clone_part(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, LayerError> {
    let action = || format!("open {} in the view", shown(path));
    let handle = doing(open_below(root, path), action)?;
    let source = clone_decided(handle.as_fd(), path, Right::Write, None)?;
    Ok(source.tree)
}

impl Source {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.directory
    }

    /// A part of a view that was cloned already.
    pub fn of_view(tree: OwnedFd) -> Result<Source, LayerError> {
        let stat = doing(fstat(&tree), || "examine the leased object".into())?;
        Ok(Source {
            directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
            tree,
        })
    }
}

/// Clones it as a mount with just this right, in the outer namespace.
pub fn clone_decided(
    handle: BorrowedFd<'_>,
    path: &Path,
    right: Right,
    id_map: Option<BorrowedFd<'_>>,
) -> Result<Source, LayerError> {
    let stat = doing(fstat(handle), || format!("look at {}", shown(path)))?;
    // With everything below it: without, a user's clone over mounts of the host is refused.
    let tree = clone_tree(handle, true, path)?;
    let set = MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES);
    let set = match right {
        Right::Read => set.with(MountAttributes::READ_ONLY),
        Right::Write => set,
    };
    let change = AttributeChange {
        set,
        id_map,
        recursive: true,
        private: true,
        ..AttributeChange::default()
    };
    doing(set_attributes(tree.as_fd(), change), || {
        format!("restrict the mount of {}", shown(path))
    })?;
    Ok(Source {
        tree,
        directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
    })
}

/// A mount in a running cage.
#[derive(Debug)]
pub struct LiveMount {
    tree: OwnedFd,
    /// The directory in which its mount point stands, and that one's name.
    parent: OwnedFd,
    name: OsString,
    id: u64,
    /// Nodes of the cage's own storage that were made for it, the deepest last.
    made: Vec<PathBuf>,
}

/// What became of an attempt to take a mount off.
#[derive(Debug)]
pub enum Removal {
    /// It is gone, and the kernel had no user of it: no descriptor, mapping or directory.
    Proved,
    /// It is gone from the cage's view; who has something open keeps that.
    Detached,
    /// Somebody uses it; it is still there.
    Busy(LiveMount),
}

/// The number by which the kernel tells mounts apart, as `fdinfo` has it.
pub fn mount_id(handle: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = statx(handle, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(stat.stx_mnt_id)
}

impl LiveMount {
    /// Attaches a source at the same path inside, in the cage's namespace. `root` is the cage's
    /// root; `storage` a writable handle of the storage that this root is on, for mount points
    /// that are not there.
    pub fn attach(
        source: Source,
        root: BorrowedFd<'_>,
        storage: BorrowedFd<'_>,
        path: &Path,
    ) -> Result<LiveMount, LayerError> {
        let action = || format!("mount at {} in the cage", shown(path));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return doing(Err(io::Error::from(io::ErrorKind::InvalidInput)), action);
        };
        let made = match open_below(root, path) {
            Ok(_) => Vec::new(),
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                lay_out(storage, path, source.directory)?
            }
            Err(error) => return doing(Err(error), action),
        };
        step();
        let attached = attach_at(&source, root, parent, name);
        match attached {
            Ok((parent, id)) => Ok(LiveMount {
                tree: source.tree,
                parent,
                name: name.to_owned(),
                id,
                made,
            }),
            Err(error) => {
                clear(storage, &made);
                doing(Err(error), action)
            }
        }
    }

    /// The kernel's number for it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Lets nothing be written or executed through it any more. `false` while somebody has
    /// something open for writing: so when this is `true`, nobody has. In the cage's namespace,
    /// and before anything is taken off: afterwards it could not be said any more. `executes` is
    /// whether programs in it are had without the lease.
    pub fn flip(&self, executes: bool) -> Result<bool, LayerError> {
        let read_only = MountAttributes::READ_ONLY;
        let change = AttributeChange {
            set: match executes {
                true => read_only,
                false => read_only.with(MountAttributes::NO_EXEC),
            },
            recursive: true,
            ..AttributeChange::default()
        };
        match set_attributes(self.tree.as_fd(), change) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(false),
            Err(error) => doing(Err(error), || "make a lease read-only".into()),
        }
    }

    /// Takes it off where nobody uses it, in the cage's namespace. The kernel refuses that while
    /// there is any user, however hidden: a descriptor in flight counts like an open one. An
    /// error means that it is not known where it is.
    pub fn remove(
        self,
        storage: BorrowedFd<'_>,
        links: BorrowedFd<'_>,
    ) -> Result<Removal, LayerError> {
        // From outside of the cage its mount point can be renamed, and it goes along.
        if reopen(self.parent.as_fd(), &self.name, self.id).is_err() {
            return self.detach(storage, links).map(|()| Removal::Detached);
        }
        let LiveMount {
            tree,
            parent,
            name,
            id,
            made,
        } = self;
        // Our own handle would be a user like any other.
        drop(tree);
        step();
        let taken = fchdir(&parent)
            .and_then(|()| unmount(name.as_os_str(), UnmountFlags::NOFOLLOW))
            .and_then(|()| fchdir(storage));
        step();
        if taken.is_ok() {
            drop(parent);
            clear(storage, &made);
            return Ok(Removal::Proved);
        }
        let tree = doing(reopen(parent.as_fd(), &name, id), || "find a lease".into())?;
        Ok(Removal::Busy(LiveMount {
            tree,
            parent,
            name,
            id,
            made,
        }))
    }

    /// Takes off what is mounted below it, where nobody is who could see what that hides. `root` is
    /// the cage's root, `list` its list of mounts (`mountinfo`). `false` where one is used.
    pub fn take_apart(
        &self,
        root: BorrowedFd<'_>,
        storage: BorrowedFd<'_>,
        list: &str,
    ) -> Result<bool, LayerError> {
        for id in mounts_below(list, self.id).into_iter().rev() {
            let Some(place) = place_of(list, id) else {
                return Ok(false);
            };
            let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
                return Ok(false);
            };
            let action = || format!("take {} off", shown(&place));
            let parent = doing(open_below(root, parent), action)?;
            doing(reopen(parent.as_fd(), name, id), action)?;
            let taken = fchdir(&parent).and_then(|()| unmount(name, UnmountFlags::NOFOLLOW));
            doing(fchdir(storage), || "leave a directory".into())?;
            match taken {
                Ok(()) => step(),
                Err(Errno::BUSY) => return Ok(false),
                Err(error) => return doing(Err(error), action),
            }
        }
        Ok(true)
    }

    /// Takes it out of the cage's view, whoever uses it, in the cage's namespace. `links` is the
    /// caller's own `fd` directory of a process file system that shows it.
    pub fn detach(self, storage: BorrowedFd<'_>, links: BorrowedFd<'_>) -> Result<(), LayerError> {
        let number = self.tree.as_raw_fd().to_string();
        // By descriptor: a path could be steered to another mount.
        let taken = fchdir(links).and_then(|()| unmount(number.as_str(), UnmountFlags::DETACH));
        doing(taken, || "unmount a lease".into())?;
        doing(fchdir(storage), || "leave a directory".into())?;
        clear(storage, &self.made);
        Ok(())
    }
}

/// The mount at a name of a directory, if it is the one.
fn reopen(parent: BorrowedFd<'_>, name: &OsStr, id: u64) -> io::Result<OwnedFd> {
    let tree = open_below(parent, Path::new(name))?;
    if mount_id(tree.as_fd())? == id {
        return Ok(tree);
    }
    Err(io::Error::other("it is no longer there"))
}

fn attach_at(
    source: &Source,
    root: BorrowedFd<'_>,
    parent: &Path,
    name: &OsStr,
) -> io::Result<(OwnedFd, u64)> {
    let parent = open_below(root, parent)?;
    let place = open_below(parent.as_fd(), Path::new(name))?;
    let from = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    let to = MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    // Asked before: after the move nothing may fail that leaves the mount where it is.
    let id = mount_id(source.tree.as_fd())?;
    move_mount(&source.tree, "", &place, "", from | to)?;
    step();
    Ok((parent, id))
}

/// Makes the nodes of a path on the cage's storage that are not there, following no link and
/// going into no mount. Returns which.
fn lay_out(
    storage: BorrowedFd<'_>,
    path: &Path,
    directory: bool,
) -> Result<Vec<PathBuf>, LayerError> {
    let mut made = Vec::new();
    let relative = path.strip_prefix("/").unwrap_or(path);
    let mut ancestors: Vec<&Path> = relative
        .ancestors()
        .filter(|part| !part.as_os_str().is_empty())
        .collect();
    ancestors.reverse();
    for part in ancestors {
        let result = make_node(storage, part, directory || part != relative);
        match result {
            Ok(true) => made.push(part.to_owned()),
            Ok(false) => {}
            Err(error) => {
                clear(storage, &made);
                return doing(Err(error), || format!("make {} in the cage", shown(path)));
            }
        }
    }
    Ok(made)
}

/// `false` where something is there already.
fn make_node(storage: BorrowedFd<'_>, path: &Path, directory: bool) -> io::Result<bool> {
    let (parent, name) = open_parent(storage, path)?;
    let made = match directory {
        true => mkdirat(&parent, name, Mode::from_raw_mode(0o755)),
        false => {
            let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
            mknodat(&parent, name, FileType::RegularFile, mode, 0)
        }
    };
    match made {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn open_parent<'a>(storage: BorrowedFd<'_>, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let around = match path.parent() {
        Some(around) if !around.as_os_str().is_empty() => around,
        _ => Path::new("."),
    };
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat2(storage, around, flags, Mode::empty(), resolve)?;
    Ok((parent, name))
}

/// Removes nodes that were made for a mount; those that somebody else uses by now stay.
fn clear(storage: BorrowedFd<'_>, made: &[PathBuf]) {
    for path in made.iter().rev() {
        if let Ok((parent, name)) = open_parent(storage, path) {
            let gone = unlinkat(&parent, name, AtFlags::REMOVEDIR);
            if gone == Err(Errno::NOTDIR) {
                let _ = unlinkat(&parent, name, AtFlags::empty());
            }
        }
    }
}

/// The mounts below a mount, as the list of a mount namespace has them (`mountinfo`).
pub fn mounts_below(list: &str, id: u64) -> Vec<u64> {
    let pairs: Vec<(u64, u64)> = list
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let own = words.next()?.parse().ok()?;
            Some((own, words.next()?.parse().ok()?))
        })
        .collect();
    let mut found = vec![id];
    let mut next = 0;
    while let Some(above) = found.get(next).copied() {
        let below = pairs
            .iter()
            .filter(|(own, parent)| *parent == above && *own != above);
        found.extend(below.map(|(own, _)| *own));
        next += 1;
    }
    found.split_off(1)
}

/// Where a mount is, as the list of a mount namespace has it. Some bytes are written in it as a
/// backslash and three octal digits.
fn place_of(list: &str, id: u64) -> Option<PathBuf> {
    let line = list.lines().find(|line| {
        let own = line.split(' ').next().and_then(|word| word.parse().ok());
        own == Some(id)
    })?;
    let written = line.split(' ').nth(4)?;
    let mut place = Vec::new();
    let mut rest = written.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(meant) => {
                place.push(meant);
                rest = after.get(3..)?;
            }
            None => {
                place.push(*byte);
                rest = after;
            }
        }
    }
    Some(OsString::from_vec(place).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_where_the_list_says_whatever_its_name() {
        let list = "1 0 0:1 / / rw - tmpfs x rw\n5 1 0:2 / /a\\040b/c\\134d rw - tmpfs x rw\n";
        assert_eq!(place_of(list, 5), Some("/a b/c\\d".into()));
        assert_eq!(place_of(list, 1), Some("/".into()));
        assert_eq!(place_of(list, 7), None);
    }

    #[test]
    fn mounts_below_are_found_at_any_depth_and_others_are_not() {
        let list = "1 0 0:1 / / rw - tmpfs x rw\n5 1 0:2 / /a rw - tmpfs x rw\n7 5 0:3 / /a/b rw - tmpfs x rw\n8 7 0:4 / /a/b/c rw - tmpfs x rw\n9 1 0:5 / /d rw - tmpfs x rw\ngarbage\n";
        assert_eq!(mounts_below(list, 5), [7, 8]);
        assert_eq!(mounts_below(list, 9), Vec::<u64>::new());
    }

    #[test]
    fn nodes_are_made_once_and_taken_away_as_far_as_nobody_else_uses_them() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("srv")).unwrap();
        std::os::unix::fs::symlink("/etc", place.path().join("link")).unwrap();
        let storage = std::fs::File::open(place.path()).unwrap();
        let made = lay_out(storage.as_fd(), Path::new("/srv/a/b"), true).unwrap();
        assert_eq!(made, [PathBuf::from("srv/a"), "srv/a/b".into()]);
        std::fs::create_dir(place.path().join("srv/a/other")).unwrap();
        clear(storage.as_fd(), &made);
        assert!(place.path().join("srv/a").exists());
        assert!(!place.path().join("srv/a/b").exists());
        let file = lay_out(storage.as_fd(), Path::new("/srv/f"), false).unwrap();
        assert!(place.path().join("srv/f").is_file());
        clear(storage.as_fd(), &file);
        assert!(!place.path().join("srv/f").exists());
        // A link leads nowhere.
        assert!(lay_out(storage.as_fd(), Path::new("/link/x"), true).is_err());
        assert!(lay_out(storage.as_fd(), Path::new("/../x"), true).is_err());
    }
}
