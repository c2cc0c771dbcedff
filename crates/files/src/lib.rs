//! Reads files that an earlier agent may have prepared, before a cage exists.
//!
//! A workspace can hold a FIFO, a socket or a huge sparse file under any name that Ironcage looks
//! for. [`read`] and [`read_text`] open such a path without waiting, accept a regular file of
//! bounded size, and refuse everything else with an error that names the path.
#![forbid(unsafe_code)]

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// File systems whose regular files can block, have side effects or never end: procfs, sysfs,
/// tracefs and debugfs, as in `linux/magic.h`.
const KERNEL_FILE_SYSTEMS: [u64; 4] = [0x9fa0, 0x6265_6572, 0x7472_6163, 0x6462_6720];

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// For files of the user's own, who may keep them elsewhere.
    Follow,
    /// For names in a workspace: a link there would make us read another file of the user.
    Refuse,
}

/// What is at a path instead of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundKind {
    Directory,
    Fifo,
    Socket,
    /// A character or block device.
    Device,
    /// A symbolic link, where links are refused.
    Link,
    /// A file that the kernel makes up, in `/proc` or `/sys`.
    Kernel,
}

impl std::fmt::Display for FoundKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FoundKind::Directory => "a directory",
            FoundKind::Fifo => "a FIFO",
            FoundKind::Socket => "a socket",
            FoundKind::Device => "a device",
            FoundKind::Link => "a symbolic link",
            FoundKind::Kernel => "a kernel file",
        })
    }
}

/// Why a file was not read. [`ReadError::reason`] is the cause without the path.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel refused to open or read it.
    #[error("cannot read {}: {source}", path.display())]
    Failed { path: PathBuf, source: io::Error },
    /// Something other than a regular file is there.
    #[error("cannot read {}: {}", path.display(), self.reason())]
    NotRegular { path: PathBuf, found: FoundKind },
    /// It has more bytes than such a file may have.
    #[error("cannot read {}: {}", path.display(), self.reason())]
    TooLarge {
        path: PathBuf,
        /// The most that is read, in bytes.
        largest: u64,
    },
    /// It is not UTF-8.
    #[error("cannot read {}: {}", path.display(), self.reason())]
    NotText { path: PathBuf },
}

impl ReadError {
    pub fn is_absent(&self) -> bool {
        let absent = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            )
        };
        matches!(self, ReadError::Failed { source, .. } if absent(source))
    }

    /// The cause, with the remedy where there is one.
    pub fn reason(&self) -> String {
        match self {
            ReadError::Failed { source, .. } => source.to_string(),
            ReadError::NotRegular { found, .. } => {
                format!("expected a regular file, found {found}; put a regular file there")
            }
            ReadError::TooLarge { largest, .. } if largest.is_multiple_of(1024) => {
                format!("expected at most {} KiB; shorten it", largest / 1024)
            }
            ReadError::TooLarge { largest, .. } => {
                format!("expected at most {largest} bytes; shorten it")
            }
            ReadError::NotText { .. } => "expected UTF-8 text".into(),
        }
    }
}

impl From<ReadError> for io::Error {
    /// Without the path, which callers with errors of their own name themselves.
    fn from(error: ReadError) -> io::Error {
        match error {
            ReadError::Failed { source, .. } => source,
            ReadError::NotText { .. } => io::Error::new(io::ErrorKind::InvalidData, error.reason()),
            ReadError::NotRegular { .. } | ReadError::TooLarge { .. } => {
                io::Error::other(error.reason())
            }
        }
    }
}

/// Reads a regular file of at most `largest` bytes, without waiting for anybody.
///
/// # Errors
/// Where it is absent, larger, not a regular file, or cannot be read.
pub fn read(path: &Path, largest: u64, links: Links) -> Result<Vec<u8>, ReadError> {
    let failed = |source: io::Error| ReadError::Failed {
        path: path.to_owned(),
        source,
    };
    let (file, size) = open_regular(path, links)?;
    let too_large = || ReadError::TooLarge {
        path: path.to_owned(),
        largest,
    };
    // A sparse file of terabytes costs nothing to make; it is refused before a byte is read.
    if size > largest {
        return Err(too_large());
    }
    // One byte more than it has: a read that does not fill it has come to the end.
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0).saturating_add(1));
    loop {
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => return Ok(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        match bytes.len() as u64 {
            read if read == size => return Ok(bytes),
            // It grew meanwhile.
            read if read > largest => return Err(too_large()),
            _ => bytes.reserve(READ_AT_ONCE),
        }
    }
}

/// Whether anything is at a path, a link that leads nowhere included. By rustix: the standard library
/// asks the kernel a second time what it can, when it is first told that nothing is there.
pub fn is_there(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok()
}

/// What is read at once of a file that grows while it is read.
const READ_AT_ONCE: usize = 64 * 1024;

/// Reads a regular file of at most `largest` bytes as UTF-8 text.
///
/// # Errors
/// As [`read`], and where it is not UTF-8.
pub fn read_text(path: &Path, largest: u64, links: Links) -> Result<String, ReadError> {
    let bytes = read(path, largest, links)?;
    String::from_utf8(bytes).map_err(|_| ReadError::NotText {
        path: path.to_owned(),
    })
}

/// Opens a regular file for reading, without waiting. Returns its size with it.
///
/// # Errors
/// Where it is absent, not a regular file, or cannot be opened.
pub fn open_regular(path: &Path, links: Links) -> Result<(File, u64), ReadError> {
    let failed = |errno: Errno| ReadError::Failed {
        path: path.to_owned(),
        source: errno.into(),
    };
    let not_regular = |found| ReadError::NotRegular {
        path: path.to_owned(),
        found,
    };
    // NONBLOCK: a FIFO has no writer, and a file under a lease of the agent is not waited for.
    // NOCTTY: a terminal would become ours.
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => file,
        // Sockets cannot be opened.
        Err(Errno::NXIO) => return Err(not_regular(FoundKind::Socket)),
        Err(Errno::LOOP) if links == Links::Refuse => return Err(not_regular(FoundKind::Link)),
        Err(errno) => return Err(failed(errno)),
    };
    let stat = fstat(&file).map_err(failed)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(not_regular(FoundKind::Directory)),
        FileType::Fifo => return Err(not_regular(FoundKind::Fifo)),
        FileType::Socket => return Err(not_regular(FoundKind::Socket)),
        _ => return Err(not_regular(FoundKind::Device)),
    }
    let file_system = fstatfs(&file).map_err(failed)?.f_type as u64;
    if KERNEL_FILE_SYSTEMS.contains(&file_system) {
        return Err(not_regular(FoundKind::Kernel));
    }
    Ok((File::from(file), u64::try_from(stat.st_size).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;
    use rustix::fs::{CWD, mkfifoat};
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    fn found(path: &Path, links: Links) -> FoundKind {
        match read(path, 64, links) {
            Err(ReadError::NotRegular { found, path: named }) => {
                assert_eq!(named, path);
                found
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    #[test]
    fn a_regular_file_of_the_bounded_size_is_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, [b'a'; 64]).unwrap();
        assert_eq!(read(&path, 64, Links::Refuse).unwrap(), [b'a'; 64]);
        assert_eq!(read_text(&path, 64, Links::Refuse).unwrap().len(), 64);
        assert!(matches!(
            read(&path, 63, Links::Refuse),
            Err(ReadError::TooLarge { largest: 63, .. })
        ));
        let link = place.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read(&link, 64, Links::Follow).unwrap().len(), 64);
        std::fs::write(&path, [0xff]).unwrap();
        let not_text = read_text(&path, 64, Links::Refuse);
        assert!(matches!(not_text, Err(ReadError::NotText { .. })));
    }

    #[test]
    fn everything_else_is_refused_at_once_and_named() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        mkfifoat(CWD, at("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        symlink("fifo", at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink("/proc/self/maps", at("maps")).unwrap();
        let sparse = File::create(at("sparse")).unwrap();
        sparse.set_len(10 << 30).unwrap();
        for links in [Links::Refuse, Links::Follow] {
            assert_eq!(found(&at("fifo"), links), FoundKind::Fifo);
            assert_eq!(found(&at("socket"), links), FoundKind::Socket);
            assert_eq!(found(place.path(), links), FoundKind::Directory);
            assert_eq!(found(Path::new("/dev/zero"), links), FoundKind::Device);
            let large = read(&at("sparse"), 64, links).unwrap_err();
            assert!(matches!(large, ReadError::TooLarge { .. }), "{large}");
        }
        for (link, behind) in [
            ("link", FoundKind::Fifo),
            ("zero", FoundKind::Device),
            ("maps", FoundKind::Kernel),
        ] {
            assert_eq!(found(&at(link), Links::Follow), behind);
            assert_eq!(found(&at(link), Links::Refuse), FoundKind::Link);
        }
        let absent = read(&at("absent"), 64, Links::Refuse).unwrap_err();
        assert!(absent.is_absent());
        assert!(
            !read(&at("fifo"), 64, Links::Refuse)
                .unwrap_err()
                .is_absent()
        );
    }
}
