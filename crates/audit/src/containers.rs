//! Containers of engines: which logs are theirs, and where their runtime keeps them.
//!
//! No supervisor lives beside such a container: each command of its runtime opens the log, writes
//! and ends. A note beside the logs says that the container exists, and so that its log is not over.

use crate::error::Error;
use crate::reader::open_to_read;
use ironcage_model::CageId;
use ironcage_sys::rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest note that is read: two paths, in JSON.
const LARGEST: u64 = 64 << 10;

/// A container that an engine made with Ironcage's runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// The name of its log.
    pub cage: CageId,
    /// Its ID, as the engine has it.
    pub id: String,
    /// The directory in which the runtime keeps it and others.
    pub root: PathBuf,
    /// How many further commands were started in it.
    #[serde(default)]
    pub execs: u32,
    /// When it was created, in microseconds since the epoch.
    #[serde(default)]
    pub since: u64,
}

impl Container {
    /// Whether its runtime may keep it. It does not where the runtime's directory has nothing of it,
    /// or where that directory went with an earlier boot of the host. One that cannot be looked at, or
    /// is not there in this mount namespace, proves nothing.
    pub fn exists(&self) -> bool {
        let is_absent = |path: &Path| {
            let found = path.symlink_metadata();
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if !is_absent(&self.root.join(&self.id)) {
            return true;
        }
        is_absent(&self.root) && self.since >= booted()
    }

    /// Removes the notes about containers that a runtime does not keep in this directory any more, as
    /// a host leaves them that went down. Only for the runtime itself, which sees its directory.
    pub fn forget_others(dir: &Path, root: &Path) -> Result<(), Error> {
        for other in containers(dir)? {
            if other.root == root && !other.exists() {
                Container::forget(dir, &other.cage)?;
            }
        }
        Ok(())
    }

    /// Writes the note, whole or not at all, for this user alone.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        let path = note(dir, &self.cage);
        let failed = |source: io::Error| Error::Write {
            path: path.clone(),
            source,
        };
        let notes = notes(dir);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&notes).map_err(|source| Error::MakeDir {
            path: notes.clone(),
            source,
        })?;
        let text = serde_json::to_vec(self).map_err(|source| Error::Encode { source })?;
        let new = notes.join(format!("{}.new", self.cage));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)
    }

    /// Removes the note. One that is not there needs no removing.
    pub fn forget(dir: &Path, cage: &CageId) -> Result<(), Error> {
        let path = note(dir, cage);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|source| Error::Remove { path, source }),
        }
    }
}

/// When the host was started, in microseconds since the epoch.
fn booted() -> u64 {
    let up = clock_gettime(ClockId::Boottime);
    let up = Duration::new(
        u64::try_from(up.tv_sec).unwrap_or_default(),
        u32::try_from(up.tv_nsec).unwrap_or_default(),
    );
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default().saturating_sub(up);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The containers of which there is a note, in the order of cage IDs.
pub fn containers(dir: &Path) -> Result<Vec<Container>, Error> {
    let notes = notes(dir);
    let failed = |source| Error::Read {
        path: notes.clone(),
        source,
    };
    let entries = match std::fs::read_dir(&notes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut cages: Vec<CageId> = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        cages.extend(name.to_str().and_then(|name| name.parse().ok()));
    }
    cages.sort();
    let mut found = Vec::new();
    for cage in cages {
        // One that is removed meanwhile is not there.
        found.extend(container(dir, &cage)?);
    }
    Ok(found)
}

/// The container to which a log belongs.
pub fn container(dir: &Path, cage: &CageId) -> Result<Option<Container>, Error> {
    let path = note(dir, cage);
    let Some(file) = open_to_read(&path)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    let read = file.take(LARGEST).read_to_end(&mut text);
    let parsed = read.and_then(|_| Ok(serde_json::from_slice::<Container>(&text)?));
    let found = parsed.map_err(|source| Error::Read { path, source })?;
    Ok((found.cage == *cage).then_some(found))
}

/// Whether a log is a container's that still exists.
pub(crate) fn is_kept(dir: &Path, cage: &CageId) -> Result<bool, Error> {
    Ok(container(dir, cage)?.is_some_and(|container| container.exists()))
}

fn notes(dir: &Path) -> PathBuf {
    dir.parent().unwrap_or(Path::new("..")).join("containers")
}

fn note(dir: &Path, cage: &CageId) -> PathBuf {
    notes(dir).join(cage.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_and_a_container_exists_as_long_as_its_runtime_keeps_it() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        assert!(containers(&dir).unwrap().is_empty());
        let made = Container {
            cage: "c0123456789ab".parse().unwrap(),
            id: "web".into(),
            root: state.path().join("run"),
            execs: 2,
            since: 0,
        };
        made.save(&dir).unwrap();
        assert_eq!(containers(&dir).unwrap(), std::slice::from_ref(&made));
        assert!(!is_kept(&dir, &made.cage).unwrap());
        std::fs::create_dir_all(made.root.join("web")).unwrap();
        assert!(is_kept(&dir, &made.cage).unwrap());
        // A note under another's name is not that one's.
        let other: CageId = "c0123456789ac".parse().unwrap();
        std::fs::copy(note(&dir, &made.cage), note(&dir, &other)).unwrap();
        assert_eq!(container(&dir, &other).unwrap(), None);
        Container::forget(&dir, &made.cage).unwrap();
        Container::forget(&dir, &made.cage).unwrap();
        assert_eq!(container(&dir, &made.cage).unwrap(), None);
    }

    #[test]
    fn only_a_directory_that_is_seen_proves_that_a_container_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let now = u64::try_from(
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_micros(),
        )
        .unwrap();
        let made = |root: &str, since| Container {
            cage: "c0123456789ab".parse().unwrap(),
            id: "web".into(),
            root: state.path().join(root),
            execs: 0,
            since,
        };
        std::fs::create_dir(state.path().join("seen")).unwrap();
        std::fs::write(state.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("loop", state.path().join("loop")).unwrap();
        // Not seen: of this boot, or not to be looked at.
        for kept in [made("other", now), made("file", 0), made("loop", 0)] {
            assert!(kept.exists(), "{kept:?}");
            kept.save(&dir).unwrap();
            assert!(is_kept(&dir, &kept.cage).unwrap());
            Container::forget_others(&dir, &kept.root).unwrap();
            assert_eq!(containers(&dir).unwrap(), [kept]);
        }
        for gone in [made("other", 1), made("seen", now)] {
            assert!(!gone.exists(), "{gone:?}");
            gone.save(&dir).unwrap();
            Container::forget_others(&dir, state.path()).unwrap();
            assert_eq!(containers(&dir).unwrap(), std::slice::from_ref(&gone));
            Container::forget_others(&dir, &gone.root).unwrap();
            assert!(containers(&dir).unwrap().is_empty());
        }
    }
}
