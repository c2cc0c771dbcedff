//! The guest of microVMs that the user has set up, for cages on the stage.

use ironcage_programs::Program;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of a guest, as `ironcage setup microvm` names them.
const NAMES: [&str; 3] = ["kernel", "initramfs", "manifest.json"];

/// A guest, read before the stage covers the home directory that it lies in.
pub(crate) struct StagedGuest {
    files: Vec<(&'static str, Vec<u8>)>,
    init: Vec<u8>,
    /// A guest belongs to an init of this age.
    init_modified: SystemTime,
}

impl StagedGuest {
    /// Reads the user's.
    pub(crate) fn read() -> io::Result<StagedGuest> {
        let state = ironcage_audit::state_dir().map_err(io::Error::other)?;
        let directory = state.join("microvm");
        let read = |name: &'static str| {
            let path = directory.join(name);
            let content = fs::read(&path).map_err(|error| {
                let why = format!("{}: {error}; run `ironcage setup microvm`", path.display());
                io::Error::new(error.kind(), why)
            })?;
            Ok((name, content))
        };
        let init = Program::VmInit.find().map_err(io::Error::other)?;
        Ok(StagedGuest {
            files: NAMES.into_iter().map(read).collect::<io::Result<_>>()?,
            init_modified: fs::metadata(&init)?.modified()?,
            init: fs::read(init)?,
        })
    }

    /// Puts it where a user of this home has it; gives the init, for its place beside `ironcage`.
    pub(crate) fn install(&self, home: &Path) -> io::Result<&[u8]> {
        let directory = home.join(".local/state/ironcage/microvm");
        fs::create_dir_all(&directory)?;
        for (name, content) in &self.files {
            fs::write(directory.join(name), content)?;
        }
        Ok(&self.init)
    }

    /// Gives the installed init the age that the guest belongs to.
    pub(crate) fn date(&self, init: &PathBuf) -> io::Result<()> {
        File::options()
            .write(true)
            .open(init)?
            .set_modified(self.init_modified)
    }
}
