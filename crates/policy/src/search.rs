//! Where a workspace's policy file is.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The name of policy files.
pub const FILE_NAME: &str = "ironcage.toml";

const EVERYONE_WRITES: u32 = 0o002;

/// The policy file of a workspace: in it, or in a directory above, up to the home directory.
/// It stops where a directory belongs to someone else than the workspace does, or where
/// everyone can write (`/tmp`): what lies there was not written for it.
pub fn find_policy_file(workspace: &Path, home: &Path) -> Option<PathBuf> {
    let mut owner = None;
    for directory in workspace.ancestors() {
        let metadata = fs::metadata(directory).ok()?;
        let owner = *owner.get_or_insert(metadata.uid());
        let shared = metadata.mode() & EVERYONE_WRITES != 0 && directory != workspace;
        if metadata.uid() != owner || shared {
            return None;
        }
        let candidate = directory.join(FILE_NAME);
        // A link, even a dangling one, is found here and judged where it is read.
        if ironcage_files::is_there(&candidate) {
            return Some(candidate);
        }
        if directory == home {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_file_above_the_workspace_is_found_and_none_above_home() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("home");
        let workspace = home.join("a/b");
        fs::create_dir_all(&workspace).unwrap();
        fs::write(root.path().join(FILE_NAME), "").unwrap();
        assert_eq!(find_policy_file(&workspace, &home), None);
        fs::write(home.join(FILE_NAME), "").unwrap();
        assert_eq!(
            find_policy_file(&workspace, &home),
            Some(home.join(FILE_NAME))
        );
        fs::write(home.join("a").join(FILE_NAME), "").unwrap();
        assert_eq!(
            find_policy_file(&workspace, &home),
            Some(home.join("a").join(FILE_NAME))
        );
    }

    #[test]
    fn a_file_in_a_directory_that_everyone_can_write_is_not_found_from_below() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().unwrap();
        let shared = root.path().join("shared");
        let workspace = shared.join("project");
        fs::create_dir_all(&workspace).unwrap();
        fs::write(shared.join(FILE_NAME), "").unwrap();
        let home = root.path();
        assert!(find_policy_file(&workspace, home).is_some());
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(find_policy_file(&workspace, home).is_none());
    }
}
