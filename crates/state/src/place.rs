//! Where one workspace's files are kept. Only names are made here.

use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Bytes of the hash in a key: 64 bits tell the workspaces of one user apart.
const HASH_BYTES: usize = 8;
/// Characters of a workspace's name in its key.
const NAME_LENGTH: usize = 40;

/// Where one workspace's files are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What stands for the home directory.
    pub home: PathBuf,
    /// The caches of all profiles.
    pub caches: PathBuf,
    /// The directory that holds the home and the record of whose it is.
    pub(crate) state: PathBuf,
}

impl Place {
    pub(crate) fn new(kept: &Path, caches: &Path, key: &OsStr) -> Place {
        let state = kept.join(key);
        Place {
            home: state.join("home"),
            caches: caches.join(key),
            state,
        }
    }

    /// Where one profile's changes to the user's own caches go: beside its caches, out of the
    /// agent's sight. No profile has a name with a dot.
    pub fn layers_of(&self, profile: &str) -> PathBuf {
        self.caches.join(format!("{profile}.host"))
    }

    /// The caches of one profile: what a wider one let in does not reach a narrower one.
    pub fn caches_of(&self, profile: &str) -> PathBuf {
        self.caches.join(profile)
    }
}

/// The name of a workspace's directory: a hash of its real path, and its last part for people.
pub fn workspace_key(workspace: &Path) -> String {
    let digest = Sha256::digest(workspace.as_os_str().as_bytes());
    let mut key = String::new();
    for byte in digest.iter().take(HASH_BYTES) {
        // Writing to a string cannot fail.
        let _ = write!(key, "{byte:02x}");
    }
    let name = workspace.file_name().unwrap_or_default().to_string_lossy();
    key.push('-');
    key.extend(name.chars().take(NAME_LENGTH).map(|character| {
        if character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-') {
            character
        } else {
            '_'
        }
    }));
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_of_one_name_have_different_keys_and_odd_names_stay_plain() {
        let keys = ["/a/project", "/b/project", "/", "/a/..b/x y\n/"]
            .map(|path| workspace_key(Path::new(path)));
        assert_ne!(keys[0], keys[1]);
        assert!(keys[0].ends_with("-project"), "{keys:?}");
        assert!(keys[3].ends_with("-x_y_"), "{keys:?}");
        assert_eq!(workspace_key(Path::new("/a/project")), keys[0]);
    }
}
