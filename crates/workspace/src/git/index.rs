//! The index of a repository: read, checked and written.

use super::repository::is_git_name;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

const HEADER: usize = 12;
/// Stat fields before the object's name, the mode among them.
const STAT: usize = 40;
const MODE_AT: usize = 24;
const ASSUME_UNCHANGED: u16 = 0x8000;
const EXTENDED: u16 = 0x4000;
const STAGE_SHIFT: u16 = 12;
const LONGEST_NAME: u16 = 0x0fff;
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;
/// The longest path that Linux takes.
const LONGEST_PATH: usize = 4096;
/// The most that all paths of an index have together. In version 4 each begins as the one before
/// it, so that a few kilobytes can stand for gigabytes of paths.
const MOST_OF_PATHS: usize = 256 * 1024 * 1024;

pub(crate) const FILE: u32 = 0o100_644;
pub(crate) const PROGRAM: u32 = 0o100_755;
pub(crate) const LINK: u32 = 0o120_000;
pub(crate) const SUBMODULE: u32 = 0o160_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;

/// Why an index is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IndexError {
    #[error("not an index that git would read")]
    Broken,
    #[error("a split index, which cannot be checked: `git update-index --no-split-index` first")]
    Split,
    #[error("an index with an extension that is not known")]
    Extension,
    #[error("a path in it leads out of the tree or into a git directory")]
    Path,
    #[error("an index with a mode that git does not have")]
    Mode,
    #[error("an index in which a file and a directory have the same name")]
    FileAndDirectory,
}

/// Which hash a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectFormat {
    Sha1,
    Sha256,
}

impl ObjectFormat {
    pub(crate) fn length(self) -> usize {
        match self {
            ObjectFormat::Sha1 => 20,
            ObjectFormat::Sha256 => 32,
        }
    }

    pub(crate) fn hash(self, parts: &[&[u8]]) -> Vec<u8> {
        fn hash<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut hasher = D::new();
            for part in parts {
                hasher.update(part);
            }
            hasher.finalize().to_vec()
        }
        match self {
            ObjectFormat::Sha1 => hash::<Sha1>(parts),
            ObjectFormat::Sha256 => hash::<Sha256>(parts),
        }
    }
}

/// What `lstat` told git of a file; nothing where git has to read it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatData([u8; STAT]);

impl StatData {
    pub(crate) const NONE: StatData = StatData([0; STAT]);

    /// Seconds and nanoseconds of the file's last modification.
    pub(crate) fn modified(&self) -> (u32, u32) {
        let number = |at| number(&self.0, at).unwrap_or(0);
        (number(8), number(12))
    }
}

/// One version of a path in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) mode: u32,
    pub(crate) object: Vec<u8>,
    /// 0, or one of the sides of a conflict.
    pub(crate) stage: u8,
    pub(crate) assume_unchanged: bool,
    pub(crate) skip_worktree: bool,
    pub(crate) intent_to_add: bool,
    pub(crate) stat: StatData,
}

impl IndexEntry {
    /// An entry of which git knows nothing but what it holds.
    pub(crate) fn new(mode: u32, object: Vec<u8>) -> IndexEntry {
        IndexEntry {
            mode,
            object,
            stage: 0,
            assume_unchanged: false,
            skip_worktree: false,
            intent_to_add: false,
            stat: StatData::NONE,
        }
    }

    /// Whether two hold the same, whatever git knows of the file.
    pub(crate) fn holds_the_same(&self, other: &IndexEntry) -> bool {
        (self.mode, &self.object, self.stage, self.intent_to_add)
            == (other.mode, &other.object, other.stage, other.intent_to_add)
    }
}

/// An index, without its extensions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// The versions of each path, by stage. Directories of a sparse index end in a slash.
    pub(crate) paths: BTreeMap<Vec<u8>, Vec<IndexEntry>>,
}

impl Index {
    /// Reads an index, whatever it holds.
    fn parse(bytes: &[u8], hash: usize) -> Option<(Index, usize)> {
        if bytes.get(..4)? != b"DIRC" {
            return None;
        }
        let version = number(bytes, 4)?;
        let count = number(bytes, 8)?;
        let mut index = Index::default();
        let mut name: Vec<u8> = Vec::new();
        let mut at = HEADER;
        let mut left = MOST_OF_PATHS;
        for _ in 0..count {
            let start = at;
            let stat: [u8; STAT] = bytes.get(at..at + STAT)?.try_into().ok()?;
            at += STAT;
            let object = bytes.get(at..at + hash)?.to_vec();
            at += hash;
            let flags = short(bytes, &mut at)?;
            let extended = match flags & EXTENDED != 0 {
                true => short(bytes, &mut at)?,
                false => 0,
            };
            if version == 4 {
                let dropped = variable(bytes, &mut at)?;
                name.truncate(name.len().checked_sub(dropped)?);
            } else {
                name.clear();
            }
            let rest = bytes.get(at..)?;
            let length = rest.iter().position(|byte| *byte == 0)?;
            if name.len() + length > LONGEST_PATH {
                return None;
            }
            name.extend_from_slice(&rest[..length]);
            at += length + 1;
            if version != 4 {
                at = start + (at - 1 - start) / 8 * 8 + 8;
            }
            if name.is_empty() {
                return None;
            }
            left = left.checked_sub(name.len())?;
            let entry = IndexEntry {
                mode: number(&stat, MODE_AT)?,
                object,
                stage: u8::try_from(flags >> STAGE_SHIFT & 3).ok()?,
                assume_unchanged: flags & ASSUME_UNCHANGED != 0,
                skip_worktree: extended & SKIP_WORKTREE != 0,
                intent_to_add: extended & INTENT_TO_ADD != 0,
                stat: StatData(stat),
            };
            let versions = index.paths.entry(name.clone()).or_default();
            versions.retain(|other| other.stage != entry.stage);
            versions.push(entry);
        }
        Some((index, at))
    }

    /// Reads an index of which every path and mode is one that git may be given: git checks the
    /// paths of what it is given, not of its own index, and would write where they lead.
    pub(crate) fn read(bytes: &[u8], format: ObjectFormat) -> Result<Index, IndexError> {
        let (index, end) = Index::parse(bytes, format.length()).ok_or(IndexError::Broken)?;
        check_extensions(bytes, end, format.length())?;
        index.check()?;
        Ok(index)
    }

    /// Whether every path and mode is one that git may be given.
    fn check(&self) -> Result<(), IndexError> {
        for (path, versions) in &self.paths {
            let directory = versions.iter().any(|entry| entry.mode == DIRECTORY);
            let name = match directory {
                true => path.strip_suffix(b"/").ok_or(IndexError::Path)?,
                false => path,
            };
            if !is_plain(name) {
                return Err(IndexError::Path);
            }
            let known = [FILE, PROGRAM, LINK, SUBMODULE, DIRECTORY];
            if !versions.iter().all(|entry| known.contains(&entry.mode)) {
                return Err(IndexError::Mode);
            }
            let staged = versions.iter().any(|entry| entry.stage == 0);
            if staged && versions.len() > 1 || directory && !staged {
                return Err(IndexError::Broken);
            }
        }
        Ok(())
    }

    /// The index as git reads it, without any extension. Checked again: paths come from commits,
    /// too, and an agent can make one that holds `.git/config`.
    pub(crate) fn write(&self, format: ObjectFormat) -> Result<Vec<u8>, IndexError> {
        self.check()?;
        let entries = || {
            let paths = self.paths.iter();
            paths.flat_map(|(path, versions)| versions.iter().map(move |entry| (path, entry)))
        };
        for (path, _) in entries() {
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            if slashes
                .map(|(at, _)| &path[..at])
                .any(|above| self.paths.contains_key(above))
            {
                return Err(IndexError::FileAndDirectory);
            }
        }
        let is_extended = |entry: &IndexEntry| entry.skip_worktree || entry.intent_to_add;
        let version: u32 = match entries().any(|(_, entry)| is_extended(entry)) {
            true => 3,
            false => 2,
        };
        let count = u32::try_from(entries().count()).map_err(|_| IndexError::Broken)?;
        let mut bytes = b"DIRC".to_vec();
        bytes.extend(version.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        for (path, entry) in entries() {
            let start = bytes.len();
            let mut stat = entry.stat.0;
            stat[MODE_AT..MODE_AT + 4].copy_from_slice(&entry.mode.to_be_bytes());
            bytes.extend(stat);
            bytes.extend(&entry.object);
            let length = u16::try_from(path.len()).unwrap_or(LONGEST_NAME);
            let mut flags = length.min(LONGEST_NAME) | u16::from(entry.stage) << STAGE_SHIFT;
            if entry.assume_unchanged {
                flags |= ASSUME_UNCHANGED;
            }
            if is_extended(entry) {
                flags |= EXTENDED;
            }
            bytes.extend(flags.to_be_bytes());
            if is_extended(entry) {
                let skip = if entry.skip_worktree {
                    SKIP_WORKTREE
                } else {
                    0
                };
                let intent = if entry.intent_to_add {
                    INTENT_TO_ADD
                } else {
                    0
                };
                bytes.extend((skip | intent).to_be_bytes());
            }
            bytes.extend(path);
            let length = bytes.len() - start;
            bytes.resize(start + length / 8 * 8 + 8, 0);
        }
        let checksum = format.hash(&[&bytes]);
        bytes.extend(checksum);
        Ok(bytes)
    }
}

/// Paths that git tracks: what ignore rules say of them does not count.
#[derive(Debug, Default)]
pub(crate) struct Tracked(BTreeSet<Vec<u8>>);

impl Tracked {
    /// Reads an index. What cannot be understood tracks nothing.
    pub(crate) fn parse(index: &[u8]) -> Tracked {
        let paths = of_either_format(index)
            .map(|index| index.paths)
            .unwrap_or_default();
        let name = |path: Vec<u8>| match path.strip_suffix(b"/") {
            Some(directory) => directory.to_vec(),
            None => path,
        };
        Tracked(paths.into_keys().map(name).collect())
    }

    /// Whether the path itself, or something below it, is tracked.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        if self.0.contains(path) {
            return true;
        }
        let below: Vec<u8> = [path, b"/"].concat();
        self.0
            .range::<Vec<u8>, _>((Bound::Included(&below), Bound::Unbounded))
            .next()
            .is_some_and(|next| next.starts_with(&below))
    }
}

/// The object that an index has at a path.
pub(crate) fn object_in_index(index: &[u8], path: &Path) -> Option<String> {
    let mut paths = of_either_format(index)?.paths;
    let versions = paths.remove(path.as_os_str().as_bytes())?;
    Some(hexadecimal(&versions.first()?.object))
}

/// The paths at which an index has submodules: git looks into each that has a `.git`.
pub(crate) fn submodules_in_index(index: &[u8]) -> Vec<PathBuf> {
    let paths = of_either_format(index).map(|index| index.paths);
    let is_submodule = |entry: &IndexEntry| entry.mode == SUBMODULE;
    paths
        .unwrap_or_default()
        .into_iter()
        .filter(|(path, entries)| is_plain(path) && entries.iter().any(is_submodule))
        .map(|(path, _)| PathBuf::from(OsString::from_vec(path)))
        .collect()
}

pub(crate) fn hexadecimal(object: &[u8]) -> String {
    object.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The length of an object's name is not written in the index.
fn of_either_format(index: &[u8]) -> Option<Index> {
    let found = [20, 32]
        .into_iter()
        .find_map(|hash| Index::parse(index, hash));
    found.map(|(index, _)| index)
}

fn is_plain(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|part| {
        !matches!(part, b"" | b"." | b"..")
            && !part.to_ascii_lowercase().starts_with(b"git~")
            && !is_git_name(OsStr::from_bytes(part))
    })
}

/// Extensions are not read. Without those that begin with a capital letter an index means the
/// same; without another it does not.
fn check_extensions(index: &[u8], mut at: usize, hash: usize) -> Result<(), IndexError> {
    let last = index.len().checked_sub(hash).ok_or(IndexError::Broken)?;
    while at < last {
        let name = index.get(at..at + 4).ok_or(IndexError::Broken)?;
        match name {
            b"link" => return Err(IndexError::Split),
            b"sdir" => {}
            name if name[0].is_ascii_uppercase() => {}
            _ => return Err(IndexError::Extension),
        }
        let size = number(index, at + 4).ok_or(IndexError::Broken)?;
        at = at.saturating_add(8).saturating_add(size as usize);
    }
    (at == last).then_some(()).ok_or(IndexError::Broken)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn short(bytes: &[u8], at: &mut usize) -> Option<u16> {
    let read = bytes.get(*at..*at + 2)?;
    *at += 2;
    Some(u16::from_be_bytes(read.try_into().ok()?))
}

/// A number of variable length as git writes it.
fn variable(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut value: usize = 0;
    loop {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value = value
            .checked_shl(7)?
            .checked_add(usize::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        value = value.checked_add(1)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn git(directory: &Path, args: &[&str]) {
        let output = Command::new("git")
            .args(args)
            .current_dir(directory)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .expect("git");
        assert!(output.status.success(), "{args:?}: {output:?}");
    }

    /// An index of version 4, each path of which is the one before it and one byte more.
    fn of_shared_paths(first: usize, count: u32) -> Vec<u8> {
        let mut bytes = b"DIRC".to_vec();
        bytes.extend(4_u32.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        for number in 0..count {
            let mut stat = [0; STAT];
            stat[MODE_AT..MODE_AT + 4].copy_from_slice(&FILE.to_be_bytes());
            bytes.extend(stat);
            bytes.extend([7; 20]);
            bytes.extend([0, 0, 0]);
            let added = if number == 0 { first } else { 1 };
            bytes.resize(bytes.len() + added, b'a');
            bytes.push(0);
        }
        let checksum = ObjectFormat::Sha1.hash(&[&bytes]);
        bytes.extend(checksum);
        bytes
    }

    #[test]
    fn a_small_index_that_stands_for_gigabytes_of_paths_is_not_read() {
        let read = |index: &[u8]| Index::read(index, ObjectFormat::Sha1);
        let ordinary = read(&of_shared_paths(100, 1000)).expect("an index");
        assert_eq!(ordinary.paths.len(), 1000);
        // One path is longer than any that Linux takes.
        assert_eq!(
            read(&of_shared_paths(LONGEST_PATH, 2)),
            Err(IndexError::Broken)
        );
        // Each could be, but there are too many of them: 80 MB, and 1.2 GB of paths.
        let mut many = of_shared_paths(1000, 2);
        let (first, count) = (many[..HEADER + STAT + 20 + 3 + 1001].to_vec(), 300_000_u32);
        let mut same: Vec<u8> = many[first.len()..many.len() - 20].to_vec();
        // The second takes one byte away before it adds one.
        same[STAT + 22] = 1;
        many = first;
        many[8..12].copy_from_slice(&count.to_be_bytes());
        (1..count).for_each(|_| many.extend(&same));
        many.extend([0; 20]);
        assert_eq!(read(&many), Err(IndexError::Broken));
        assert!(Tracked::parse(&many).0.is_empty());
    }

    #[test]
    fn tracked_paths_are_found_in_every_version_of_the_index() {
        for (version, format) in [("2", "sha1"), ("4", "sha1"), ("2", "sha256")] {
            let base = tempfile::tempdir().expect("a directory");
            git(base.path(), &["init", "-q", "--object-format", format]);
            std::fs::create_dir_all(base.path().join("deep/er")).expect("directories");
            for name in [
                "a",
                "deep/b",
                "deep/er/a-rather-long-name",
                "deep/er/a-rather-other",
            ] {
                std::fs::write(base.path().join(name), name).expect("a file");
            }
            git(base.path(), &["add", "a", "deep"]);
            git(base.path(), &["update-index", "--index-version", version]);
            let index = std::fs::read(base.path().join(".git/index")).expect("an index");
            let tracked = Tracked::parse(&index);
            assert_eq!(tracked.0.len(), 4, "version {version}, {format}");
            let format = match format {
                "sha1" => ObjectFormat::Sha1,
                _ => ObjectFormat::Sha256,
            };
            let is_sound = |index: &[u8]| Index::read(index, format).is_ok();
            let read = Index::read(&index, format).expect("an index");
            assert!(!is_sound(&index[..index.len() - 1]));
            // Written again, it holds the same.
            let written = read.write(format).expect("an index");
            assert_eq!(Index::read(&written, format), Ok(read));
            std::fs::write(base.path().join(".git/index"), &written).expect("an index");
            git(base.path(), &["diff-files", "--quiet"]);
            git(base.path(), &["fsck", "--strict"]);
            let replaced = |from: &[u8], to: &[u8]| {
                let at = index
                    .windows(from.len())
                    .position(|part| part == from)
                    .expect("it is there");
                let mut changed = index.clone();
                changed[at..at + to.len()].copy_from_slice(to);
                changed
            };
            if version == "2" {
                for evil in [&b".git/x"[..], b"../xxx", b"a//xxx", b".GiT/x"] {
                    assert!(!is_sound(&replaced(b"deep/b", evil)), "{evil:?}");
                }
                assert!(is_sound(&replaced(b"deep/b", b"deep/c")));
            }
            for path in ["a", "deep", "deep/er", "deep/er/a-rather-other"] {
                assert!(tracked.holds(Path::new(path)), "{path}");
            }
            for path in ["b", "dee", "deep/e", "deep/er/a-rather"] {
                assert!(!tracked.holds(Path::new(path)), "{path}");
            }
            for cut in [0, 3, 11, 40, index.len() / 2] {
                let _ = Tracked::parse(&index[..cut]);
            }
        }
    }
}
