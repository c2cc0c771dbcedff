//! The places of all workspaces: making, listing, filling and removing them.

use crate::error::{Doing, StateError};
use crate::place::{Place, workspace_key};
use crate::remove::{open_path, remove_tree, sweep, take_out};
use crate::tree::{PRIVATE, exists, make_directory};
use crate::{Copied, copy};
use ironcage_files::{Links, open_regular};
use ironcage_sys::rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use ironcage_sys::rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest path that the kernel takes.
const LONGEST_PATH: u64 = 4096;

/// Names the workspace that a place belongs to.
const RECORD: &str = "workspace";
/// Held by the run that uses the layers beside it.
const LOCK: &str = "lock";

/// The places of all workspaces.
#[derive(Debug, Clone)]
pub struct Store {
    kept: PathBuf,
    caches: PathBuf,
}

/// What is kept for one workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The workspace, which may be gone.
    pub workspace: PathBuf,
    /// What stands for the home directory.
    pub home: PathBuf,
    /// Bytes of the home's files.
    pub home_bytes: u64,
    /// The directory of its caches.
    pub caches: PathBuf,
    /// Bytes of the caches.
    pub cache_bytes: u64,
    /// Whether a part of either cannot be read, and is not counted.
    pub is_partial: bool,
}

impl Store {
    /// The store in Ironcage's state and cache directories.
    pub fn new(state_dir: &Path, cache_dir: &Path) -> Store {
        Store {
            kept: state_dir.join("kept"),
            caches: cache_dir.join("caches"),
        }
    }

    /// Where a workspace's files are kept. The path must be real: two names of one directory
    /// are one workspace.
    pub fn place(&self, workspace: &Path) -> Place {
        Place::new(
            &self.kept,
            &self.caches,
            OsStr::new(&workspace_key(workspace)),
        )
    }

    /// Makes places of a workspace where they are missing: directories, and empty files.
    ///
    /// # Errors
    /// Where the system refuses, or an earlier run left a link in the way.
    pub fn make<'p>(
        &self,
        workspace: &Path,
        places: impl IntoIterator<Item = (&'p Path, bool)>,
    ) -> Result<(), StateError> {
        let place = self.place(workspace);
        let (mut home, mut caches): (Option<OwnedFd>, Option<OwnedFd>) = (None, None);
        for (path, is_directory) in places {
            if let Ok(relative) = path.strip_prefix(&place.home) {
                let home = match &home {
                    Some(home) => home,
                    None => home.insert(self.open(&place.home, &place, workspace)?),
                };
                make_below(home, relative, path, is_directory)?;
            } else if let Ok(relative) = path.strip_prefix(&place.caches) {
                let caches = match &caches {
                    Some(caches) => caches,
                    None => caches.insert(self.open(&place.caches, &place, workspace)?),
                };
                make_below(caches, relative, path, is_directory)?;
            } else {
                return Err(StateError::NotBelow {
                    path: path.to_owned(),
                    above: place.state,
                });
            }
        }
        Ok(())
    }

    /// Opens the home of a workspace, if something is kept for it.
    pub(crate) fn home_of(&self, workspace: &Path) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(CWD, &self.place(workspace).home, flags, Mode::empty()).ok()
    }

    /// Opens the directory of what is kept of one kind, which no agent can replace, and makes
    /// it where it is missing.
    fn open(
        &self,
        directory: &Path,
        place: &Place,
        workspace: &Path,
    ) -> Result<OwnedFd, StateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(CWD, directory, flags, Mode::empty());
        if let Ok(opened) = open() {
            return Ok(opened);
        }
        self.record(place, workspace)?;
        make_private(directory)?;
        open().doing("open", directory)
    }

    /// Takes the layers of the user's own caches for one run, where they are free: one upper
    /// layer cannot serve two overlays at once. They are free again when the file is closed.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn claim_layers(layers: &Path) -> Result<Option<File>, StateError> {
        let path = layers.join(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .doing("open", &path)?;
        for attempt in 1.. {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                // Who only looks whether it is taken has it for a moment.
                Err(Errno::WOULDBLOCK) if attempt < 20 => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error).doing("lock", &path),
            }
        }
        Ok(None)
    }

    /// Whether another run has the layers. Changes nothing.
    pub fn layers_in_use(layers: &Path) -> bool {
        let Ok((file, _)) = open_regular(&layers.join(LOCK), Links::Refuse) else {
            return false;
        };
        flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
    }

    /// Writes down whose place it is.
    fn record(&self, place: &Place, workspace: &Path) -> Result<(), StateError> {
        make_private(&place.state)?;
        let path = place.state.join(RECORD);
        let made = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        made.and_then(|mut file| file.write_all(workspace.as_os_str().as_bytes()))
            .doing("write", &path)
    }

    /// Every workspace that something is kept for, by path.
    ///
    /// # Errors
    /// Where the records cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, StateError> {
        let listing = match std::fs::read_dir(&self.kept) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).doing("read", &self.kept),
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry.doing("read", &self.kept)?;
            // A place without its record is one that is just being made, or removed.
            let path = entry.path().join(RECORD);
            let Ok(workspace) = ironcage_files::read(&path, LONGEST_PATH, Links::Refuse) else {
                continue;
            };
            let place = Place::new(&self.kept, &self.caches, &entry.file_name());
            let (home_bytes, whole_home) = bytes_below(&place.home);
            let (cache_bytes, whole_caches) = bytes_below(&place.caches);
            entries.push(Entry {
                workspace: PathBuf::from(OsStr::from_bytes(&workspace)),
                home_bytes,
                cache_bytes,
                is_partial: !(whole_home && whole_caches),
                home: place.home,
                caches: place.caches,
            });
        }
        entries.sort_by(|a, b| a.workspace.cmp(&b.workspace));
        Ok(entries)
    }

    /// Removes all that is kept for a workspace; returns whether there was anything. A cage
    /// that still runs keeps what it has open, and it is gone when the cage ends.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn reset(&self, workspace: &Path) -> Result<bool, StateError> {
        let key = workspace_key(workspace);
        let mut found = false;
        for directory in [&self.caches, &self.kept] {
            found |= remove_tree(directory, OsStr::new(&key))?;
            sweep(directory)?;
        }
        Ok(found)
    }

    /// Copies a file or directory of the user's own into what is kept for a workspace, to a
    /// path relative to the home.
    ///
    /// # Errors
    /// Where something is there already and is not to be replaced, or the system refuses.
    pub fn import(
        &self,
        workspace: &Path,
        from: &Path,
        relative: &Path,
        replace: bool,
    ) -> Result<Copied, StateError> {
        let place = self.place(workspace);
        let home = self.open(&place.home, &place, workspace)?;
        let shown = place.home.join(relative);
        let (Some(above), Some(name)) = (relative.parent(), relative.file_name()) else {
            return Err(StateError::NotBelow {
                path: relative.to_owned(),
                above: place.home,
            });
        };
        if exists(home.as_fd(), relative) && !replace {
            return Err(StateError::Exists { path: shown });
        }
        let above = make_directory(home.as_fd(), above).doing("make", &shown)?;
        // By way of the place's own directory, which no agent can reach.
        let bins = open_path(&place.state).doing("open", &place.state)?;
        take_out(above.as_fd(), name, bins.as_fd()).doing("replace", &shown)?;
        copy::copy(from, above.as_fd(), name)
    }
}

fn make_below(
    root: &OwnedFd,
    relative: &Path,
    shown: &Path,
    is_directory: bool,
) -> Result<(), StateError> {
    if exists(root.as_fd(), relative) {
        return Ok(());
    }
    if is_directory {
        return make_directory(root.as_fd(), relative)
            .map(drop)
            .doing("make", shown);
    }
    let above = make_directory(root.as_fd(), relative.parent().unwrap_or(Path::new("")))
        .doing("make", shown)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = relative.file_name().unwrap_or_default();
    openat(&above, name, flags, Mode::RUSR | Mode::WUSR)
        .map(drop)
        .doing("make", shown)
}

fn make_private(path: &Path) -> Result<(), StateError> {
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE.bits())
        .create(path)
        .doing("make", path)
}

/// Bytes of the files below a directory, and whether all of it could be read. For people to read;
/// no decision depends on it.
fn bytes_below(directory: &Path) -> (u64, bool) {
    let (mut bytes, mut is_whole) = (0, true);
    let mut work = vec![directory.to_owned()];
    while let Some(directory) = work.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                // What is not there needs no room.
                is_whole &= error.kind() == std::io::ErrorKind::NotFound;
                continue;
            }
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.metadata()?, entry.path()))) {
                Ok((metadata, path)) if metadata.is_dir() => work.push(path),
                Ok((metadata, _)) => bytes += metadata.blocks() * 512,
                Err(_) => is_whole = false,
            }
        }
    }
    (bytes, is_whole)
}
