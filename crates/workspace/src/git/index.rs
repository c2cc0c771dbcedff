//! The index of a repository, as far as it names what is tracked.

use std::collections::BTreeSet;
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
        Tracked(paths.unwrap_or_default())
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

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn paths(index: &[u8], hash: usize) -> Option<BTreeSet<Vec<u8>>> {
    if index.get(..4)? != b"DIRC" {
        return None;
    }
    let version = number(index, 4)?;
    let count = number(index, 8)?;
    let mut found = BTreeSet::new();
    let mut last: Vec<u8> = Vec::new();
    let mut at = HEADER;
    for _ in 0..count {
        let start = at;
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
        found.insert(name.to_vec());
    }
    Some(found)
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
