//! A place of the bench's own: a workspace, Ironcage's state apart from the user's, a file
//! for what the measured programs complain about. Gone when the bench ends.

use crate::BenchError;
use ironcage_model::Printable;
use ironcage_state::remove_tree;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Directories that live as long as the bench.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: TempDir,
    work: PathBuf,
    /// How many trees were put aside.
    aside: Cell<usize>,
}

/// Where trees are put that a run left.
const ASIDE: &str = "aside";

impl Scratch {
    pub(crate) fn new() -> Result<Scratch, BenchError> {
        let parent = std::env::temp_dir();
        let directory = tempfile::Builder::new()
            .prefix("ironcage-bench-")
            .tempdir_in(&parent)
            .map_err(BenchError::file("make a directory in", parent))?;
        let mut scratch = Scratch {
            directory,
            work: PathBuf::new(),
            aside: Cell::new(0),
        };
        scratch.work = scratch.folder("work")?;
        scratch.folder("state")?;
        scratch.folder("config")?;
        scratch.folder(ASIDE)?;
        Ok(scratch)
    }

    /// The workspace that every arm runs in.
    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a directory beside the workspace.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.path(name);
        std::fs::create_dir_all(&path).map_err(BenchError::file("make", &path))?;
        Ok(path)
    }

    /// Takes a tree out of the way, if it is there, until the bench ends. It is not removed between
    /// two runs: ext4 looks in vain at every inode that became free within the last seconds before
    /// it makes a file, and whoever runs next would pay for what the one before it had made.
    pub(crate) fn put_aside(&self, path: &Path) -> Result<(), BenchError> {
        let to = self.path(ASIDE).join(self.aside.get().to_string());
        match std::fs::rename(path, &to) {
            Ok(()) => {
                self.aside.set(self.aside.get() + 1);
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(BenchError::file("move", path)(error)),
        }
    }

    /// Gives what is measured the guest of microVMs that the user has set up. `false` where there is
    /// none.
    pub(crate) fn copy_guest(&self) -> Result<bool, BenchError> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let home = || Some(variable("HOME")?.join(".local/state"));
        let state = variable("XDG_STATE_HOME").or_else(home).unwrap_or_default();
        let guest = state.join("ironcage/microvm");
        if !guest.join("manifest.json").is_file() {
            return Ok(false);
        }
        let place = self.folder("state/ironcage/microvm")?;
        for name in ["kernel", "initramfs", "manifest.json"] {
            let from = guest.join(name);
            std::fs::copy(&from, place.join(name)).map_err(BenchError::file("copy", &from))?;
        }
        Ok(true)
    }

    /// The environment of every arm: short, the same for all, with Ironcage's state and
    /// configuration here, so that a bench neither fills the user's log nor obeys the
    /// user's policy. What leads to the session's systemd stays: a cgroup may hang on it.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let kept = [
            "HOME",
            "USER",
            "LANG",
            "XDG_RUNTIME_DIR",
            "DBUS_SESSION_BUS_ADDRESS",
        ];
        let mut environment: Vec<(OsString, OsString)> = kept
            .into_iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        let own = [
            ("PATH", PathBuf::from("/usr/local/bin:/usr/bin:/bin")),
            ("XDG_STATE_HOME", self.path("state")),
            ("XDG_CONFIG_HOME", self.path("config")),
        ];
        environment.extend(own.map(|(name, value)| (OsString::from(name), value.into())));
        environment
    }

    /// A file for the standard error of one arm.
    pub(crate) fn complaints(&self, name: &str) -> Result<Complaints, BenchError> {
        let path = self.path(&format!("stderr-{name}"));
        let file = File::options()
            .create(true)
            .read(true)
            // Appending, so that what was read can be cut off under a running program.
            .append(true)
            .open(&path)
            .map_err(BenchError::file("open", &path))?;
        Ok(Complaints { path, file })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What overlayfs works in is closed to everybody, and standard removal stops at it. What
        // cannot be removed is left to the directory's own removal, and to the user.
        for name in [ASIDE, "state"] {
            let _ = remove_tree(self.directory.path(), OsStr::new(name));
        }
    }
}

/// What a measured program wrote on its standard error.
#[derive(Debug)]
pub(crate) struct Complaints {
    path: PathBuf,
    file: File,
}

impl Complaints {
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, BenchError> {
        let copy = self.file.try_clone();
        Ok(copy
            .map_err(BenchError::file("copy the descriptor of", &self.path))?
            .into())
    }

    /// What was written since the last time, on one line, safe to print.
    pub(crate) fn take(&mut self) -> String {
        let mut bytes = Vec::new();
        let read = self
            .file
            .rewind()
            .and_then(|()| self.file.read_to_end(&mut bytes))
            .and_then(|_| self.file.set_len(0));
        if let Err(error) = read {
            return format!("(its standard error cannot be read: {error})");
        }
        let lines: Vec<String> = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| Printable::bytes(line).to_string())
            .collect();
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn complaints_are_taken_once_and_made_printable() {
        let scratch = Scratch::new().unwrap();
        let mut complaints = scratch.complaints("x").unwrap();
        let mut writer = File::from(complaints.descriptor().unwrap());
        writer.write_all(b"one\n\x1b[2Jtwo\n").unwrap();
        assert_eq!(complaints.take(), "one; \\u{1b}[2Jtwo");
        writer.write_all(b"three").unwrap();
        assert_eq!(complaints.take(), "three");
        assert_eq!(complaints.take(), "");
    }

    #[test]
    fn scratch_is_gone_after_the_bench() {
        let scratch = Scratch::new().unwrap();
        let work = scratch.work().to_owned();
        assert!(work.is_dir());
        drop(scratch);
        assert!(!work.exists());
    }
}
