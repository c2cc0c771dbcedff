//! Directories that are read once instead of being asked after many names.
//!
//! A plan asks after some hundred names in a few directories, most of which are not there: that
//! many system calls cost more than the rest of the plan. So a directory that is asked about
//! again and again in vain is read, and what is not in it is not looked up.

use ironcage_sys::rustix;
use rustix::fs::{Mode, OFlags, RawDir};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What was read so far.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// Few enough to look through.
    directories: RefCell<Vec<(Box<[u8]>, Seen)>>,
}

/// What is known of a directory.
#[derive(Debug)]
enum Seen {
    /// So many names were not there.
    Absences(u32),
    /// All of its names.
    Names(Vec<Box<[u8]>>),
    /// It has to be asked each time.
    Unlisted,
}

/// After so many names that are not there, a list is cheaper: reading a directory of a hundred
/// names takes as long as some thirty questions.
const WORTH_A_LIST: u32 = 12;
/// Of a larger directory no list is made.
const LIST_BYTES: usize = 16 * 1024;

/// File systems in which a name that is not listed is not there. Others may hide names, or make
/// them when they are asked for.
const PLAIN: [u64; 6] = [
    0xef53,      // ext
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x794c_7630, // overlay
    0xf2f5_2010, // f2fs
];

impl Listings {
    /// Whether a directory that was read says that nothing is at the path. Where a directory
    /// is missing, so is everything below it.
    pub(crate) fn is_absent(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        let directories = self.directories.borrow();
        directories
            .iter()
            .any(|(known, seen)| seen.lacks(known, path))
    }

    /// The kernel said that nothing is at the path. One more such answer may make it worth
    /// while to read the directory.
    pub(crate) fn was_absent(&self, path: &Path) {
        // By bytes: taking a path apart by the rules for all paths takes longer than the call.
        let path = path.as_os_str().as_bytes();
        let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
            return;
        };
        let parent = &path[..slash];
        if parent.is_empty() {
            return;
        }
        let mut directories = self.directories.borrow_mut();
        match directories.iter_mut().find(|(known, _)| **known == *parent) {
            Some((_, seen)) => *seen = std::mem::replace(seen, Seen::Unlisted).after(parent),
            None => directories.push((parent.into(), Seen::Absences(1))),
        }
    }
}

impl Seen {
    /// After one more name that was not there.
    fn after(self, directory: &[u8]) -> Seen {
        match self {
            Seen::Absences(times) if times + 1 < WORTH_A_LIST => Seen::Absences(times + 1),
            Seen::Absences(_) => {
                list(Path::new(OsStr::from_bytes(directory))).map_or(Seen::Unlisted, Seen::Names)
            }
            known => known,
        }
    }

    /// Whether the list of this directory says that there is nothing at a path below it.
    fn lacks(&self, directory: &[u8], path: &[u8]) -> bool {
        let Seen::Names(names) = self else {
            return false;
        };
        let below = path
            .strip_prefix(directory)
            .and_then(|rest| rest.strip_prefix(b"/"));
        let Some(name) = below.and_then(|rest| rest.split(|byte| *byte == b'/').next()) else {
            return false;
        };
        !matches!(name, b"" | b"." | b"..") && !may_hold(names, name)
    }
}

/// Whether a name may be among those of a directory, also of one that takes letters of either
/// case for the same.
fn may_hold(names: &[Box<[u8]>], name: &[u8]) -> bool {
    !name.is_ascii() || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// The names in a directory, if it is a small one of a plain file system. Not where there are
/// letters beyond ASCII: a directory that does not tell cases apart may take one for an ASCII
/// letter, such as the sign for Kelvin for a k.
fn list(directory: &Path) -> Option<Vec<Box<[u8]>>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let kind = u64::try_from(rustix::fs::fstatfs(&handle).ok()?.f_type).ok()?;
    if !PLAIN.contains(&kind) {
        return None;
    }
    let mut buffer = [MaybeUninit::uninit(); LIST_BYTES];
    let mut entries = RawDir::new(&handle, &mut buffer);
    let mut names: Vec<Box<[u8]>> = Vec::new();
    let mut bytes = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        bytes += entry_size(name);
        if bytes > LIST_BYTES || !name.is_ascii() {
            return None;
        }
        names.push(name.into());
    }
    Some(names)
}

/// What an entry takes in the kernel's list.
fn entry_size(name: &[u8]) -> usize {
    const HEADER: usize = 20;
    HEADER + name.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostFiles, SystemFiles};
    use std::fs;

    #[test]
    fn what_is_there_is_found_however_often_is_asked_and_what_is_not_is_not() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a", "B", ".c"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        fs::create_dir(directory.path().join("d")).unwrap();
        fs::write(directory.path().join("d/e"), "").unwrap();
        let files = SystemFiles::default();
        let there = |name: &str| files.node(&directory.path().join(name)).is_some();
        for _ in 0..3 * WORTH_A_LIST {
            assert!(there("a") && there("B") && there(".c") && there("d/e"));
            assert!(!there("b") && !there("x") && !there("d/x") && !there("x/e"));
        }
        let known = files.listings.directories.borrow();
        let listed = |seen: &Seen| matches!(seen, Seen::Names(names) if names.len() >= 4);
        assert!(known.iter().any(|(path, seen)| **path
            == *directory.path().as_os_str().as_bytes()
            && listed(seen)));
    }

    #[test]
    fn a_list_does_not_speak_for_names_that_another_case_may_stand_for() {
        let names: Vec<Box<[u8]>> = vec![(*b"Aws").into(), (*b"x").into()];
        assert!(may_hold(&names, b"aWS") && !may_hold(&names, b"gcloud"));
        assert!(may_hold(&names, "\u{212a}".as_bytes()));
        let directory = tempfile::tempdir().unwrap();
        assert!(list(directory.path()).is_some());
        fs::write(directory.path().join("\u{212a}ube"), "").unwrap();
        assert!(list(directory.path()).is_none());
    }

    #[test]
    fn no_list_is_made_of_a_large_directory_or_of_the_kernels_own() {
        let directory = tempfile::tempdir().unwrap();
        let long = "n".repeat(200);
        for number in 0..LIST_BYTES / 200 + 1 {
            fs::write(directory.path().join(format!("{long}{number}")), "").unwrap();
        }
        assert!(list(directory.path()).is_none());
        assert!(list(Path::new("/proc/self")).is_none());
        assert!(list(Path::new("/usr")).is_some_and(|names| {
            names
                .iter()
                .any(|name| **name == *OsStr::new("bin").as_bytes())
        }));
    }
}
