//! Writes a new file for the user: all of it or nothing, and never over another without --force.

use crate::error::CliError;
use crate::failure::FailureCode;
use ironcage_model::Printable;
use ironcage_sys::rustix::fs::{CWD, RenameFlags, renameat_with};
use ironcage_sys::rustix::io::Errno;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A temporary file beside its final path; removed on drop unless it was renamed there.
pub(crate) struct StagedFile {
    place: PathBuf,
    file: PathBuf,
    renamed: bool,
}

fn cannot(path: &Path, error: impl std::fmt::Display) -> CliError {
    CliError::new(format!("cannot write {}: {error}", Printable::new(path)))
}

fn exists(path: &Path) -> CliError {
    CliError::new(format!(
        "cannot write {}: the file exists",
        Printable::new(path)
    ))
    .with_failure(FailureCode::FileExists)
    .hint("name another file, or use --force to overwrite it")
}

/// Checks early whether the file can be written.
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

/// Writes the text to a temporary file beside `place`.
pub(crate) fn stage(place: &Path, text: &str) -> Result<StagedFile, CliError> {
    let Some(name) = place.file_name() else {
        return Err(cannot(place, "the path has no file name"));
    };
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.toml", std::process::id()));
    let file = directory(place).join(beside);
    // `create_new`: never write through an existing file or link.
    let mut open = OpenOptions::new();
    let opened = open.write(true).create_new(true).mode(0o644).open(&file);
    let mut opened = opened.map_err(|error| cannot(&file, error))?;
    let staged = StagedFile {
        place: place.to_owned(),
        file,
        renamed: false,
    };
    let done = opened.write_all(text.as_bytes());
    let done = done.and_then(|()| opened.sync_all());
    done.map_err(|error| cannot(&staged.file, error))?;
    Ok(staged)
}

impl StagedFile {
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// Renames it to its final path.
    pub(crate) fn put(mut self, force: bool) -> Result<(), CliError> {
        let flags = match force {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        match renameat_with(CWD, &self.file, CWD, &self.place, flags) {
            Ok(()) => {
                self.renamed = true;
                Ok(())
            }
            Err(Errno::EXIST) => Err(exists(&self.place)),
            Err(error) => Err(cannot(&self.place, error)),
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing more can be done about a file that stays.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}
