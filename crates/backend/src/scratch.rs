//! A cage's own directory on the host, where it has no storage of its own.

use crate::init::failed;
use ironcage_layers::LayerError;
use ironcage_model::Layer;
use ironcage_plan::{Plan, Scratch};
use ironcage_sys::rustix::fs::{Gid, Uid, chown};
use ironcage_sys::rustix::process::geteuid;
use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Makes the plan's directory, if the plan has one. Where this fails nothing was made, and what
/// is there is somebody else's.
pub(crate) fn make(plan: &Plan) -> Result<Option<PathBuf>, LayerError> {
    let Some(scratch) = &plan.scratch else {
        return Ok(None);
    };
    private(&scratch.path).map_err(|error| not_made(scratch, error))?;
    Ok(Some(scratch.path.clone()))
}

/// Fills the directory that was made, and gives it to the agent.
pub(crate) fn fill(plan: &Plan, agent: (u32, u32)) -> Result<(), LayerError> {
    let Some(scratch) = &plan.scratch else {
        return Ok(());
    };
    fill_for(scratch, agent).map_err(|error| not_made(scratch, error))
}

fn not_made(scratch: &Scratch, error: io::Error) -> LayerError {
    let path = scratch.path.display();
    let action = format!("make the cage's own directory {path}");
    failed(Layer::Disk, &action, error)
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

fn fill_for(scratch: &Scratch, (uid, gid): (u32, u32)) -> io::Result<()> {
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
