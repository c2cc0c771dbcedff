//! The seed of placeholders of secrets: the same in each run of a workspace, so that an agent
//! which remembers one does not meet another, and different from workspace to workspace.
//!
//! A random seed of the user's lies in the state directory, where no cage reaches. Nothing of a
//! secret's value goes into it.

use crate::error::{Doing, StateError};
use ironcage_files::Links;
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest as _, Sha256};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

const NAME: &str = "placeholder-seed";
const LENGTH: usize = 32;

/// The number in the placeholders of a workspace. The path must be real: two names of one directory
/// are one workspace.
///
/// # Errors
/// Where the seed can be neither read nor made.
pub fn placeholder_number(state: &Path, workspace: &Path) -> Result<u64, StateError> {
    let path = state.join(NAME);
    let read = || ironcage_files::read(&path, LENGTH as u64, Links::Refuse);
    let seed = match read() {
        Err(error) if error.is_absent() => {
            make(state, &path)?;
            read()
        }
        read => read,
    };
    let seed = seed.map_err(io::Error::other).doing("read", &path)?;
    if seed.len() != LENGTH {
        let wrong = io::Error::new(io::ErrorKind::InvalidData, "not a seed; remove the file");
        return Err(wrong).doing("read", &path);
    }
    let mut hash = Sha256::new();
    hash.update(&seed);
    hash.update(workspace.as_os_str().as_bytes());
    let digest = hash.finalize();
    let number = digest.first_chunk::<8>().copied().unwrap_or_default();
    Ok(u64::from_be_bytes(number))
}

/// Makes the seed, whole or not at all, unless another run is faster.
fn make(state: &Path, path: &Path) -> Result<(), StateError> {
    let mut directory = DirBuilder::new();
    directory.recursive(true).mode(0o700);
    directory.create(state).doing("make", state)?;
    let mut seed = [0; LENGTH];
    getrandom(&mut seed, GetRandomFlags::empty()).doing("fill", path)?;
    let unfinished = state.join(format!("{NAME}.{}", std::process::id()));
    // Left by a run that was killed here, with this number.
    let _ = std::fs::remove_file(&unfinished);
    let mut file = OpenOptions::new();
    file.write(true).create_new(true).mode(0o600);
    let mut file = file.open(&unfinished).doing("make", &unfinished)?;
    file.write_all(&seed).doing("write", &unfinished)?;
    let linked = match std::fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    };
    std::fs::remove_file(&unfinished).doing("remove", &unfinished)?;
    linked.doing("make", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_has_one_number_in_every_run_and_another_has_another() {
        let state = tempfile::tempdir().unwrap();
        let below = state.path().join("ironcage");
        let number = |state: &Path, workspace: &str| {
            placeholder_number(state, Path::new(workspace)).unwrap()
        };
        let first = number(&below, "/a");
        assert_eq!(number(&below, "/a"), first);
        assert_ne!(number(&below, "/b"), first);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(number(other.path(), "/a"), first);
        assert_eq!(std::fs::read_dir(&below).unwrap().count(), 1);
        std::fs::write(below.join(NAME), "short").unwrap();
        assert!(placeholder_number(&below, Path::new("/a")).is_err());
    }
}
