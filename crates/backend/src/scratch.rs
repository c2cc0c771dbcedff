//! A cage's own directory on the host, where it has no storage of its own.

use crate::StartError;
use ironcage_plan::{Plan, Scratch};
use ironcage_sys::rustix::fs::{Gid, Uid, chown};
use ironcage_sys::rustix::process::geteuid;
use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directory. It is removed when this is dropped, unless somebody else was told to.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes the plan's directory for the agent, if the plan has one.
    pub(crate) fn make(plan: &Plan, agent: (u32, u32)) -> Result<Option<Directory>, StartError> {
        let Some(scratch) = &plan.scratch else {
            return Ok(None);
        };
        let failed = |source| StartError::Scratch {
            path: scratch.path.clone(),
            source,
        };
        // Fails where the name is taken: what is there is somebody else's.
        private(&scratch.path).map_err(failed)?;
        let directory = Directory {
            path: scratch.path.clone(),
        };
        fill(scratch, agent).map_err(failed)?;
        Ok(Some(directory))
    }

    /// Where it is; removing it is the caller's from here on.
    pub(crate) fn hand_over(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            remove(&self.path);
        }
    }
}

/// Removes a cage's directory, however deep it is and whatever is closed in it. No link in it
/// is followed.
pub(crate) fn remove(path: &Path) {
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        // There is nobody to tell; what is left has the cage's id in its name.
        let _ = ironcage_state::remove_tree(parent, name);
    }
}

fn private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn fill(scratch: &Scratch, (uid, gid): (u32, u32)) -> io::Result<()> {
    let give = |path: &Path| match geteuid().as_raw() == uid {
        true => Ok(()),
        false => chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
    };
    for name in &scratch.directories {
        let path = scratch.path.join(name);
        private(&path)?;
        give(&path)?;
    }
    for (name, content) in &scratch.files {
        let path = scratch.path.join(name);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.write_all(content.as_bytes())?;
        give(&path)?;
    }
    // Last: from here on the agent's user may change what is in it.
    give(&scratch.path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_goes_with_what_is_closed_in_it_and_what_links_lead_to_stays() {
        let base = std::env::temp_dir().join(format!("scratch-test-{}", std::process::id()));
        let outside = base.join("outside");
        let own = base.join("own");
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        fs::create_dir_all(own.join("closed/deeper")).unwrap();
        fs::write(own.join("closed/deeper/file"), "gone").unwrap();
        symlink(&outside, own.join("closed/link")).unwrap();
        fs::set_permissions(own.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        remove(&own);
        assert!(!own.exists());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
        assert_eq!(
            fs::metadata(&outside).unwrap().permissions().mode() & 0o700,
            0o700
        );
        fs::remove_dir_all(&base).unwrap();
    }
}
