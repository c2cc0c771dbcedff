//! How much one workspace may keep. Agents write transcripts and logs of every session and remove
//! none of them: the oldest of those go first. Nothing else is removed, because it may be a login or
//! a setting; where that is too much, the next start is refused.
//!
//! An agent made these trees: no link is followed, and a tree that is too deep to be counted counts
//! as too large.

use crate::error::{Doing, StateError};
use crate::store::Store;
use crate::tree::{as_os, names, open_directory};
use ironcage_sys::rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2, statat, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Left beside the home, where no agent reaches, by a run that found too much.
const OVER: &str = "over-limit";

/// Directories in each other that are counted.
const DEEPEST: usize = 64;

/// Endings of files in which programs only write down what they did.
const LOG_ENDINGS: [&str; 5] = [".log", ".jsonl", ".log.gz", ".trace", ".dmp"];

/// Directories in which there is nothing else.
const LOG_DIRECTORIES: [&str; 7] = [
    "log",
    "logs",
    "debug",
    "telemetry",
    "statsig",
    "shell-snapshots",
    "file-history",
];

/// How much may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Bytes for one workspace.
    pub workspace: u64,
    /// Bytes for one kept path of it.
    pub path: u64,
}

/// What came of looking at what is kept for a workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// How many log files were removed.
    pub files: u64,
    /// How many bytes they had.
    pub bytes: u64,
    /// The first limit that is still exceeded.
    pub over: Option<OverLimit>,
}

/// A limit that is exceeded by what is not log files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverLimit {
    /// The kept path, relative to the home; `None` for all of them together.
    pub path: Option<PathBuf>,
    /// Bytes that are kept; `None` where they cannot be counted.
    pub bytes: Option<u64>,
    pub limit: u64,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    bytes: u64,
    changed: (i64, i64),
}

/// What one kept path holds.
#[derive(Debug, Default)]
struct Contents {
    bytes: u64,
    logs: Vec<LogFile>,
    too_deep: bool,
}

impl Store {
    /// Whether the last run left more than its limits allowed. It is looked at again by the limits
    /// of today.
    pub fn was_over_limit(&self, workspace: &Path) -> bool {
        self.place(workspace).state.join(OVER).exists()
    }

    /// Removes the oldest log files where what is kept exceeds the limits. The paths are relative
    /// to the home.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn trim(
        &self,
        workspace: &Path,
        kept: &[PathBuf],
        limits: StateLimits,
    ) -> Result<Trimmed, StateError> {
        let Some(home) = self.home_of(workspace) else {
            return Ok(Trimmed::default());
        };
        let place = self.place(workspace);
        let mut trimmed = Trimmed::default();
        let mut all = Contents::default();
        for path in outermost(kept) {
            let mut contents = look(home.as_fd(), path).doing("look at", &place.home)?;
            trimmed.remove(home.as_fd(), &mut contents, limits.path);
            trimmed.note(Some(path), &contents, limits.path);
            all.bytes += contents.bytes;
            all.too_deep |= contents.too_deep;
            all.logs.append(&mut contents.logs);
        }
        trimmed.remove(home.as_fd(), &mut all, limits.workspace);
        trimmed.note(None, &all, limits.workspace);
        let mark = place.state.join(OVER);
        match trimmed.over {
            Some(_) => drop(File::create(&mark).doing("make", &mark)?),
            None => match std::fs::remove_file(&mark) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).doing("remove", &mark);
                }
                _ => {}
            },
        }
        Ok(trimmed)
    }
}

impl Trimmed {
    /// Removes the oldest log files until there is a tenth of room again.
    fn remove(&mut self, home: BorrowedFd<'_>, contents: &mut Contents, limit: u64) {
        if contents.bytes <= limit {
            return;
        }
        contents.logs.sort_by_key(|log| log.changed);
        let wanted = limit - limit / 10;
        let mut left = Vec::new();
        for log in contents.logs.drain(..) {
            if contents.bytes <= wanted || unlink(home, &log.path).is_err() {
                left.push(log);
                continue;
            }
            contents.bytes = contents.bytes.saturating_sub(log.bytes);
            self.files += 1;
            self.bytes += log.bytes;
        }
        contents.logs = left;
    }

    fn note(&mut self, path: Option<&Path>, contents: &Contents, limit: u64) {
        if self.over.is_none() && (contents.too_deep || contents.bytes > limit) {
            self.over = Some(OverLimit {
                path: path.map(Path::to_owned),
                bytes: (!contents.too_deep).then_some(contents.bytes),
                limit,
            });
        }
    }
}

/// Those of the paths that lie in no other.
fn outermost(kept: &[PathBuf]) -> Vec<&Path> {
    let mut outer: Vec<&Path> = Vec::new();
    let mut sorted: Vec<&Path> = kept.iter().map(PathBuf::as_path).collect();
    sorted.sort();
    for path in sorted {
        if !outer.iter().any(|known| path.starts_with(known)) {
            outer.push(path);
        }
    }
    outer
}

fn open_below(home: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(home, path, flags, Mode::empty(), resolve)?)
}

fn unlink(home: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = open_below(home, above.unwrap_or(Path::new(".")))?;
    let name = path.file_name().unwrap_or_default();
    Ok(unlinkat(&above, name, AtFlags::empty())?)
}

/// Counts what is kept at a path. A single file counts, and is never a log.
fn look(home: BorrowedFd<'_>, path: &Path) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let directory = match open_below(home, path) {
        Ok(directory) => directory,
        Err(_) => {
            let stat = statat(home, path, AtFlags::SYMLINK_NOFOLLOW);
            contents.bytes = stat.map_or(0, |stat| stat.st_blocks as u64 * 512);
            return Ok(contents);
        }
    };
    let entries = names(directory.as_fd())?;
    let mut open = vec![(directory, path.to_owned(), entries)];
    while let Some((directory, path, entries)) = open.last_mut() {
        let Some(name) = entries.pop() else {
            open.pop();
            continue;
        };
        let stat = match statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // A cage that still runs may remove what was listed.
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let below = path.join(as_os(&name));
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            let bytes = stat.st_blocks as u64 * 512;
            contents.bytes += bytes;
            if is_log(&below) {
                contents.logs.push(LogFile {
                    path: below,
                    bytes,
                    changed: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
                });
            }
            continue;
        }
        // Nor is one counted that may not be opened: the agent set its mode.
        let opened = open_directory(directory.as_fd(), as_os(&name));
        let listed = opened.and_then(|opened| Ok((names(opened.as_fd())?, opened)));
        match listed {
            Ok((entries, opened)) if open.len() < DEEPEST => open.push((opened, below, entries)),
            _ => contents.too_deep = true,
        }
    }
    Ok(contents)
}

fn is_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let numbered = name.split_once(".log.").is_some_and(|(_, number)| {
        !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
    });
    let ends = LOG_ENDINGS.iter().any(|ending| name.ends_with(ending));
    let above = path.parent().into_iter().flat_map(Path::iter);
    let mut above = above.map(OsStr::to_string_lossy);
    ends || numbered || above.any(|part| LOG_DIRECTORIES.contains(&part.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::FileTimes;
    use std::time::{Duration, SystemTime};

    const MEGABYTE: usize = 1 << 20;

    struct KeptFiles {
        root: PathBuf,
        store: Store,
    }

    impl KeptFiles {
        fn new(name: &str) -> KeptFiles {
            let root = std::env::temp_dir().join(format!("kept-{name}-{}", std::process::id()));
            let store = Store::new(&root.join("state"), &root.join("cache"));
            std::fs::create_dir_all(store.place(Path::new("/w")).home).unwrap();
            KeptFiles { root, store }
        }

        /// Writes a file of so many megabytes, changed so many hours ago.
        fn write(&self, path: &str, megabytes: usize, hours: u64) {
            let path = self.store.place(Path::new("/w")).home.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, vec![1; megabytes * MEGABYTE]).unwrap();
            let changed = SystemTime::now() - Duration::from_secs(hours * 3600);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_times(FileTimes::new().set_modified(changed))
                .unwrap();
        }

        fn has(&self, path: &str) -> bool {
            self.store.place(Path::new("/w")).home.join(path).exists()
        }

        fn trim(&self, workspace: usize, path: usize) -> Trimmed {
            let limits = StateLimits {
                workspace: (workspace * MEGABYTE) as u64,
                path: (path * MEGABYTE) as u64,
            };
            let kept = [".agent".into(), ".agent/logs".into(), ".other".into()];
            self.store.trim(Path::new("/w"), &kept, limits).unwrap()
        }
    }

    impl Drop for KeptFiles {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn the_oldest_logs_go_first_and_settings_stay() {
        let kept = KeptFiles::new("oldest");
        kept.write(".agent/settings.json", 2, 100);
        kept.write(".agent/projects/old.jsonl", 2, 50);
        kept.write(".agent/projects/new.jsonl", 2, 1);
        kept.write(".agent/logs/run", 2, 80);
        kept.write(".other/notes", 2, 90);
        assert_eq!(kept.trim(100, 100), Trimmed::default());
        // By the limit of one path.
        let trimmed = kept.trim(100, 7);
        assert_eq!((trimmed.files, trimmed.over), (1, None));
        assert!(!kept.has(".agent/logs/run") && kept.has(".agent/projects/old.jsonl"));
        // And by that of the workspace.
        let trimmed = kept.trim(7, 100);
        assert_eq!((trimmed.files, trimmed.over), (1, None));
        assert!(!kept.has(".agent/projects/old.jsonl"));
        for stays in [
            ".agent/settings.json",
            ".agent/projects/new.jsonl",
            ".other/notes",
        ] {
            assert!(kept.has(stays), "{stays}");
        }
        assert!(!kept.store.was_over_limit(Path::new("/w")));
    }

    #[test]
    fn what_is_not_a_log_is_never_removed_and_leaves_a_mark() {
        let kept = KeptFiles::new("settings");
        kept.write(".agent/big.db", 4, 100);
        let over = kept.trim(100, 3).over.unwrap();
        assert_eq!(over.path.as_deref(), Some(Path::new(".agent")));
        assert!(kept.has(".agent/big.db") && kept.store.was_over_limit(Path::new("/w")));
        // A limit that was raised since.
        assert_eq!(kept.trim(100, 100).over, None);
        assert!(!kept.store.was_over_limit(Path::new("/w")));
    }

    #[test]
    fn no_link_is_followed_and_no_depth_hides_anything() {
        let kept = KeptFiles::new("links");
        let outside = kept.root.join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("x.log"), vec![1; 4 * MEGABYTE]).unwrap();
        let home = kept.store.place(Path::new("/w")).home;
        std::fs::create_dir_all(home.join(".agent")).unwrap();
        std::os::unix::fs::symlink(&outside, home.join(".agent/logs")).unwrap();
        std::os::unix::fs::symlink(&outside, home.join(".other")).unwrap();
        assert_eq!(kept.trim(1, 1), Trimmed::default());
        assert!(outside.join("x.log").exists());
        let deep: PathBuf = std::iter::repeat_n("d", DEEPEST + 1).collect();
        std::fs::create_dir_all(home.join(".agent").join(deep)).unwrap();
        assert_eq!(kept.trim(100, 100).over.unwrap().bytes, None);
    }
}
