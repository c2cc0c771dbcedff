//! Hides files of the workspace whose names tell that they hold secrets.
//!
//! Names are looked for from the top of the workspace downwards, as far as a fixed number of names
//! goes, so that the cost of a start does not depend on how large the workspace is (ADR 69). What
//! lies deeper is not hidden, and asked for where a command names it.

use super::Builder;
use crate::plan::{HiddenBy, ViewOp};
use ironcage_host::NodeType;
use ironcage_model::Isolation;
use ironcage_policy::{Policy, Sensitive, WorkspaceMode, sensitive};
use sha1::{Digest as _, Sha1};
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The most names that are looked at, but for the rest of the last directory.
const MOST_NAMES: usize = 4_000;
/// The most files that are hidden: each is a mount.
const MOST_HIDDEN: usize = 200;
/// The most that is read of a file to see what it holds; a larger one counts as if it held that.
const MOST_READ: u64 = 1 << 20;
/// The largest index of git that is read.
const LARGEST_INDEX: u64 = 32 << 20;

/// Directories with what was installed or built: nobody keeps secrets of their own there, and there
/// are many names.
const SKIPPED: &[&str] = &[
    ".git",
    "node_modules",
    "target",
    "vendor",
    "third_party",
    "site-packages",
    ".venv",
    "venv",
    "__pycache__",
    ".tox",
    ".mypy_cache",
    ".gradle",
    ".next",
    "dist",
    "build",
];

/// What the policy gives by its name in the workspace: the user knows what that is.
pub(crate) fn shown(policy: &Policy, workspace: &Path) -> Vec<PathBuf> {
    let lists = [&policy.read, &policy.write, &policy.write_direct];
    let all = lists.into_iter().flatten().map(|own| &own.value);
    let inside = all.filter(|path| path.starts_with(workspace) && *path != workspace);
    inside.cloned().collect()
}

impl Builder<'_> {
    pub(super) fn hide_sensitive(&mut self, policy: &Policy, given: &[PathBuf]) {
        let workspace = self.request.workspace.clone();
        let none = matches!(policy.workspace_mode.value, WorkspaceMode::Scratch)
            // There, what is not to be opened is not in the rules, and its name is.
            || policy.isolation.value == Isolation::Landlock;
        if !policy.hide_sensitive.value || none || !given.contains(&workspace) {
            return;
        }
        let shown = shown(policy, &workspace);
        let named = |path: &Path| shown.iter().any(|shown| path.starts_with(shown));
        let (found, names, mut all) = self.look_for(&workspace);
        let mut tracked = None;
        let mut count = 0;
        for (path, entry) in found {
            if count >= MOST_HIDDEN {
                all = false;
                break;
            }
            let known = |item: &crate::plan::Item<ViewOp>| matches!(&item.what, ViewOp::Hide { target, .. } if path.starts_with(target));
            if named(&path) || self.made.ops.iter().any(known) || !self.holds(&path, entry) {
                continue;
            }
            let index = tracked.get_or_insert_with(|| self.index(&workspace));
            if self.is_tracked(&workspace, &path, index) {
                // The repository in the workspace has the same content.
                continue;
            }
            let origin = format!("{}: sensitive, {}", policy.hide_sensitive.origin, entry.why);
            self.hide(&path, HiddenBy::Sensitive, origin);
            count += 1;
        }
        self.made.sensitive_deeper = !all;
        if count > 0 || !all {
            let cut = match all {
                true => String::new(),
                false => format!(
                    "; after {names} names from the top, files deeper in the workspace were not looked at"
                ),
            };
            self.made.notes.push(format!(
                "hides {count} files of the workspace with sensitive names; a lease shows one{cut}"
            ));
        }
    }

    /// Files with sensitive names, the uppermost first; how many names were looked at, and whether
    /// these were all.
    fn look_for(&self, workspace: &Path) -> (Vec<(PathBuf, &'static Sensitive)>, usize, bool) {
        let mut found = Vec::new();
        let mut looked = 0_usize;
        let mut left = VecDeque::from([workspace.to_owned()]);
        while let Some(directory) = left.pop_front() {
            let Ok(names) = self.files.list(&directory) else {
                continue;
            };
            // A listing is there as a whole: names beside a file do not keep it from being found.
            for (name, kind) in names {
                looked += 1;
                match kind {
                    NodeType::Directory if SKIPPED.iter().all(|skipped| name != *skipped) => {
                        left.push_back(directory.join(&name));
                    }
                    NodeType::File if found.len() <= MOST_NAMES => {
                        if let Some(entry) = sensitive::hidden(&name) {
                            found.push((directory.join(&name), entry));
                        }
                    }
                    _ => {}
                }
            }
            if looked > MOST_NAMES {
                return (found, looked, false);
            }
        }
        (found, looked, true)
    }

    fn holds(&self, path: &Path, entry: &Sensitive) -> bool {
        if entry.holds.is_empty() {
            return true;
        }
        // What cannot be read may hold it.
        let Some(content) = self.files.content(path, MOST_READ) else {
            return true;
        };
        entry.is_held_by(&content)
    }

    fn index(&self, workspace: &Path) -> BTreeMap<Vec<u8>, [u8; 20]> {
        let beside = self.request.git_directory.clone();
        let git = beside.unwrap_or_else(|| workspace.join(".git"));
        let index = self.files.content(&git.join("index"), LARGEST_INDEX);
        index.map(|index| entries(&index)).unwrap_or_default()
    }

    /// Whether git has just this content of a file. That it has one by this name is not enough: who
    /// writes the index could say so of any file.
    fn is_tracked(
        &self,
        workspace: &Path,
        path: &Path,
        index: &BTreeMap<Vec<u8>, [u8; 20]>,
    ) -> bool {
        let Ok(name) = path.strip_prefix(workspace) else {
            return false;
        };
        let Some(known) = index.get(name.as_os_str().as_bytes()) else {
            return false;
        };
        let Some(content) = self.files.content(path, MOST_READ) else {
            return false;
        };
        let mut hash = Sha1::new();
        hash.update(format!("blob {}\0", content.len()));
        hash.update(&content);
        hash.finalize().as_slice() == known
    }
}

/// The entries of an index of git, versions 2 and 3; those of another one, or of a repository with
/// other hashes, are not read.
fn entries(index: &[u8]) -> BTreeMap<Vec<u8>, [u8; 20]> {
    const STAT: usize = 40;
    const HASH: usize = 20;
    const EXTENDED: u8 = 0x40;
    let mut found = BTreeMap::new();
    let number = |at: usize| {
        let bytes = index.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    if !index.starts_with(b"DIRC") || !matches!(number(4), Some(2 | 3)) {
        return found;
    }
    let mut at = 12;
    for _ in 0..number(8).unwrap_or(0) {
        let hash = index.get(at + STAT..at + STAT + HASH);
        let Some(hash) = hash.and_then(|hash| hash.try_into().ok()) else {
            break;
        };
        let flags = at + STAT + HASH;
        let extended = index.get(flags).is_some_and(|flags| flags & EXTENDED != 0);
        let begin = flags + 2 + if extended { 2 } else { 0 };
        let rest = index.get(begin..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == 0) else {
            break;
        };
        found.insert(rest.get(..end).unwrap_or_default().to_vec(), hash);
        // Each is filled up with zeros to eight bytes, with one at least.
        at += (begin + end - at + 8) / 8 * 8;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, extended: bool) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes.extend([7; 20]);
        bytes.extend(if extended {
            [0x40, 0, 0, 0].to_vec()
        } else {
            [0, 0].to_vec()
        });
        bytes.extend(name.as_bytes());
        bytes.extend(vec![0; 8 - bytes.len() % 8]);
        bytes
    }

    #[test]
    fn an_index_of_git_tells_its_names_and_a_damaged_one_ends_the_reading() {
        let mut index = b"DIRC\0\0\0\x03\0\0\0\x03".to_vec();
        for (name, extended) in [("a", false), ("dir/.env", true), ("seven77", false)] {
            index.extend(entry(name, extended));
        }
        let names = |index: &[u8]| -> Vec<String> {
            let names = entries(index).into_keys();
            names.map(|name| String::from_utf8(name).unwrap()).collect()
        };
        assert_eq!(names(&index), ["a", "dir/.env", "seven77"]);
        for cut in 0..index.len() {
            assert!(names(index.get(..cut).unwrap()).len() < 4);
        }
        index[7] = 4;
        assert!(names(&index).is_empty());
        assert!(names(b"DIRC").is_empty());
    }
}
