//! Files that are made for the user: whole or not at all, and never over another without a word.

use crate::error::CliError;
use ironcage_model::Printable;
use ironcage_sys::rustix::fs::{CWD, RenameFlags, renameat_with};
use ironcage_sys::rustix::io::Errno;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A file that is written and not in its place yet; gone when it is dropped before.
pub(crate) struct Staged {
    place: PathBuf,
    file: PathBuf,
    put: bool,
}

fn cannot(path: &Path, error: impl std::fmt::Display) -> CliError {
    CliError::new(format!("cannot write {}: {error}", Printable::new(path)))
}

fn exists(path: &Path) -> CliError {
    CliError::new(format!("{} exists already", Printable::new(path)))
        .hint("name another, or replace it with --force")
}

/// Whether a file can be written there, as far as it can be known beforehand.
pub(crate) fn check(path: &Path, force: bool) -> Result<(), CliError> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => Err(cannot(path, "it is a directory")),
        Ok(_) if !force => Err(exists(path)),
        Ok(_) => Ok(()),
        Err(_) if directory(path).is_dir() => Ok(()),
        Err(error) => Err(cannot(path, error)),
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Writes a text beside its place.
pub(crate) fn stage(place: &Path, text: &str) -> Result<Staged, CliError> {
    let Some(name) = place.file_name() else {
        return Err(cannot(place, "it has no name"));
    };
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.toml", std::process::id()));
    let file = directory(place).join(beside);
    // `create_new`: an existing file, or a link in its place, is never written through.
    let mut open = OpenOptions::new();
    let opened = open.write(true).create_new(true).mode(0o644).open(&file);
    let mut opened = opened.map_err(|error| cannot(&file, error))?;
    let staged = Staged {
        place: place.to_owned(),
        file,
        put: false,
    };
    let done = opened.write_all(text.as_bytes());
    let done = done.and_then(|()| opened.sync_all());
    done.map_err(|error| cannot(&staged.file, error))?;
    Ok(staged)
}

impl Staged {
    /// Where it is now.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// Puts it in its place.
    pub(crate) fn put(mut self, force: bool) -> Result<(), CliError> {
        let flags = match force {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        match renameat_with(CWD, &self.file, CWD, &self.place, flags) {
            Ok(()) => {
                self.put = true;
                Ok(())
            }
            Err(Errno::EXIST) => Err(exists(&self.place)),
            Err(error) => Err(cannot(&self.place, error)),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.put {
            // Nothing is left to be done about one that stays.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}
