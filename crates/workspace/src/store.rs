//! The pending changes of all workspaces, in Ironcage's state directory.
//!
//! `changes/KEY/ID/` holds one: `change.json`, and for each layer `upper` and `work`.
//! `changes/KEY/current` names the one that the next run in the workspace continues.

use crate::change::{
    Change, ChangeId, ChangeState, LOCK, Layer, LayerRole, Lock, Moment, RECORD, put_file,
};
use crate::content::own_text;
use crate::emptied::{Emptied, put_aside};
use crate::error::{Doing as _, WorkspaceError};
use ironcage_state::{remove_tree, renew_directory, workspace_key};
use ironcage_sys::process::started_as;
use ironcage_sys::rustix::fs::{Gid, Mode, OFlags, RawDir, Uid, chown, open};
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use ironcage_sys::spent::close_later;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const CURRENT: &str = "current";

/// The pending changes of all workspaces.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) changes: PathBuf,
}

/// An overlay that a new change is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerRequest {
    /// What it lies over.
    pub role: LayerRole,
    /// The real directory, without links.
    pub real: PathBuf,
    /// Where its two directories go, below the change's: the plan names them.
    pub place: PathBuf,
}

/// A change that is not there yet: the plan of a run names places in it before they are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub id: ChangeId,
    pub directory: PathBuf,
}

impl Store {
    /// The store in Ironcage's state directory. Nothing is made yet.
    pub fn open(state_dir: &Path) -> Store {
        Store {
            changes: state_dir.join("changes"),
        }
    }

    pub(crate) fn of_workspace(&self, workspace: &Path) -> PathBuf {
        self.changes.join(workspace_key(workspace))
    }

    /// The change that the next run in a workspace continues.
    ///
    /// # Errors
    /// Where its record cannot be read.
    pub fn pending(&self, workspace: &Path) -> Result<Option<Change>, WorkspaceError> {
        let place = self.of_workspace(workspace);
        let current = place.join(CURRENT);
        let id = match own_text(&current) {
            Ok(id) => id,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).doing("read", &current),
        };
        let Ok(id) = id.trim().parse::<ChangeId>() else {
            return Ok(None);
        };
        let directory = place.join(id.as_str());
        if !directory.is_dir() {
            return Ok(None);
        }
        match Change::read(&directory) {
            // It has just gone.
            Err(WorkspaceError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Names a change that is to be begun. Nothing is made.
    ///
    /// # Errors
    /// Where the system has no random numbers.
    pub fn draft(&self, workspace: &Path) -> Result<Draft, WorkspaceError> {
        let place = self.of_workspace(workspace);
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty()).doing("create a change in", &place)?;
        let id = ChangeId::from_entropy(random);
        let directory = place.join(id.as_str());
        Ok(Draft { id, directory })
    }

    /// Begins a change, which becomes the workspace's current one. Earlier ones stay. Before
    /// anybody can find it, it is the caller's alone.
    ///
    /// # Errors
    /// Where the directories cannot be made or a real one cannot be looked at.
    pub fn create(
        &self,
        workspace: &Path,
        draft: Draft,
        mode: &str,
        layers: &[LayerRequest],
    ) -> Result<(Change, Lock), WorkspaceError> {
        let Draft { id, directory } = draft;
        make_in_place(&self.of_workspace(workspace), &directory)?;
        let mut made = Vec::with_capacity(layers.len());
        for request in layers {
            made.push(make_layer(&directory, request)?);
        }
        let record = ChangeState {
            id,
            workspace: workspace.to_owned(),
            began: Moment::default(),
            mode: mode.to_owned(),
            cages: Vec::new(),
            layers: made,
            beside: None,
            fork_of: None,
            allowed: Vec::new(),
            in_memory: false,
        };
        let mut change = Change::new(record, directory);
        let lock = change.try_lock()?;
        change.record.began = lock.stamp(&change)?;
        change.write_first()?;
        self.make_current(&change)?;
        Ok((change, lock))
    }

    /// Makes the work directories of a change anew, for the next overlays over it: the kernel
    /// refuses one in which an overlay left its mark that it syncs nothing. The caller holds the
    /// change's lock.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn renew_work(&self, change: &Change) -> Result<(), WorkspaceError> {
        for layer in change.layers() {
            renew_directory(&layer.work)?;
        }
        Ok(())
    }

    /// Adds those overlays to a change that it does not have yet. The caller holds its lock.
    ///
    /// # Errors
    /// Where the directories cannot be made or a real one cannot be looked at.
    pub fn extend(
        &self,
        change: &mut Change,
        layers: &[LayerRequest],
    ) -> Result<(), WorkspaceError> {
        let missing: Vec<&LayerRequest> = layers
            .iter()
            .filter(|wanted| change.layers().iter().all(|have| have.real != wanted.real))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        for request in missing {
            let made = make_layer(&change.directory, request)?;
            change.record.layers.push(made);
        }
        change.write()
    }

    /// Makes a change the one that the next run in its workspace continues.
    ///
    /// # Errors
    /// Where that cannot be written down.
    pub fn make_current(&self, change: &Change) -> Result<(), WorkspaceError> {
        let path = self.of_workspace(change.workspace()).join(CURRENT);
        put_file(&path, change.id().as_str().as_bytes()).doing("write", &path)
    }

    /// Begun beside a change that a cage works on: the next run goes on with that one, and with
    /// this one when that is gone.
    ///
    /// # Errors
    /// Where that cannot be written down.
    pub fn put_beside(&self, change: &mut Change, first: &Change) -> Result<(), WorkspaceError> {
        change.record.beside = Some(first.id().clone());
        change.write_first()?;
        self.make_current(first)
    }

    /// Every change there is, the oldest first.
    ///
    /// # Errors
    /// Where the store cannot be read. A directory without a record is one that is just being
    /// made or removed, and is passed over.
    pub fn list(&self) -> Result<Vec<Change>, WorkspaceError> {
        let mut found = Vec::new();
        for workspace in directories(&self.changes)? {
            for directory in directories(&workspace)? {
                match Change::read(&directory) {
                    Ok(change) => found.push(change),
                    Err(WorkspaceError::Io { source, .. })
                        if source.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        found.sort_by_key(Change::began);
        Ok(found)
    }

    /// The change of an id.
    ///
    /// # Errors
    /// Where there is none, or the store cannot be read.
    pub fn find(&self, id: &ChangeId) -> Result<Change, WorkspaceError> {
        self.list()?
            .into_iter()
            .find(|change| change.id() == id)
            .ok_or_else(|| WorkspaceError::Unknown { id: id.clone() })
    }

    /// Removes a change with all that is in it. The real tree is not touched.
    ///
    /// # Errors
    /// When somebody uses it, or the system refuses.
    pub fn remove(&self, change: &Change) -> Result<(), WorkspaceError> {
        let _lock = change.lock()?;
        self.remove_locked(change)
    }

    /// As [`Store::remove`], by the one who holds the lock.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn remove_locked(&self, change: &Change) -> Result<(), WorkspaceError> {
        let gone = change.is_unused() && remove_known(change);
        self.remove_with(change, gone)
    }

    /// As [`Store::remove_locked`], of a change in which its holder has found nothing. With `emptied`,
    /// for a change that the holder has begun, its directories are put aside where there is room.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn remove_unused(
        &self,
        change: &Change,
        emptied: Option<&mut Emptied>,
    ) -> Result<(), WorkspaceError> {
        if emptied.is_some_and(Emptied::has_room) {
            // The record first: a directory without one is passed over, whoever is killed meanwhile.
            let files = [RECORD, LOCK].map(|name| change.directory.join(name));
            let removed = files.iter().all(|file| std::fs::remove_file(file).is_ok());
            if removed && put_aside(&self.changes, change.directory()) {
                self.leave_place(change, directory_is_empty)?;
                return Ok(());
            }
        }
        let gone = remove_known(change);
        self.remove_with(change, gone)
    }

    fn remove_with(&self, change: &Change, gone: bool) -> Result<(), WorkspaceError> {
        let place = self.of_workspace(change.workspace());
        if !gone {
            remove_tree(&place, OsStr::new(change.id().as_str()))?;
        }
        // Only when nothing is left in it.
        let removed = |place: &Path| std::fs::remove_dir(place).is_ok();
        if !self.leave_place(change, removed)? {
            let _ = std::fs::remove_dir(&place);
        }
        Ok(())
    }

    /// After the directory of a change has gone: where this was the current one, makes another one
    /// current, unless none are left, which `is_over` tells. Returns whether it did.
    fn leave_place(
        &self,
        change: &Change,
        is_over: impl FnOnce(&Path) -> bool,
    ) -> Result<bool, WorkspaceError> {
        let place = self.of_workspace(change.workspace());
        let current = place.join(CURRENT);
        if names(&current, change.id()) {
            match std::fs::remove_file(&current) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).doing("remove", &current);
                }
                _ => {}
            }
            if is_over(&place) {
                return Ok(true);
            }
            // What it was forked from, or stood beside it, the last one of them, has its turn.
            let others = directories(&place)?.into_iter();
            let next = others
                .filter_map(|directory| Change::read(&directory).ok())
                .filter(|other| {
                    other.beside() == Some(change.id()) || change.fork_of() == Some(other.id())
                })
                .max_by_key(|other| (change.fork_of() == Some(other.id()), other.began()));
            if let Some(next) = next {
                self.make_current(&next)?;
            }
        }
        Ok(false)
    }
}

/// Whether a file of the store names this change. It is compared with a few bytes, so that neither
/// its kind nor its size has to be asked for: whatever else is there does not name it.
fn names(current: &Path, id: &ChangeId) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = open(current, flags, Mode::empty()) else {
        return false;
    };
    let mut found = [0; 64];
    let read = ironcage_sys::rustix::io::read(&file, &mut found);
    close_later(file);
    read.is_ok_and(|length| found.get(..length) == Some(id.as_str().as_bytes()))
}

/// Removes a change in which there is nothing, by the names that are known to be there. Most runs
/// leave none: looking for what else there might be would cost more than all of their start.
/// Returns whether all of it is gone; whatever is left is somebody else's to find.
fn remove_known(change: &Change) -> bool {
    // The record first: a directory without one is passed over, whoever is killed meanwhile.
    if std::fs::remove_file(change.directory.join(RECORD)).is_err() {
        return false;
    }
    for layer in change.layers() {
        let made_by_the_kernel = layer.work.join("work");
        // The kernel makes it for nobody, which keeps all but root out.
        if started_as() != 0 {
            let _ = ironcage_sys::rustix::fs::chmod(&made_by_the_kernel, Mode::RWXU);
        }
        let mark = made_by_the_kernel.join("incompat");
        // Linux 6.18 puts a file into the mark of a volatile overlay; before, it was empty.
        let volatile = mark.join("volatile");
        let dirty = volatile.join("dirty");
        if let Err(error) = std::fs::remove_file(&dirty)
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            // The kernel makes them for nobody, which keeps all but root out.
            for closed in [&mark, &volatile] {
                let _ = ironcage_sys::rustix::fs::chmod(closed, Mode::RWXU);
            }
            let _ = std::fs::remove_file(&dirty);
        }
        for directory in [
            &volatile,
            &mark,
            &made_by_the_kernel,
            &layer.work,
            &layer.upper,
        ] {
            let _ = std::fs::remove_dir(directory);
        }
    }
    let _ = std::fs::remove_file(change.directory.join(LOCK));
    std::fs::remove_dir(&change.directory).is_ok()
}

/// Whether a directory can be read and has nothing in it.
pub(crate) fn directory_is_empty(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open(path, flags, Mode::empty()) else {
        return false;
    };
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let is_empty = loop {
        match entries.next() {
            None => break true,
            Some(Ok(entry)) if [c".", c".."].contains(&entry.file_name()) => {}
            Some(_) => break false,
        }
    };
    close_later(directory);
    is_empty
}

fn make_layer(directory: &Path, request: &LayerRequest) -> Result<Layer, WorkspaceError> {
    let real = std::fs::symlink_metadata(&request.real).doing("look at", &request.real)?;
    if !real.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory))
            .doing("create a layer over", &request.real);
    }
    let place = directory.join(&request.place);
    let (upper, work) = (place.join("upper"), place.join("work"));
    make_private(&work)?;
    // The root of the overlay has the upper directory's owner and mode. Nobody else gets to it:
    // the directory of the change is closed.
    let mode = real.permissions().mode() & 0o7777;
    let made = DirBuilder::new().mode(mode).create(&upper);
    made.doing("make", &upper)?;
    let owner = (Uid::from_raw(real.uid()), Gid::from_raw(real.gid()));
    let own = std::fs::metadata(&upper).doing("look at", &upper)?;
    if (own.uid(), own.gid()) != (real.uid(), real.gid()) {
        for made in [&upper, &work] {
            match chown(made, Some(owner.0), Some(owner.1)) {
                Ok(()) => {}
                // A group that is not ours stays with the real directory.
                Err(_) if own.uid() == real.uid() => {}
                Err(error) => return Err(error).doing("give away", made),
            }
        }
    }
    // The umask takes bits from what mkdir is given, and chown takes some away.
    let is_the_owners = (own.uid(), own.gid()) == (real.uid(), real.gid());
    if own.permissions().mode() & 0o7777 != mode || !is_the_owners {
        let mode = Mode::from_raw_mode(mode);
        ironcage_sys::rustix::fs::chmod(&upper, mode).doing("set the mode of", &upper)?;
    }
    Ok(Layer {
        role: request.role,
        real: request.real.clone(),
        device: real.dev(),
        inode: real.ino(),
        place: request.place.clone(),
        upper,
        work,
    })
}

/// Makes the directory of a change in its workspace's place, which is there only where another
/// change is.
fn make_in_place(place: &Path, directory: &Path) -> Result<(), WorkspaceError> {
    let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    match make(place) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(_) => make_private(place)?,
    }
    match make(directory) {
        // Whoever removed the last change of the workspace took the place with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_private(directory),
        made => made.doing("make", directory),
    }
}

pub(crate) fn make_private(path: &Path) -> Result<(), WorkspaceError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .doing("make", path)
}

/// Directories in a directory, which need not be there.
pub(crate) fn directories(path: &Path) -> Result<Vec<PathBuf>, WorkspaceError> {
    let listing = match std::fs::read_dir(path) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).doing("read", path),
    };
    let mut found = Vec::new();
    for entry in listing {
        let entry = entry.doing("read", path)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
