//! The shared store: root fills it, everybody reads it, and only by digest.
//!
//! A name in it would be somebody else's word for what runs; a digest is the content. Users write
//! nothing there but a lock file each, by which root sees what is in use. No lock of one user can
//! hold up another one.
//!
//! ```text
//! images/HEX      what an image is, readable by everybody
//! roots/HEX/      its layers joined, readable by everybody
//! uses/HEX.UID    made and locked by the cages of a user (the directory is sticky)
//! ```
//!
//! A cage locks first and then looks whether the image is there; who removes one takes it away first
//! and then looks for locks. So one of the two sees the other.

use crate::error::Doing as _;
use crate::store::listed;
use crate::{Digest, Image, ImageError, ImageUse, Pruned, Store};
use ironcage_sys::faults::step;
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, lstat, open,
    openat, statat,
};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::geteuid;
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where it is, unless [`VARIABLE`] names another directory.
const PLACE: &str = "/var/lib/ironcage/images";
const VARIABLE: &str = "IRONCAGE_SHARED_IMAGES";
/// Directories that users read, beside the one with their locks.
const READ: [&str; 2] = ["images", "roots"];
const USES: &str = "uses";
/// Links of a tree that are walked; unpacking makes no deeper ones.
const DEEPEST: usize = 512;

/// The directory of the shared store.
fn shared_place() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(place) if !place.is_empty() => place.into(),
        _ => PLACE.into(),
    }
}

/// Finds an image: in the user's own store, or by its digest in the shared one.
///
/// # Errors
/// If neither has it, or the shared store could be written by somebody else than root.
pub fn find(own: &Store, name: &str) -> Result<(Store, Image), ImageError> {
    let missing = match own.image(name) {
        Err(error @ ImageError::Missing { .. }) => error,
        found => return found.map(|image| (own.clone(), image)),
    };
    let Some(digest) = digest_in(name) else {
        return Err(missing);
    };
    let place = shared_place();
    if !place.join("images").join(digest.hex()).exists() {
        return Err(missing);
    }
    let store = Store::shared()?;
    let image = store.image(&digest.to_string())?;
    match image.digest == digest {
        true => Ok((store, image)),
        false => Err(missing),
    }
}

/// The whole digest that a name ends with, or that it is.
fn digest_in(name: &str) -> Option<Digest> {
    let digest = name.rsplit_once('@').map_or(name, |(_, digest)| digest);
    digest.parse().ok()
}

/// Refuses a shared store that somebody else than root can change.
fn check(place: &Path) -> Result<(), ImageError> {
    let places = READ.iter().map(|name| place.join(name));
    for path in std::iter::once(place.to_owned()).chain(places) {
        let found = lstat(&path).doing("look at", &path)?;
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        if !is_directory || found.st_uid != 0 || found.st_mode & 0o022 != 0 {
            return Err(ImageError::UnsafeShared { path });
        }
    }
    Ok(())
}

impl Store {
    /// The shared store, to be read.
    ///
    /// # Errors
    /// If somebody else than root can write it.
    pub fn shared() -> Result<Self, ImageError> {
        let root = shared_place();
        if root.exists() {
            check(&root)?;
        }
        Ok(Store { root, shared: true })
    }

    /// The shared store, to be filled or emptied.
    ///
    /// # Errors
    /// If somebody else than root asks, or others can write it.
    pub fn open_shared() -> Result<Self, ImageError> {
        if !geteuid().is_root() {
            return Err(ImageError::SharedIsRoots);
        }
        let root = shared_place();
        fs::create_dir_all(&root).doing("create", &root)?;
        let mut store = Store::open(&root)?;
        store.shared = true;
        let readable = READ.iter().map(|name| (root.join(name), 0o755));
        let places = [(root.clone(), 0o755), (root.join(USES), 0o1777)];
        for (path, mode) in places.into_iter().chain(readable) {
            let found = lstat(&path).doing("look at", &path)?;
            if found.st_uid != 0 {
                return Err(ImageError::UnsafeShared { path });
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                .doing("set the mode of", path)?;
        }
        Ok(store)
    }

    /// Puts an image of another store into this, the shared one.
    ///
    /// # Errors
    /// If a part of it is missing or cannot be written.
    pub fn share(&self, from: &Store, image: &Image) -> Result<Image, ImageError> {
        let _adding = self.adding()?;
        let manifest = from.manifest(&image.digest)?;
        let parts = manifest.layers.iter().chain([&manifest.config]);
        for digest in parts.map(|part| &part.digest).chain([&image.digest]) {
            let blob = from.blob(digest).ok_or_else(|| ImageError::Inconsistent {
                why: format!("its content {digest} is not in the store"),
            })?;
            self.add_file(&blob.path, digest)?;
        }
        self.add_image(&image.digest, &[], crate::Limits::default(), |_, _| {})
    }

    /// Lets everybody read a tree that is about to become visible.
    pub(crate) fn open_to_all(&self, tree: &Path) -> Result<(), ImageError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = openat(CWD, tree, flags, Mode::empty()).doing("open", tree)?;
        readable(top.as_fd(), tree, 0)
    }

    /// Removes an image from the shared store.
    ///
    /// # Errors
    /// If it is not there, or a cage uses it.
    pub fn unshare(&self, name: &str) -> Result<Pruned, ImageError> {
        let _lock = self.removing()?;
        let image = self.image(name)?;
        let record = self.path("images", &image.digest);
        let aside = self.path("temporary", &image.digest);
        step();
        fs::rename(&record, &aside).doing("remove", &record)?;
        step();
        match self.in_use(&image.digest) {
            Ok(None) => {}
            Ok(Some(user)) => {
                fs::rename(&aside, &record).doing("create", record)?;
                return Err(ImageError::SharedInUse {
                    name: image.name(),
                    user,
                });
            }
            Err(error) => {
                fs::rename(&aside, &record).doing("create", record)?;
                return Err(error);
            }
        }
        let mut pruned = Pruned {
            images: vec![image.name()],
            ..Pruned::default()
        };
        self.collect(&mut pruned)?;
        Ok(pruned)
    }

    /// The user whose cage uses an image, if one does. Lock files that nobody holds are removed.
    fn in_use(&self, digest: &Digest) -> Result<Option<u32>, ImageError> {
        let uses = self.root.join(USES);
        for name in listed(&uses)? {
            let is_of = |rest: &str| rest.starts_with('.');
            let rest = name
                .to_str()
                .and_then(|name| name.strip_prefix(digest.hex()));
            if !rest.is_some_and(is_of) {
                continue;
            }
            let path = uses.join(&name);
            // What is not a file was made to hold this up, and nobody's cage looks at it.
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = open(&path, flags, Mode::empty()).ok();
            if let Some(file) = &file {
                let found = fstat(file).doing("look at", &path)?;
                let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
                let lock = FlockOperation::NonBlockingLockExclusive;
                if is_file && flock(file, lock) == Err(Errno::WOULDBLOCK) {
                    return Ok(Some(found.st_uid));
                }
            }
            // Under the lock: a cage that opened it just now sees that it is gone.
            ironcage_state::remove_tree(&uses, &name)?;
            drop(file);
        }
        Ok(None)
    }

    /// To be held by a cage that runs an image of the shared store.
    pub(crate) fn use_shared(&self, image: &Image) -> Result<ImageUse, ImageError> {
        let own = format!("{}.{}", image.digest.hex(), geteuid().as_raw());
        let held = match self.lock_use(&own)? {
            Some(held) => held,
            // Somebody else took the name: one that nobody can know.
            None => self
                .lock_use(&format!("{own}.{}", random()?))?
                .ok_or_else(|| ImageError::Missing { name: image.name() })?,
        };
        match self.path("images", &image.digest).exists() {
            true => Ok(ImageUse::of(held)),
            false => Err(ImageError::Missing { name: image.name() }),
        }
    }

    /// A lock file of this user's, locked; `None` if it cannot be theirs.
    fn lock_use(&self, name: &str) -> Result<Option<OwnedFd>, ImageError> {
        let path = self.root.join(USES).join(name);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Once more for each removal in between, which is root's and rare.
        for _ in 0..16 {
            let file = match open(&path, flags, Mode::from(0o600)) {
                Ok(file) => file,
                Err(Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
                    return Ok(None);
                }
                Err(error) => return Err(error).doing("open", path),
            };
            let found = fstat(&file).doing("look at", &path)?;
            let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
            if !is_file || found.st_uid != geteuid().as_raw() {
                return Ok(None);
            }
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {}
                // Root looks at it just now.
                Err(Errno::WOULDBLOCK) => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    continue;
                }
                Err(error) => return Err(error).doing("lock", path),
            }
            let same = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW);
            let is_there = |there: ironcage_sys::rustix::fs::Stat| {
                (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)
            };
            if same.is_ok_and(is_there) {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}

/// Digits that nobody can guess.
fn random() -> Result<String, ImageError> {
    use std::fmt::Write as _;
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes[..], GetRandomFlags::empty()).doing("read", "random numbers")?;
    let mut text = String::with_capacity(32);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// What its owner can read or search, everybody can.
fn readable(directory: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<(), ImageError> {
    if depth > DEEPEST {
        return Err(ImageError::Inconsistent {
            why: format!("it has directories deeper than {DEEPEST} levels"),
        });
    }
    let found = fstat(directory).doing("look at", path)?;
    fchmod(directory, opened(found.st_mode)).doing("set the mode of", path)?;
    for entry in Dir::read_from(directory).doing("list", path)? {
        let entry = entry.doing("list", path)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let below = path.join(Path::new(std::ffi::OsStr::new(
            String::from_utf8_lossy(name.to_bytes()).as_ref(),
        )));
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).doing("look at", &below)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                let flags = flags | OFlags::DIRECTORY;
                let inner = openat(directory, name, flags, Mode::empty()).doing("open", &below)?;
                readable(inner.as_fd(), &below, depth + 1)?;
            }
            FileType::RegularFile => {
                let file = openat(directory, name, flags, Mode::empty()).doing("open", &below)?;
                fchmod(&file, opened(found.st_mode)).doing("set the mode of", &below)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// A mode with the owner's rights to read and search for all, and nobody's to write but root's.
fn opened(mode: u32) -> Mode {
    let read = mode & 0o500;
    Mode::from((mode & 0o755) | read | read >> 3 | read >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_owner_reads_everybody_reads_and_nobody_writes() {
        for (mode, expected) in [
            (0o100_600, 0o644),
            (0o100_700, 0o755),
            (0o040_777, 0o755),
            (0o104_755, 0o755),
            (0o100_666, 0o644),
            (0o100_400, 0o444),
        ] {
            assert_eq!(opened(mode), Mode::from(expected), "{mode:o}");
        }
    }

    #[test]
    fn only_a_whole_digest_is_looked_for() {
        let digest = Digest::of(b"x");
        for name in [
            digest.to_string(),
            format!("python@{digest}"),
            format!("a.b/c:1@{digest}"),
        ] {
            assert_eq!(digest_in(&name), Some(digest.clone()), "{name}");
        }
        for name in ["python:3.12", digest.short(), digest.hex(), "sha256:abcd"] {
            assert_eq!(digest_in(name), None, "{name}");
        }
    }
}
