//! A directory of the host of which a scope sees only the names that it was leased.
//!
//! Beside the entries of the directory stands another one, in which the leased files are hard links,
//! and which the scope sees in its place. So a command may write a file, make it, replace it by
//! renaming, or remove it, and sees nothing beside it. When nobody has anything of it any more, what
//! stands there under a leased name is put in its place, and the rest goes (ADR 68).

use ironcage_layers::live::{DiskOwner, Identity};
use ironcage_model::Printable;
use ironcage_state::remove_from_inside;
use ironcage_sys::rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Uid, fchown, flock, fstat, linkat,
    mkdirat, mknodat, openat, readlinkat, renameat, statat, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

/// Begins the names of directories that stand in for others.
const PREFIX: &str = ".ironcage-lease-";
/// Entries of a directory that are looked at for what a helper left that was killed.
const LOOKED_AT: usize = 4096;
/// Characters of a link that an error shows.
const LONGEST_SHOWN: usize = 200;

/// A directory with leased names only, in which a scope works.
#[derive(Debug)]
pub(super) struct LeasedNames {
    directory: OwnedFd,
    /// Its own name in that one.
    name: String,
    /// Open and locked for as long as it is used.
    inside: OwnedFd,
    owner: DiskOwner,
    leased: Vec<LeasedName>,
}

#[derive(Debug)]
struct LeasedName {
    name: OsString,
    before: Option<FormerFile>,
}

/// The file that had a name. While it is held, no other file gets its number.
#[derive(Debug)]
struct FormerFile {
    identity: Identity,
    _held: OwnedFd,
}

fn identity_at(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Identity>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
        })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn changed() -> io::Error {
    io::Error::other("the object is not the one that was approved")
}

impl LeasedNames {
    /// Makes one in a directory whose files belong to `owner`, to whom it is given if `give`. In the
    /// outer mount namespace.
    pub(super) fn make(directory: OwnedFd, owner: DiskOwner, give: bool) -> io::Result<Self> {
        sweep(directory.as_fd())?;
        let pid = std::process::id();
        for number in 0..u32::MAX {
            let name = format!("{PREFIX}{pid}-{number}");
            match mkdirat(&directory, name.as_str(), Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error.into()),
            }
            let inside = open_directory(directory.as_fd(), OsStr::new(&name))?;
            flock(&inside, FlockOperation::NonBlockingLockExclusive)?;
            if identity_at(directory.as_fd(), OsStr::new(&name))?
                != Some(Identity::of(inside.as_fd())?)
            {
                // Somebody took it for one that was left.
                continue;
            }
            if give {
                let (uid, gid) = owner;
                fchown(&inside, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
            return Ok(LeasedNames {
                directory,
                name,
                inside,
                owner,
                leased: Vec::new(),
            });
        }
        Err(Errno::EXIST.into())
    }

    /// What is mounted for the scope.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.inside.as_fd()
    }

    /// Puts the file that has a name into it, if there is one: just the one that was decided upon.
    pub(super) fn take_in(&mut self, name: &OsStr, before: Option<Identity>) -> io::Result<()> {
        let former = match before {
            Some(file) => {
                linkat(&self.directory, name, &self.inside, name, AtFlags::empty())?;
                let checked = self.check_linked(name, file);
                if checked.is_err() {
                    unlinkat(&self.inside, name, AtFlags::empty())?;
                }
                Some(checked?)
            }
            None if identity_at(self.directory.as_fd(), name)?.is_some() => return Err(changed()),
            None => None,
        };
        self.leased.push(LeasedName {
            name: name.to_owned(),
            before: former,
        });
        Ok(())
    }

    fn check_linked(&self, name: &OsStr, file: Identity) -> io::Result<FormerFile> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = openat(&self.inside, name, flags, Mode::empty())?;
        let stat = fstat(&held)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if Identity::of(held.as_fd())? != file || !is_file {
            return Err(changed());
        }
        if stat.st_uid != self.owner.0 {
            // One mount gives the agent the files of one owner.
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(FormerFile {
            identity: file,
            _held: held,
        })
    }

    /// Makes a place in it on which something else is mounted that was leased.
    pub(super) fn make_place(&self, below: &Path, is_directory: bool) -> io::Result<()> {
        let names: Vec<&OsStr> = below
            .components()
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        let mut at = self.inside.try_clone()?;
        for (index, name) in names.iter().enumerate() {
            let made = match is_directory || index + 1 < names.len() {
                true => mkdirat(&at, *name, Mode::RWXU),
                false => {
                    let mode = Mode::RUSR | Mode::WUSR;
                    mknodat(&at, *name, FileType::RegularFile, mode, 0)
                }
            };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            if index + 1 < names.len() {
                at = open_directory(at.as_fd(), name)?;
            }
        }
        Ok(())
    }

    /// Puts what stands under each leased name in its place, and removes the rest. Nobody has
    /// anything of it any more. In the outer mount namespace. Returns what could not be placed.
    pub(super) fn finish(self) -> Option<String> {
        let mut failed = Vec::new();
        for leased in &self.leased {
            if let Err(error) = self.place(leased) {
                failed.push(format!("{}: {error}", leased.name.to_string_lossy()));
            }
        }
        if let Err(error) = self.remove() {
            failed.push(format!("{}: {error}", self.name));
        }
        (!failed.is_empty()).then(|| failed.join("; "))
    }

    /// Removes it with all that is in it. A helper that is killed meanwhile leaves nothing beside it,
    /// which nobody would know for ours.
    pub(super) fn remove(&self) -> io::Result<()> {
        let name = OsStr::new(&self.name);
        remove_from_inside(self.directory.as_fd(), name, self.inside.as_fd())
    }

    fn place(&self, leased: &LeasedName) -> io::Result<()> {
        let name = &leased.name;
        let before = leased.before.as_ref().map(|file| file.identity);
        let now = match statat(&self.inside, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => {
                // Removed: only what was leased, and not what took its place since.
                if before.is_some() && identity_at(self.directory.as_fd(), name)? == before {
                    unlinkat(&self.directory, name, AtFlags::empty())?;
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let found = Identity {
            device: now.st_dev,
            inode: now.st_ino,
        };
        if Some(found) == before {
            // Written where it is.
            return Ok(());
        }
        match FileType::from_raw_mode(now.st_mode) {
            FileType::RegularFile | FileType::Directory => {}
            FileType::Symlink => self.check_link(name)?,
            _ => return Err(io::Error::other("it is a socket, a pipe or a device")),
        }
        Ok(renameat(&self.inside, name, &self.directory, name)?)
    }
}

impl LeasedNames {
    /// Checks that a link leads to another leased name. Whoever writes the name on the host later
    /// would write where the link leads, which the lease was not for.
    fn check_link(&self, name: &OsStr) -> io::Result<()> {
        let target = readlinkat(&self.inside, name, Vec::new())?;
        let mut leased = self.leased.iter();
        if leased.any(|leased| leased.name.as_bytes() == target.as_bytes()) {
            return Ok(());
        }
        let shown: String = target
            .to_string_lossy()
            .chars()
            .take(LONGEST_SHOWN)
            .collect();
        Err(io::Error::other(format!(
            "it is a link to {}, which was not leased with it",
            Printable::new(&shown)
        )))
    }
}

fn open_directory(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

/// Removes what helpers left that were killed: what their commands wrote goes with it.
fn sweep(directory: BorrowedFd<'_>) -> io::Result<()> {
    let listed = open_directory(directory, OsStr::new("."));
    let Ok(listed) = listed else {
        // It may be written and not listed.
        return Ok(());
    };
    for entry in Dir::new(listed)?.take(LOOKED_AT) {
        let entry = entry?;
        let name = OsStr::new(entry.file_name().to_str().unwrap_or_default());
        if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let Ok(left) = open_directory(directory, name) else {
            continue;
        };
        let ours = fstat(&left)?.st_uid == fstat(directory)?.st_uid
            || fstat(&left)?.st_uid == ironcage_sys::rustix::process::geteuid().as_raw();
        if ours && flock(&left, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove_from_inside(directory, name, left.as_fd())?;
        }
    }
    Ok(())
}
