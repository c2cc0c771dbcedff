//! Locks of git's own: a file beside the one that is to change, which takes its place.
//!
//! One that we leave behind when we are killed would lock the user out. So it is first written
//! down which one is taken, and a second name of the same file shows that it is ours.

use super::refs::{give, make_directories};
use crate::content::own_text;
use crate::error::{Doing as _, WorkspaceError};
use crate::tree;
use crate::{Change, path_text};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{AtFlags, Mode, fsync, linkat, renameat, unlinkat};
use ironcage_sys::rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const NOTE: &str = "git-lock";

/// Takes locks in one git directory.
pub(crate) struct Locks<'a> {
    change: &'a Change,
    /// The git directory's real path.
    git: PathBuf,
    owner: (u32, u32),
}

/// A file that is locked.
pub(crate) struct Locked<'a> {
    locks: &'a Locks<'a>,
    above: OwnedFd,
    name: String,
    file: File,
}

fn second_name(change: &Change) -> String {
    format!(".ironcage-lock-{}", change.id())
}

impl<'a> Locks<'a> {
    pub(crate) fn new(change: &'a Change, git: PathBuf, owner: (u32, u32)) -> Locks<'a> {
        Locks { change, git, owner }
    }

    fn note(&self) -> PathBuf {
        self.change.directory().join(NOTE)
    }

    /// Takes the lock of a file below the git directory. Who finds it taken leaves: git does not
    /// wait either.
    pub(crate) fn take(&'a self, git: BorrowedFd<'_>, path: &Path) -> io::Result<Locked<'a>> {
        let above = make_directories(git, path.parent().unwrap_or(Path::new("")))?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        std::fs::write(self.note(), path_text::show(&self.git.join(path)))?;
        step();
        let own = second_name(self.change);
        let mode = Mode::from_raw_mode(0o644);
        let file = tree::create_temporary(above.as_fd(), &own, mode)?;
        step();
        let lock = format!("{name}.lock");
        match linkat(
            &above,
            own.as_str(),
            &above,
            lock.as_str(),
            AtFlags::empty(),
        ) {
            Ok(()) => {
                step();
                Ok(Locked {
                    locks: self,
                    above,
                    name,
                    file,
                })
            }
            Err(error) => {
                unlinkat(&above, own.as_str(), AtFlags::empty())?;
                std::fs::remove_file(self.note())?;
                match error {
                    Errno::EXIST => Err(io::Error::other("another git command has it locked")),
                    error => Err(error.into()),
                }
            }
        }
    }
}

impl Locked<'_> {
    /// Puts new content in place of the file.
    pub(crate) fn replace(mut self, content: &[u8]) -> io::Result<()> {
        let written = self.write(content);
        step();
        self.forget(written.is_err());
        written
    }

    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.file.write_all(content)?;
        give(&self.file, self.locks.owner)?;
        fsync(&self.file)?;
        step();
        renameat(
            &self.above,
            self.lock_name(),
            &self.above,
            self.name.as_str(),
        )?;
        Ok(())
    }

    /// Removes the file.
    pub(crate) fn remove(self) -> io::Result<()> {
        let removed = match unlinkat(&self.above, self.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        };
        step();
        self.forget(true);
        removed
    }

    /// Leaves the file as it is.
    pub(crate) fn release(self) {
        self.forget(true);
    }

    fn lock_name(&self) -> String {
        format!("{}.lock", self.name)
    }

    fn forget(&self, locked: bool) {
        // What cannot be removed now is by the next command, which finds the note.
        if locked {
            let _ = unlinkat(&self.above, self.lock_name(), AtFlags::empty());
        }
        let own = second_name(self.locks.change);
        if unlinkat(&self.above, own, AtFlags::empty()).is_ok() {
            let _ = std::fs::remove_file(self.locks.note());
        }
    }
}

/// Removes a lock that was left by one who was killed. The caller holds the change's lock.
pub(crate) fn recover(change: &Change) -> Result<(), WorkspaceError> {
    let note = change.directory().join(NOTE);
    let text = match own_text(&note) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).doing("read", &note),
    };
    if let Some(path) = path_text::parse(&text)
        && let (Some(above), Some(name)) = (path.parent(), path.file_name())
        && let Ok(above) = tree::open_root(above)
    {
        let own = second_name(change);
        let lock = format!("{}.lock", name.to_string_lossy());
        let ours = tree::look(above.as_fd(), OsStr::new(&own)).doing("look at", &path)?;
        let taken = tree::look(above.as_fd(), OsStr::new(&lock)).doing("look at", &path)?;
        if let (Some(ours), Some(taken)) = (&ours, &taken)
            && ours.place == taken.place
        {
            unlinkat(&above, lock, AtFlags::empty()).doing("unlock", &path)?;
        }
        if ours.is_some() {
            unlinkat(&above, own, AtFlags::empty()).doing("unlock", &path)?;
        }
    }
    std::fs::remove_file(&note).doing("remove", &note)
}
