//! The index of a repository, as far as it names what is tracked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const HEADER: usize = 12;
/// Stat fields before the object's name.
const STAT: usize = 40;
const EXTENDED: u16 = 0x4000;

/// Paths that git tracks: what ignore rules say of them does not count.
#[derive(Debug, Default)]
pub(crate) struct Tracked(BTreeSet<Vec<u8>>);

impl Tracked {
    /// Reads an index. What cannot be understood tracks nothing.
    pub(crate) fn parse(index: &[u8]) -> Tracked {
        // The length of an object's name is not written in the index.
        let paths = [20, 32].into_iter().find_map(|hash| paths(index, hash));
        let paths = paths.map(|(paths, _)| paths).unwrap_or_default();
        Tracked(paths.into_keys().collect())
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
    let (mut paths, _) = [20, 32].into_iter().find_map(|hash| paths(index, hash))?;
    paths.remove(path.as_os_str().as_bytes())
}

/// Whether an index of an agent's is one that git may read: git checks the paths of what it is
/// given, not of its own index, and would write where they lead. Nor may it be a part of another.
pub(crate) fn is_sound(index: &[u8]) -> bool {
    [20, 32].into_iter().any(|hash| {
        paths(index, hash).is_some_and(|(paths, end)| {
            paths.keys().all(|path| is_plain(path)) && has_known_extensions(index, end, hash)
        })
    })
}

fn is_plain(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|part| {
        let lower = part.to_ascii_lowercase();
        !matches!(&*lower, b"" | b"." | b".." | b".git") && !lower.starts_with(b"git~")
    })
}

fn has_known_extensions(index: &[u8], mut at: usize, hash: usize) -> bool {
    const KNOWN: [&[u8]; 7] = [
        b"TREE", b"REUC", b"UNTR", b"EOIE", b"IEOT", b"sdir", b"FSMN",
    ];
    let Some(last) = index.len().checked_sub(hash) else {
        return false;
    };
    while at < last {
        let Some(name) = index.get(at..at + 4) else {
            return false;
        };
        let Some(size) = number(index, at + 4) else {
            return false;
        };
        if !KNOWN.contains(&name) {
            return false;
        }
        at = at.saturating_add(8).saturating_add(size as usize);
    }
    at == last
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// The paths with their objects, and where the entries end.
fn paths(index: &[u8], hash: usize) -> Option<(BTreeMap<Vec<u8>, String>, usize)> {
    if index.get(..4)? != b"DIRC" {
        return None;
    }
    let version = number(index, 4)?;
    let count = number(index, 8)?;
    let mut found = BTreeMap::new();
    let mut last: Vec<u8> = Vec::new();
    let mut at = HEADER;
    for _ in 0..count {
        let start = at;
        let object = index.get(at + STAT..at + STAT + hash)?;
        at += STAT + hash;
        let flags = u16::from_be_bytes(index.get(at..at + 2)?.try_into().ok()?);
        at += 2;
        if flags & EXTENDED != 0 {
            at += 2;
        }
        if version == 4 {
            let dropped = variable(index, &mut at)?;
            last.truncate(last.len().checked_sub(dropped)?);
        } else {
            last.clear();
        }
        let rest = index.get(at..)?;
        let length = rest.iter().position(|byte| *byte == 0)?;
        last.extend_from_slice(&rest[..length]);
        at += length + 1;
        if version != 4 {
            at = start + (at - 1 - start) / 8 * 8 + 8;
        }
        if last.is_empty() {
            return None;
        }
        // A directory of a sparse index ends in a slash.
        let name = last.strip_suffix(b"/").unwrap_or(&last);
        let object = object.iter().map(|byte| format!("{byte:02x}")).collect();
        found.insert(name.to_vec(), object);
    }
    Some((found, at))
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
            assert!(is_sound(&index), "version {version}, {format}");
            assert!(!is_sound(&index[..index.len() - 1]));
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
