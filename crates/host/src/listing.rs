//! Directories that are read once instead of being asked after many names.
//!
//! A plan asks after some hundred names in a few directories, most of which are not there: that
//! many system calls cost more than the rest of the plan. So a directory that is asked about
//! again and again in vain is read, and what is not in it is not looked up.

use crate::NodeType;
use ironcage_sys::rustix;
use ironcage_sys::spent::close_later;
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
    directories: RefCell<Vec<(Box<[u8]>, DirectoryListing)>>,
}

/// What is known of a directory.
#[derive(Debug)]
enum DirectoryListing {
    /// So many names were not there.
    Absences(u32),
    Names(Vec<Name>),
    /// It has to be asked each time.
    Unlisted,
}

/// A name in a directory.
#[derive(Debug)]
struct Name {
    bytes: Box<[u8]>,
    /// What it stands for, where the file system says so in its listing.
    kind: Option<NodeType>,
}

/// After so many names that are not there, a list is cheaper: reading a directory of a hundred
/// names takes as long as some thirty questions.
const WORTH_A_LIST: u32 = 12;
/// Of a larger directory no list is made.
const LIST_BYTES: usize = 16 * 1024;

/// Its lower layers can be of any kind, also of one that ends a list early, such as FUSE.
const OVERLAY: u64 = 0x794c_7630;
/// File systems in which a name that is not listed is not there. Others may hide names, or make
/// them when they are asked for.
const PLAIN: [u64; 6] = [
    0xef53,      // ext
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    OVERLAY,
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

    /// What the listing of its directory says that a path is; `None` where it does not say.
    pub(crate) fn kind(&self, path: &Path) -> Option<NodeType> {
        let (parent, name) = split(path.as_os_str().as_bytes())?;
        let directories = self.directories.borrow();
        let (_, seen) = directories.iter().find(|(known, _)| **known == *parent)?;
        let DirectoryListing::Names(names) = seen else {
            return None;
        };
        let found = names.iter().find(|known| *known.bytes == *name);
        found.and_then(|found| found.kind)
    }

    /// Reads a directory about which much will be asked.
    pub(crate) fn read_ahead(&self, directory: &Path) {
        let known_as = match directory.as_os_str().as_bytes() {
            b"/" => b"",
            other => other,
        };
        let mut directories = self.directories.borrow_mut();
        let listed = |(known, seen): &(Box<[u8]>, DirectoryListing)| {
            **known == *known_as && matches!(seen, DirectoryListing::Names(_))
        };
        if directories.iter().any(listed) {
            return;
        }
        let seen = list(directory).map_or(DirectoryListing::Unlisted, DirectoryListing::Names);
        directories.retain(|(known, _)| **known != *known_as);
        directories.push((known_as.into(), seen));
    }

    /// The kernel said that nothing is at the path. One more such answer may make it worth
    /// while to read the directory.
    pub(crate) fn was_absent(&self, path: &Path) {
        let Some((parent, _)) = split(path.as_os_str().as_bytes()) else {
            return;
        };
        if parent.is_empty() {
            return;
        }
        let mut directories = self.directories.borrow_mut();
        match directories.iter_mut().find(|(known, _)| **known == *parent) {
            Some((_, seen)) => {
                *seen = std::mem::replace(seen, DirectoryListing::Unlisted).after(parent)
            }
            None => directories.push((parent.into(), DirectoryListing::Absences(1))),
        }
    }
}

/// The directory of a path, without the slash after it, and the name in it. By bytes: taking a
/// path apart by the rules for all paths takes longer than the call.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    Some((path.get(..slash)?, path.get(slash + 1..)?))
}

impl DirectoryListing {
    /// After one more name that was not there.
    fn after(self, directory: &[u8]) -> DirectoryListing {
        match self {
            DirectoryListing::Absences(times) if times + 1 < WORTH_A_LIST => {
                DirectoryListing::Absences(times + 1)
            }
            DirectoryListing::Absences(_) => list(Path::new(OsStr::from_bytes(directory)))
                .map_or(DirectoryListing::Unlisted, DirectoryListing::Names),
            known => known,
        }
    }

    /// Whether the list of this directory says that there is nothing at a path below it.
    fn lacks(&self, directory: &[u8], path: &[u8]) -> bool {
        let DirectoryListing::Names(names) = self else {
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
fn may_hold(names: &[Name], name: &[u8]) -> bool {
    let is_it = |known: &Name| known.bytes.eq_ignore_ascii_case(name);
    !name.is_ascii() || names.iter().any(is_it)
}

/// The names in a directory, if it is a small one of a plain file system. Not where there are
/// letters beyond ASCII: a directory that does not tell cases apart may take one for an ASCII
/// letter, such as the sign for Kelvin for a k.
fn list(directory: &Path) -> Option<Vec<Name>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let kind = u64::try_from(rustix::fs::fstatfs(&handle).ok()?.f_type).ok()?;
    if !PLAIN.contains(&kind) {
        return None;
    }
    let mut buffer = [MaybeUninit::uninit(); LIST_BYTES];
    let mut entries = RawDir::new(&handle, &mut buffer);
    let mut names = Vec::new();
    let mut bytes = 0;
    // The kernel fills the buffer as long as there are names: but for overlays, these file systems
    // end a list early only where the next name does not fit.
    let is_whole =
        |bytes: usize| kind != OVERLAY && bytes > 0 && bytes + LARGEST_ENTRY <= LIST_BYTES;
    while !(entries.is_buffer_empty() && is_whole(bytes)) {
        let Some(entry) = entries.next() else {
            break;
        };
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        bytes += entry_size(name);
        if bytes > LIST_BYTES || !name.is_ascii() {
            return None;
        }
        names.push(Name {
            bytes: name.into(),
            kind: NodeType::listed(entry.file_type()),
        });
    }
    close_later(handle);
    Some(names)
}

/// What an entry takes in the kernel's list: inode, offset, length, kind, the name and a zero, in
/// whole words.
const fn entry_size(name: &[u8]) -> usize {
    (8 + 8 + 2 + 1 + name.len() + 1).next_multiple_of(8)
}

/// That of the longest name.
const LARGEST_ENTRY: usize = entry_size(&[0; 255]);

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
        for round in 0..3 * WORTH_A_LIST {
            let absent = |name: &str| !there(&format!("{name}{round}"));
            assert!(there("a") && there("B") && there(".c") && there("d/e"));
            assert!(!there("b") && absent("x") && absent("d/x") && absent("x/e"));
        }
        let known = files.listings.directories.borrow();
        let listed = |seen: &DirectoryListing| matches!(seen, DirectoryListing::Names(names) if names.len() >= 4);
        assert!(known.iter().any(|(path, seen)| **path
            == *directory.path().as_os_str().as_bytes()
            && listed(seen)));
    }

    #[test]
    fn a_directory_that_was_read_ahead_says_what_its_names_stand_for() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        fs::create_dir(directory.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("link")).unwrap();
        let listings = Listings::default();
        let kind = |name: &str| listings.kind(&directory.path().join(name));
        assert_eq!(kind("file"), None);
        listings.read_ahead(directory.path());
        assert_eq!(kind("file"), Some(NodeType::File));
        assert_eq!(kind("directory"), Some(NodeType::Directory));
        assert_eq!(kind("link"), Some(NodeType::Symlink));
        assert_eq!(kind("FILE"), None);
        assert!(listings.is_absent(&directory.path().join("other")));
        listings.read_ahead(Path::new("/"));
        assert_eq!(listings.kind(Path::new("/usr")), Some(NodeType::Directory));
        assert!(listings.is_absent(Path::new("/no-such-directory/file")));
        assert!(!listings.is_absent(Path::new("/usr/bin")));
    }

    #[test]
    fn a_list_does_not_speak_for_names_that_another_case_may_stand_for() {
        let name = |name: &[u8]| Name {
            bytes: name.into(),
            kind: None,
        };
        let names = [name(b"Aws"), name(b"x")];
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
                .any(|name| *name.bytes == *OsStr::new("bin").as_bytes())
        }));
    }
}
