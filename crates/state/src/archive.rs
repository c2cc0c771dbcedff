//! The archive of background cages: for each a directory with its output, until it is removed.
//!
//! The audit log says what a cage was and how it ended; the archive has only the rest.

use ironcage_model::CageId;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The file in it to which output is written.
pub const OUTPUT_LOG: &str = "output.log";
/// The file to which that is renamed when it is full.
pub const EARLIER_LOG: &str = "output.log.1";

/// The directories of background cages.
#[derive(Debug, Clone)]
pub struct Archive {
    directory: PathBuf,
}

impl Archive {
    /// In Ironcage's state directory.
    pub fn in_state(state: &Path) -> Self {
        Archive {
            directory: state.join("cages"),
        }
    }

    /// The directory of one cage.
    pub fn of(&self, id: &CageId) -> PathBuf {
        self.directory.join(id.as_str())
    }

    /// Makes the directory of a new cage, for this user alone.
    pub fn make(&self, id: &CageId) -> io::Result<PathBuf> {
        let path = self.of(id);
        let mut builder = std::fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        builder.recursive(false).create(&path)?;
        Ok(path)
    }

    /// The cages that something is kept of.
    pub fn list(&self) -> io::Result<Vec<CageId>> {
        let listed = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for item in listed {
            found.extend(
                item?
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse().ok()),
            );
        }
        found.sort();
        Ok(found)
    }

    /// Whether something is kept of a cage.
    pub fn has(&self, id: &CageId) -> bool {
        self.of(id).is_dir()
    }

    /// Removes what is kept of a cage.
    pub fn remove(&self, id: &CageId) -> io::Result<()> {
        std::fs::remove_dir_all(self.of(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_listed_and_gone_when_it_is_removed() {
        use std::os::unix::fs::PermissionsExt;
        let state = tempfile::tempdir().unwrap();
        let archive = Archive::in_state(state.path());
        let id: CageId = "c0123456789ab".parse().unwrap();
        assert!(archive.list().unwrap().is_empty() && !archive.has(&id));
        let path = archive.make(&id).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        // An id is never used twice.
        archive.make(&id).unwrap_err();
        assert_eq!(archive.list().unwrap(), std::slice::from_ref(&id));
        archive.remove(&id).unwrap();
        assert!(!archive.has(&id));
    }
}
