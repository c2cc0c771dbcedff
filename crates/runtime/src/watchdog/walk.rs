//! A walk over writable directories, in small steps: what has been added since a moment.
//!
//! No symbolic link is followed and no file system boundary crossed. Directories are reached
//! name by name from a descriptor, so that a path of any depth is reached and one that is
//! renamed on the way leads nowhere else.

use ironcage_sys::rustix;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// Bytes of files that were made or changed since; of a changed file all of them.
    pub(super) bytes: u64,
    /// Files that were made since; where the file system keeps no time of birth, or changed.
    pub(super) files: u64,
}

/// A walk under way.
#[derive(Debug)]
pub(super) struct Walk {
    since: Duration,
    /// Directories still to be read: number of the root, names from it.
    pending: Vec<(usize, Vec<CString>)>,
    /// Files with several names count once.
    several: HashSet<(u32, u32, u64)>,
    added: Added,
}

impl Walk {
    /// Starts at all roots; counts what is newer than `since`.
    pub(super) fn new(roots: usize, since: SystemTime) -> Walk {
        Walk {
            since: since.duration_since(UNIX_EPOCH).unwrap_or_default(),
            pending: (0..roots).map(|root| (root, Vec::new())).collect(),
            several: HashSet::new(),
            added: Added::default(),
        }
    }

    /// Reads directories until about `budget` entries are seen. `Some` when the walk is over.
    pub(super) fn step(&mut self, roots: &[OwnedFd], budget: usize) -> Option<Added> {
        let mut seen = 0;
        while seen < budget {
            let Some((root, names)) = self.pending.pop() else {
                return Some(self.added);
            };
            let Some(start) = roots.get(root) else {
                continue;
            };
            // A directory that is gone, or turned into something else, holds nothing.
            seen += 1 + self
                .read_directory(start.as_fd(), root, &names)
                .unwrap_or(0);
        }
        None
    }

    fn read_directory(
        &mut self,
        start: BorrowedFd<'_>,
        root: usize,
        names: &[CString],
    ) -> io::Result<usize> {
        let directory = open_below(start, names)?;
        let device = device(&stat(directory.as_fd(), c"", AtFlags::EMPTY_PATH)?);
        let mut seen = 0;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            seen += 1;
            let Ok(stat) = stat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if self::device(&stat) != device {
                continue;
            }
            self.count(&stat);
            if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory {
                let mut below = names.to_vec();
                below.push(name.to_owned());
                self.pending.push((root, below));
            }
        }
        Ok(seen)
    }

    fn count(&mut self, stat: &Statx) {
        let is_directory = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        let key = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        if stat.stx_nlink > 1 && !is_directory && !self.several.insert(key) {
            return;
        }
        let changed = since_epoch(stat.stx_ctime) >= self.since;
        let born = if stat.stx_mask & StatxFlags::BTIME.bits() == 0 {
            changed
        } else {
            since_epoch(stat.stx_btime) >= self.since
        };
        if changed {
            self.added.bytes += stat.stx_blocks.saturating_mul(512);
        }
        if born {
            self.added.files += 1;
        }
    }
}

fn since_epoch(time: rustix::fs::StatxTimestamp) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec)
}

/// Major and minor number of the device a file is on.
pub(super) fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

/// Asks for what the walk needs.
pub(super) fn stat(
    directory: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    flags: AtFlags,
) -> io::Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(directory, name, flags, mask)?)
}

fn open_below(start: BorrowedFd<'_>, names: &[CString]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::openat(start, c".", flags, Mode::empty())?;
    for name in names {
        directory = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("ironcage-walk-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn walk(path: &PathBuf, since: SystemTime) -> Added {
        let roots = [OwnedFd::from(fs::File::open(path).unwrap())];
        let mut walk = Walk::new(1, since);
        for _ in 0..10_000 {
            if let Some(added) = walk.step(&roots, 3) {
                return added;
            }
        }
        panic!("the walk does not end");
    }

    #[test]
    fn only_what_is_new_is_counted_whatever_its_depth() {
        let path = scratch("new");
        fs::write(path.join("old"), vec![1; 1 << 20]).unwrap();
        fs::create_dir(path.join("old-dir")).unwrap();
        // Times of files come from a clock with the grain of a timer tick.
        std::thread::sleep(Duration::from_millis(30));
        let since = SystemTime::now();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(walk(&path, since), Added::default());
        let mut deep = path.join("old-dir");
        for level in 0..40 {
            deep.push(format!("level-{level}"));
            fs::create_dir(&deep).unwrap();
        }
        fs::write(deep.join("new"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(deep.join("new"), deep.join("again")).unwrap();
        std::os::unix::fs::symlink("/", path.join("link")).unwrap();
        let added = walk(&path, since);
        fs::remove_dir_all(&path).unwrap();
        // Forty directories, one file with two names, one link that is not followed.
        assert_eq!(added.files, 42);
        assert!(added.bytes >= 1 << 20 && added.bytes < 2 << 20, "{added:?}");
    }

    #[test]
    fn setting_times_back_hides_nothing() {
        let path = scratch("times");
        let since = SystemTime::now() - Duration::from_millis(50);
        let file = fs::File::create(path.join("new")).unwrap();
        std::io::Write::write_all(&mut &file, &vec![1; 1 << 20]).unwrap();
        file.set_modified(UNIX_EPOCH).unwrap();
        let added = walk(&path, since);
        fs::remove_dir_all(&path).unwrap();
        assert!(added.bytes >= 1 << 20 && added.files == 1, "{added:?}");
    }
}
