//! A walk over writable directories, in small steps: what has been added since a moment.
//!
//! A file that was born since is new, all of it, whatever was removed elsewhere. Of an older file
//! that was changed nobody knows how much is new. The two are told apart, because only the first
//! is proof.
//!
//! No symbolic link is followed and no file system boundary crossed. The directories on the way
//! down are kept open, so that one that is renamed leads nowhere else, that each is opened once,
//! and that the walk holds no names: its memory is bounded by its depth, whatever is found. What
//! it could not look into is told, because there anything may lie.

use ironcage_sys::process::started_as;
use ironcage_sys::rustix;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// How deep the walk goes. Trees that people and tools make are some tens of levels deep.
const DEEPEST: usize = 128;
/// How many files with several names are remembered; more are counted by each of their names.
const MOST_REMEMBERED: usize = 1 << 20;

/// Bytes and files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Files that were made since, and their bytes.
    pub(crate) certain: Amount,
    /// What may be new besides: bytes of older files that were changed; and files that were
    /// changed, where the file system keeps no time of birth.
    pub(crate) possible: Amount,
    /// Whether there are places where the cage may have added more: what is too deep, and what
    /// it can enter but we cannot read.
    pub(crate) blind: bool,
}

/// Device and inode number of a directory.
pub(crate) type Identity = ((u32, u32), u64);

/// Where a walk starts. A root that lies in another is walked once, as a root.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) identity: Identity,
    /// The directory, opened for reading (not O_PATH).
    pub(crate) directory: OwnedFd,
    /// What is older than this is not new. By the clock that the kernel stamps files with.
    pub(crate) since: Duration,
}

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Roots that have been begun.
    begun: usize,
    /// The directories from a root down to the one that is being read.
    open: Vec<Level>,
    /// Changed files with several names count once.
    several: BTreeSet<(u32, u32, u64)>,
    added: Added,
    /// How many old entries of a root are looked at before the rest of it is left alone.
    most_old: Option<usize>,
    old_seen: usize,
}

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    entries: Dir,
    since: Duration,
    device: (u32, u32),
    /// Whether the cage could go in even if we cannot.
    enterable: bool,
}

/// What the next entry of a directory was.
enum Step {
    /// Counted, or not to be counted.
    Done,
    /// A directory to go into.
    Into(Level),
    End,
}

impl Walk {
    /// Starts at all roots, and sees everything.
    pub(crate) fn new() -> Walk {
        Walk {
            begun: 0,
            open: Vec::new(),
            several: BTreeSet::new(),
            added: Added::default(),
            most_old: None,
            old_seen: 0,
        }
    }

    /// The same, but leaves the rest of a root alone after `most` old entries in it. What is new
    /// is counted without such a bound: the cage made it, and the cage pays for it.
    pub(crate) fn past_old(most: usize) -> Walk {
        Walk {
            most_old: Some(most),
            ..Walk::new()
        }
    }

    /// Reads directories until `budget` entries are seen. `Some` when the walk is over.
    pub(crate) fn step(&mut self, roots: &[Root], budget: usize) -> Option<Added> {
        for _ in 0..budget {
            if self.most_old.is_some_and(|most| self.old_seen > most) {
                self.open.clear();
            }
            let Some(mut level) = self.open.pop() else {
                let Some(root) = roots.get(self.begun) else {
                    return Some(self.added);
                };
                self.begun += 1;
                self.old_seen = 0;
                match open(root.directory.as_fd(), c".", root.since) {
                    Ok(level) => self.open.push(level),
                    Err(_) => self.added.blind = true,
                }
                continue;
            };
            match self.next_entry(&mut level, roots) {
                Step::Done => self.open.push(level),
                Step::Into(below) => self.open.extend([level, below]),
                Step::End => {}
            }
        }
        None
    }

    fn next_entry(&mut self, level: &mut Level, roots: &[Root]) -> Step {
        let entry = match level.entries.read() {
            None => return Step::End,
            Some(Ok(entry)) => entry,
            Some(Err(_)) => {
                self.added.blind = true;
                return Step::End;
            }
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return Step::Done;
        }
        let Ok(directory) = level.entries.fd() else {
            self.added.blind = true;
            return Step::End;
        };
        let stat = match stat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It is gone; or the directory shows names and lets nobody look at them.
            Err(error) => {
                self.added.blind |= match error.kind() {
                    io::ErrorKind::NotFound => false,
                    io::ErrorKind::PermissionDenied => level.enterable,
                    _ => true,
                };
                return Step::Done;
            }
        };
        if device(&stat) != level.device {
            return Step::Done;
        }
        self.count(&stat, level.since);
        let is_root = || roots.iter().any(|root| root.identity == identity(&stat));
        if !is_directory(&stat) || is_root() {
            return Step::Done;
        }
        // The level itself was taken out of the list.
        if self.open.len() + 1 >= DEEPEST {
            self.added.blind = true;
            return Step::Done;
        }
        match open(directory, name, level.since) {
            Ok(below) if below.device == level.device => Step::Into(below),
            // Something was mounted there since.
            Ok(_) => Step::Done,
            // It is gone, or turned into something else.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Step::Done,
            Err(Errno::ACCESS) => {
                self.added.blind |= may_be_entered(&stat);
                Step::Done
            }
            Err(_) => {
                self.added.blind = true;
                Step::Done
            }
        }
    }

    fn count(&mut self, stat: &Statx, since: Duration) {
        let changed = since_epoch(stat.stx_ctime) >= since;
        let born = match stat.stx_mask & StatxFlags::BTIME.bits() {
            0 => None,
            _ => Some(since_epoch(stat.stx_btime) >= since),
        };
        if !changed && born != Some(true) {
            self.old_seen += 1;
            return;
        }
        let key = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        if stat.stx_nlink > 1
            && !is_directory(stat)
            && self.several.len() < MOST_REMEMBERED
            && !self.several.insert(key)
        {
            return;
        }
        let held = match born {
            Some(true) => &mut self.added.certain,
            Some(false) | None => &mut self.added.possible,
        };
        held.bytes += stat.stx_blocks.saturating_mul(512);
        if born != Some(false) {
            held.files += 1;
        }
    }
}

fn is_directory(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory
}

/// Whether somebody like us could go into a directory that we cannot read: its owner can let
/// himself in, others need the right to search it. (A user's cage has the user's rights.)
fn may_be_entered(stat: &Statx) -> bool {
    stat.stx_uid == started_as() || stat.stx_mode & 0o011 != 0
}

fn since_epoch(time: rustix::fs::StatxTimestamp) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec)
}

/// The clock by which the kernel stamps files: up to a timer tick behind the precise one.
pub(crate) fn stamp_clock() -> Duration {
    ironcage_sys::host::coarse_time()
}

/// Major and minor number of the device a file is on.
pub(crate) fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

/// By which a directory is known.
pub(crate) fn identity(stat: &Statx) -> Identity {
    (device(stat), stat.stx_ino)
}

/// Asks for what the walk needs.
pub(crate) fn stat(
    directory: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    flags: AtFlags,
) -> io::Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(directory, name, flags, mask)?)
}

fn open(directory: BorrowedFd<'_>, name: &CStr, since: Duration) -> Result<Level, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let mask = StatxFlags::BASIC_STATS;
    let stat = rustix::fs::statx(&opened, c"", AtFlags::EMPTY_PATH, mask)?;
    Ok(Level {
        entries: Dir::new(opened)?,
        since,
        device: device(&stat),
        enterable: may_be_entered(&stat),
    })
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

    fn root(path: &PathBuf, since: Duration) -> Root {
        let directory = fs::File::open(path).unwrap();
        Root {
            identity: identity(&stat(directory.as_fd(), c"", AtFlags::EMPTY_PATH).unwrap()),
            directory: directory.into(),
            since,
        }
    }

    fn earlier() -> Duration {
        stamp_clock() - Duration::from_millis(50)
    }

    fn walk(path: &PathBuf, since: Duration) -> Added {
        finish(Walk::new(), path, since)
    }

    fn finish(mut walk: Walk, path: &PathBuf, since: Duration) -> Added {
        let roots = [root(path, since)];
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
        let since = stamp_clock();
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
        let Amount { bytes, files } = added.certain;
        assert_eq!(files, 42);
        assert!((1 << 20..2 << 20).contains(&bytes), "{added:?}");
        // The old directory was changed, and is no new file.
        assert_eq!(added.possible.files, 0);
    }

    #[test]
    fn what_an_old_file_grew_by_is_possible_and_not_certain() {
        let path = scratch("grown");
        fs::write(path.join("old"), "small").unwrap();
        std::thread::sleep(Duration::from_millis(30));
        let since = stamp_clock();
        fs::write(path.join("old"), vec![1; 1 << 20]).unwrap();
        let added = walk(&path, since);
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(added.certain, Amount::default());
        assert!(
            added.possible.bytes >= 1 << 20 && added.possible.files == 0,
            "{added:?}"
        );
    }

    #[test]
    fn many_old_entries_are_left_alone_and_new_ones_never() {
        let path = scratch("past");
        for number in 0..300 {
            fs::write(path.join(format!("old-{number}")), "").unwrap();
        }
        std::thread::sleep(Duration::from_millis(30));
        let since = stamp_clock();
        let seen = finish(Walk::past_old(100), &path, since);
        assert_eq!(seen, Added::default());
        fs::remove_dir_all(&path).unwrap();
        fs::create_dir(&path).unwrap();
        for number in 0..300 {
            fs::write(path.join(format!("new-{number}")), "").unwrap();
        }
        let seen = finish(Walk::past_old(100), &path, since);
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(seen.certain.files, 300);
    }

    #[test]
    fn a_root_in_another_is_counted_once_whichever_comes_first() {
        let path = scratch("nested");
        let since = earlier();
        fs::create_dir(path.join("inner")).unwrap();
        fs::write(path.join("inner/file"), "new").unwrap();
        let (outer, inner) = (root(&path, since), root(&path.join("inner"), since));
        let mut roots = [outer, inner];
        let mut count = || {
            let added = Walk::new().step(&roots, 1000).unwrap();
            roots.reverse();
            added.certain.files
        };
        let counts = (count(), count());
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(counts, (2, 2));
    }

    #[test]
    fn setting_times_back_hides_nothing() {
        let path = scratch("times");
        let since = earlier();
        let file = fs::File::create(path.join("new")).unwrap();
        std::io::Write::write_all(&mut &file, &vec![1; 1 << 20]).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let added = walk(&path, since);
        fs::remove_dir_all(&path).unwrap();
        let Amount { bytes, files } = added.certain;
        assert!(bytes >= 1 << 20 && files == 1, "{added:?}");
    }

    /// Directories within one another, each beside an empty one; removed from the bottom up.
    fn chain(path: &std::path::Path, depth: usize) -> impl Drop {
        struct Chain(OwnedFd, usize);
        impl Drop for Chain {
            fn drop(&mut self) {
                let top = self.0.try_clone().unwrap();
                let mut levels = vec![top];
                for _ in 1..self.1 {
                    let last = levels.last().unwrap();
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    levels.push(rustix::fs::openat(last, c"a", flags, Mode::empty()).unwrap());
                }
                while let Some(level) = levels.pop() {
                    let _ = rustix::fs::unlinkat(&level, c"a", AtFlags::REMOVEDIR);
                    let _ = rustix::fs::unlinkat(&level, c"b", AtFlags::REMOVEDIR);
                }
            }
        }
        let top = OwnedFd::from(fs::File::open(path).unwrap());
        let mut here = top.try_clone().unwrap();
        for _ in 0..depth {
            for name in [c"b", c"a"] {
                rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            here = rustix::fs::openat(&here, c"a", flags, Mode::empty()).unwrap();
        }
        Chain(top, depth)
    }

    #[test]
    fn a_chain_of_directories_is_walked_once_and_no_deeper_than_agreed() {
        let path = scratch("chain");
        let since = earlier();
        let roots = [root(&path, since)];
        let shallow = chain(&path, DEEPEST - 2);
        assert!(!walk(&path, since).blind);
        drop(shallow);
        let deep = chain(&path, 500);
        let mut walk = Walk::new();
        let mut steps = 0;
        let added = loop {
            steps += 1;
            if let Some(added) = walk.step(&roots, 1) {
                break added;
            }
            // Bounded memory: what is kept is what is open.
            assert!(walk.open.len() <= DEEPEST && walk.several.is_empty());
        };
        drop(deep);
        fs::remove_dir_all(&path).unwrap();
        assert!(added.blind, "what is too deep to be seen is told");
        // Four entries in each directory on the way (two are dots), three where `b` is looked
        // into: linear in the depth.
        assert!(steps < DEEPEST * 12, "{steps} steps");
    }

    #[test]
    fn who_can_enter_what_we_cannot_read() {
        let path = scratch("enter");
        let mut stat = stat(
            fs::File::open(&path).unwrap().as_fd(),
            c"",
            AtFlags::EMPTY_PATH,
        )
        .unwrap();
        fs::remove_dir_all(&path).unwrap();
        stat.stx_mode = 0o040_000;
        // Our own: its owner can give himself the right.
        assert!(may_be_entered(&stat));
        stat.stx_uid += 1;
        assert!(!may_be_entered(&stat));
        stat.stx_mode = 0o040_733;
        assert!(may_be_entered(&stat));
    }
}
