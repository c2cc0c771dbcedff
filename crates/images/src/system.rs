//! A writable system: copy-on-write layers over the directories of an image.
//!
//! Each workspace has one, for one cage at a time. A start begins with empty layers; what the last
//! cage wrote stays until then, so that [`commit`](crate::commit) can make an image of it.
//!
//! ```text
//! systems/KEY/lock         held by the cage that writes, and by a commit
//! systems/KEY/base         the digest of the image below
//! systems/KEY/layers/DIR/  `upper` and `work` for each directory at the top of the image
//! ```

use crate::config::MAX_DOCUMENT;
use crate::error::Doing as _;
use crate::store::listed;
use crate::{Digest, Image, ImageError, Store};
use ironcage_files::{Links, read_text};
use ironcage_state::remove_tree;
use ironcage_sys::rustix::fs::FlockOperation;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the last process of a cage that was stopped may take to go away, on a busy machine.
const ENDING: Duration = Duration::from_secs(5);

pub(crate) const SYSTEMS: &str = "systems";
const LOCK: &str = "lock";
const BASE: &str = "base";
const LAYERS: &str = "layers";
/// What a layer keeps of a directory.
pub const UPPER: &str = "upper";
/// What the kernel needs beside it.
pub const WORK: &str = "work";

/// The writable system of one workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritableSystem {
    place: PathBuf,
}

/// Keeps everybody else away from a writable system.
#[derive(Debug)]
pub struct SystemClaim(#[expect(dead_code, reason = "the lock is what counts")] OwnedFd);

impl Store {
    /// The writable system of a workspace. Changes nothing.
    pub fn writable_system(&self, workspace: &Path) -> WritableSystem {
        let key = Digest::of(workspace.as_os_str().as_bytes());
        WritableSystem {
            place: self.root.join(SYSTEMS).join(key.short()),
        }
    }
}

impl Store {
    /// Removes writable systems whose image is gone and that no cage uses.
    pub(crate) fn collect_systems(&self) -> Result<(), ImageError> {
        let systems = self.root.join(SYSTEMS);
        for name in listed(&systems)? {
            let system = WritableSystem {
                place: systems.join(&name),
            };
            let base = system.base();
            let based = base.is_some_and(|base| self.path("images", &base).exists());
            if !based && let Ok(_claim) = system.claim() {
                remove_tree(&systems, &name)?;
            }
        }
        Ok(())
    }
}

impl WritableSystem {
    /// Removes it with what was written to it.
    ///
    /// # Errors
    /// If a cage uses it.
    pub fn remove(&self) -> Result<(), ImageError> {
        let (Some(above), Some(name)) = (self.place.parent(), self.place.file_name()) else {
            return Ok(());
        };
        if !self.place.exists() {
            return Ok(());
        }
        let _claim = self.claim()?;
        remove_tree(above, name)?;
        Ok(())
    }

    /// The directory of its layers, each named like a directory at the top of the image.
    pub fn layers(&self) -> PathBuf {
        self.place.join(LAYERS)
    }

    /// Empties it for a new cage on top of an image, with a layer for each of these directories.
    ///
    /// # Errors
    /// If another cage has it, or a directory cannot be made.
    pub fn begin(
        &self,
        store: &Store,
        image: &Image,
        directories: &[&OsStr],
    ) -> Result<SystemClaim, ImageError> {
        let root = store.root(image);
        let claim = self.begin_over(&root, directories)?;
        store.write(&self.place.join(BASE), image.digest.to_string().as_bytes())?;
        Ok(claim)
    }

    /// The same on top of a plain directory, of which nothing can be committed.
    ///
    /// # Errors
    /// If another cage has it, or a directory cannot be made.
    pub fn begin_over(
        &self,
        root: &Path,
        directories: &[&OsStr],
    ) -> Result<SystemClaim, ImageError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&self.place).doing("create", &self.place)?;
        let claim = self.claim()?;
        // Without a base nothing can be committed, should the rest fail.
        let base = self.place.join(BASE);
        match fs::remove_file(&base) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).doing("remove", base);
            }
            _ => {}
        }
        if self.layers().exists() {
            remove_tree(&self.place, OsStr::new(LAYERS))?;
        }
        for name in directories {
            let place = self.layers().join(name);
            let (upper, work) = (place.join(UPPER), place.join(WORK));
            builder.create(&upper).doing("create", &upper)?;
            builder.create(&work).doing("create", work)?;
            // Overlayfs shows the mode of the upper directory.
            let below = root.join(name);
            let mode = fs::symlink_metadata(&below).doing("look at", below)?;
            let mode = fs::Permissions::from_mode(mode.permissions().mode() & 0o1777);
            fs::set_permissions(&upper, mode).doing("set the mode of", upper)?;
        }
        Ok(claim)
    }

    /// Takes it away from everybody else.
    ///
    /// # Errors
    /// If a cage has it.
    pub(crate) fn claim(&self) -> Result<SystemClaim, ImageError> {
        let path = self.place.join(LOCK);
        match Store::lock_file(&path, FlockOperation::NonBlockingLockExclusive)? {
            Ok(held) => Ok(SystemClaim(held)),
            Err(_) => Err(ImageError::SystemInUse),
        }
    }

    /// The same, after a cage that is just ending: whoever stops one learns of its end before its last process is gone.
    ///
    /// # Errors
    /// If a cage still has it after [`ENDING`].
    pub(crate) fn claim_after_end(&self) -> Result<SystemClaim, ImageError> {
        let until = Instant::now() + ENDING;
        loop {
            match self.claim() {
                Err(ImageError::SystemInUse) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                claimed => return claimed,
            }
        }
    }

    /// The digest of the image that it was started from, if a cage was.
    pub(crate) fn base(&self) -> Option<Digest> {
        let text = read_text(&self.place.join(BASE), MAX_DOCUMENT, Links::Refuse).ok()?;
        text.trim().parse().ok()
    }
}
