//! One directory of a cgroup file system, made by us and held by a descriptor.

use super::CgroupError;
use ironcage_sys::rustix;
use ironcage_sys::spent::close_later;
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often `remove` tries, doubling the wait from 50 us: some 13 ms in all.
const REMOVAL_TRIES: u32 = 9;
const FIRST_WAIT: Duration = Duration::from_micros(50);
/// A sweeper can take a new group away before it is locked; more than once is no accident.
const MAKING_TRIES: u32 = 3;
const LOCKING_TRIES: u32 = 10;

/// A group of ours.
#[derive(Debug)]
pub(super) struct Group {
    path: PathBuf,
    directory: OwnedFd,
    /// The file by which processes enter it, opened for writing. Not there any more where the
    /// process that enters has taken it.
    entry: Option<OwnedFd>,
    removed: bool,
}

impl Group {
    /// Makes a group and locks its directory for as long as this process lives, so that `sweep`
    /// in another process can tell it from one whose maker was killed.
    pub(super) fn make(parent: &Path, name: &str, entry: &str) -> Result<Group, CgroupError> {
        let path = parent.join(name);
        let failed = |errno: Errno| CgroupError::Make {
            path: path.clone(),
            source: errno.into(),
        };
        let mut last = Errno::NOENT;
        for _ in 0..MAKING_TRIES {
            rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755)).map_err(failed)?;
            match open_and_lock(&path, entry) {
                Ok((directory, entry)) => {
                    return Ok(Group {
                        path,
                        directory,
                        entry: Some(entry),
                        removed: false,
                    });
                }
                Err(errno) => last = errno,
            }
        }
        Err(failed(last))
    }

    /// A directory that stands for a group, for tests without a cgroup file system.
    #[cfg(test)]
    pub(super) fn adopt(path: &Path) -> Group {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).unwrap();
        Group {
            path: path.to_owned(),
            entry: None,
            directory,
            removed: true,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(super) fn has(&self, file: &str) -> bool {
        rustix::fs::accessat(&self.directory, file, Access::EXISTS, AtFlags::empty()).is_ok()
    }

    pub(super) fn entry(&self) -> Option<&OwnedFd> {
        self.entry.as_ref()
    }

    pub(super) fn take_entry(&mut self) -> Option<OwnedFd> {
        self.entry.take()
    }

    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        write_at(self.directory(), file, value)
            .map_err(|errno| self.write_error(file, value, errno))
    }

    /// Writes to a file that not every kernel has; says whether it was there.
    pub(super) fn write_if_there(&self, file: &str, value: &str) -> Result<bool, CgroupError> {
        match write_at(self.directory(), file, value) {
            Ok(()) => Ok(true),
            // Swap accounting that is compiled in but switched off answers EOPNOTSUPP.
            Err(Errno::NOENT | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(self.write_error(file, value, errno)),
        }
    }

    pub(super) fn read(&self, file: &str) -> Result<String, CgroupError> {
        read_at(self.directory(), file).map_err(|errno| CgroupError::Read {
            path: self.path.join(file),
            source: errno.into(),
        })
    }

    /// Removes the group, waiting a little while processes in it are still exiting.
    pub(super) fn remove(&mut self) -> Result<(), CgroupError> {
        if self.removed {
            return Ok(());
        }
        let mut wait = FIRST_WAIT;
        let mut tries = 0;
        loop {
            match rustix::fs::unlinkat(CWD, &self.path, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {
                    self.removed = true;
                    return Ok(());
                }
                Err(Errno::BUSY) if tries < REMOVAL_TRIES => {
                    tries += 1;
                    std::thread::sleep(wait);
                    wait *= 2;
                }
                Err(errno) => {
                    return Err(CgroupError::Remove {
                        path: self.path.clone(),
                        source: errno.into(),
                    });
                }
            }
        }
    }

    fn write_error(&self, file: &str, value: &str, errno: Errno) -> CgroupError {
        CgroupError::Write {
            path: self.path.join(file),
            value: value.to_owned(),
            source: errno.into(),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Opens a group's directory and locks it, and opens its entry. Fails where it has been removed in
/// between.
fn open_and_lock(path: &Path, entry: &str) -> Result<(OwnedFd, OwnedFd), Errno> {
    let directory = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // A lock held by somebody else is a sweeper's, who is about to remove the group or to let go.
    // Anybody who can read the directory can hold one, so it is not waited for without end; a
    // group without its maker's lock is only swept when it is empty.
    for _ in 0..LOCKING_TRIES {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(FIRST_WAIT),
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let entry = rustix::fs::openat(&directory, entry, flags, Mode::empty())?;
    Ok((directory, entry))
}

/// Makes controllers available to the children of a group that is ours by delegation.
pub(super) fn enable_controllers<'a>(
    parent: &Path,
    controllers: impl Iterator<Item = &'a str>,
) -> Result<(), CgroupError> {
    let value = controllers
        .map(|name| format!("+{name}"))
        .collect::<Vec<_>>()
        .join(" ");
    let path = parent.join("cgroup.subtree_control");
    std::fs::write(&path, &value).map_err(|source| CgroupError::Write {
        path,
        value,
        source,
    })
}

fn write_at(directory: BorrowedFd<'_>, file: &str, value: &str) -> Result<(), Errno> {
    let file = rustix::fs::openat(
        directory,
        file,
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // The kernel takes such a value in one write or refuses it.
    // A traced process gets signals that others would not, such as that a child has ended, and the
    // kernel lets one interrupt a new limit on memory.
    let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes()));
    close_later(file);
    written.map(drop)
}

fn read_at(directory: BorrowedFd<'_>, file: &str) -> Result<String, Errno> {
    let file = rustix::fs::openat(
        directory,
        file,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut bytes = Vec::with_capacity(4096);
    loop {
        bytes.reserve(2048);
        let read = rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))?;
        // The kernel gives these files in one piece: what does not fill the buffer was all.
        if read < 2048 {
            break;
        }
    }
    close_later(file);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
