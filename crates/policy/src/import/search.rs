//! Files in a workspace that srt never lets be written, wherever they lie.
//!
//! Those in the workspace's root that every cage protects (`policies/protected.toml`) are left to the cage.

use crate::protected;
use std::fs;
use std::path::{Path, PathBuf};

/// srt's own list: settings that shells, git, editors and agents follow.
const GUARDED: [&str; 15] = [
    ".gitconfig",
    ".gitmodules",
    ".bashrc",
    ".bash_profile",
    ".zshrc",
    ".zprofile",
    ".profile",
    ".ripgreprc",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".claude/commands",
    ".claude/agents",
    ".git/hooks",
    ".git/config",
];

/// Names looked at; past this the search ends and says so.
const MOST_NAMES: usize = 200_000;

/// What is there of the list, as deep as srt looks, and whether all of the tree was looked at.
pub(super) fn guarded(workspace: &Path, depth: usize) -> (Vec<PathBuf>, bool) {
    let mut found = Vec::new();
    let mut left = MOST_NAMES;
    let all = look(workspace, depth, &mut left, &mut found);
    found.retain(|path| {
        !protected::ENTRIES
            .iter()
            .any(|entry| path.starts_with(workspace.join(entry.path)))
    });
    found.sort();
    (found, all)
}

fn look(directory: &Path, depth: usize, left: &mut usize, found: &mut Vec<PathBuf>) -> bool {
    for name in GUARDED {
        let path = directory.join(name);
        // Nothing can be mounted on a link, and what it leads to is judged at its own place.
        if fs::symlink_metadata(&path).is_ok_and(|node| node.is_dir() || node.is_file())
            && fs::canonicalize(&path).is_ok_and(|real| real == path)
        {
            found.push(path);
        }
    }
    if depth <= 1 {
        return true;
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return true;
    };
    for entry in entries.flatten() {
        let Some(fewer) = left.checked_sub(1) else {
            return false;
        };
        *left = fewer;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory
            && entry.file_name() != ".git"
            && !look(&entry.path(), depth - 1, left, found)
        {
            return false;
        }
    }
    true
}
