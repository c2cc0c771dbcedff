//! Joins the layers of an image to one tree, by hard links.
//!
//! A cage then sees an image as it sees any other root directory, by a few bind mounts, and a start
//! costs the same however many layers there are (docs/adr/0034).

use crate::ImageError;
use crate::error::Doing as _;
use crate::unpack::OPAQUE_MARK;
use ironcage_sys::rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, fgetxattr, fstat,
    futimens, linkat, mkdirat, openat, readlinkat, statat, symlinkat, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Files that every root has, because the cage covers them with its own.
const COVERED: [&str; 5] = ["passwd", "group", "hosts", "hostname", "resolv.conf"];

/// How deep a tree may be. Each level takes two descriptors here, and links in a layer make trees
/// that no path could name.
const DEEPEST: usize = 256;

/// Fills the empty directory `into` with the layers, the lowest first.
pub(crate) fn flatten(layers: &[PathBuf], into: &Path) -> Result<(), ImageError> {
    let top = openat(CWD, into, DIRECTORY, Mode::empty()).doing("open", into)?;
    for layer in layers {
        let from = openat(CWD, layer, DIRECTORY, Mode::empty()).doing("open", layer)?;
        directory(from.as_fd(), top.as_fd(), Path::new(""), 0)?;
    }
    covered(top.as_fd())
}

/// Makes sure that there is something to cover. A link in its place would cover another file.
fn covered(top: BorrowedFd<'_>) -> Result<(), ImageError> {
    match mkdirat(top, "etc", Mode::from(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error).doing("create", "etc"),
    }
    // A link would lead those who read it outside a cage to the host's own /etc.
    let etc = match openat(top, "etc", DIRECTORY, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(ImageError::Inconsistent {
                why: "its /etc is not a directory".into(),
            });
        }
        other => other.doing("open", "etc")?,
    };
    for name in COVERED {
        let found = statat(&etc, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_file = found
            .as_ref()
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
        if is_file {
            continue;
        }
        if found.is_ok() {
            clear(etc.as_fd(), OsStr::new(name), Path::new(name))?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        openat(&etc, name, flags, Mode::from(0o644)).doing("create", name)?;
    }
    Ok(())
}

fn directory(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &Path,
    depth: usize,
) -> Result<(), ImageError> {
    if depth > DEEPEST {
        return Err(ImageError::Inconsistent {
            why: format!("it has directories deeper than {DEEPEST} levels"),
        });
    }
    for name in names(from, path)? {
        entry(from, to, &name, &path.join(&name), depth)?;
    }
    Ok(())
}

fn entry(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    depth: usize,
) -> Result<(), ImageError> {
    let found = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).doing("look at", path)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {
            let source = openat(from, name, DIRECTORY, Mode::empty()).doing("open", path)?;
            if is_opaque(source.as_fd()).doing("look at", path)? {
                clear(to, name, path)?;
            }
            let target = open_or_create(to, name, path)?;
            directory(source.as_fd(), target.as_fd(), path, depth + 1)?;
            let same = fstat(&source).doing("look at", path)?;
            fchmod(&target, Mode::from_raw_mode(same.st_mode)).doing("set the mode of", path)?;
            let time = Timespec {
                tv_sec: same.st_mtime,
                tv_nsec: 0,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            futimens(&target, &times).doing("set the time of", path)
        }
        // The mark of a deletion; no other device is in a layer.
        FileType::CharacterDevice => clear(to, name, path),
        FileType::Symlink => {
            let says = readlinkat(from, name, Vec::new()).doing("read", path)?;
            clear(to, name, path)?;
            symlinkat(says, to, name).doing("create", path)
        }
        _ => {
            clear(to, name, path)?;
            match linkat(from, name, to, name, AtFlags::empty()) {
                Ok(()) => Ok(()),
                // A file has as many names as its file system allows.
                Err(Errno::MLINK) => copy(from, to, name).doing("copy", path),
                Err(error) => Err(error).doing("link", path),
            }
        }
    }
}

fn open_or_create(to: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<OwnedFd, ImageError> {
    match openat(to, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => return Ok(directory),
        Err(Errno::NOENT) => {}
        // Something else is there, also a link to a directory.
        Err(Errno::NOTDIR | Errno::LOOP) => clear(to, name, path)?,
        Err(error) => return Err(error).doing("open", path),
    }
    mkdirat(to, name, Mode::from(0o700)).doing("create", path)?;
    openat(to, name, DIRECTORY, Mode::empty()).doing("open", path)
}

/// Removes what is at a name, whatever it is.
fn clear(directory: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<(), ImageError> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => {
            // By the handle, so that no link above is followed.
            let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
            ironcage_state::remove_tree(Path::new(&place), name)?;
            Ok(())
        }
        Err(error) => Err(error).doing("remove", path),
    }
}

fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut source = std::fs::File::from(openat(from, name, flags, Mode::empty())?);
    let mode = Mode::from_raw_mode(fstat(&source)?.st_mode);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut target = std::fs::File::from(openat(to, name, flags, Mode::from(0o600))?);
    io::copy(&mut source, &mut target)?;
    fchmod(&target, mode)?;
    Ok(())
}

fn is_opaque(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut value = [0_u8; 8];
    match fgetxattr(directory, OPAQUE_MARK, value.as_mut_slice()) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(error) => Err(error),
    }
}

fn names(directory: BorrowedFd<'_>, path: &Path) -> Result<Vec<OsString>, ImageError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).doing("list", path)? {
        let name = entry.doing("list", path)?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Stage(tempfile::TempDir);

    impl Stage {
        fn new() -> Self {
            let top = tempfile::tempdir().unwrap();
            fs::create_dir(top.path().join("layer")).unwrap();
            fs::create_dir(top.path().join("root")).unwrap();
            Stage(top)
        }

        fn layer(&self) -> PathBuf {
            self.0.path().join("layer")
        }

        fn root(&self) -> PathBuf {
            self.0.path().join("root")
        }

        fn flatten(&self) -> Result<(), ImageError> {
            flatten(&[self.layer()], &self.root())
        }
    }

    #[test]
    fn an_etc_that_is_a_link_is_refused() {
        for (target, allowed) in [(None, true), (Some("/etc"), false), (Some("usr"), false)] {
            let stage = Stage::new();
            fs::create_dir(stage.layer().join("usr")).unwrap();
            match target {
                None => fs::create_dir(stage.layer().join("etc")).unwrap(),
                Some(target) => symlink(target, stage.layer().join("etc")).unwrap(),
            }
            let result = stage.flatten();
            match allowed {
                true => {
                    result.unwrap();
                    assert!(stage.root().join("etc/passwd").is_file());
                }
                false => assert!(
                    matches!(result, Err(ImageError::Inconsistent { .. })),
                    "{result:?}"
                ),
            }
        }
    }

    #[test]
    fn a_tree_may_be_as_deep_as_the_limit() {
        for (levels, allowed) in [(DEEPEST, true), (DEEPEST + 1, false)] {
            let stage = Stage::new();
            let deep: PathBuf = std::iter::repeat_n("d", levels).collect();
            fs::create_dir_all(stage.layer().join(&deep)).unwrap();
            let result = stage.flatten();
            match allowed {
                true => {
                    result.unwrap();
                    assert!(stage.root().join(&deep).is_dir());
                }
                false => assert!(
                    matches!(result, Err(ImageError::Inconsistent { .. })),
                    "{result:?}"
                ),
            }
        }
    }
}
