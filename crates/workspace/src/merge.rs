//! Merges what both sides changed, where git holds the version that both began with.
//!
//! The agent's version in the upper layer becomes the merged one, and is then applied as any
//! other. Where the two touched the same lines nothing is done, and the conflict stays.

use crate::apply::staging::{self, Dress};
use crate::content;
use crate::differences::Roots;
use crate::error::WorkspaceError;
use crate::git::{Plumbing, object_in_index};
use crate::ignored::git_directory;
use crate::known::Known;
use crate::reading::{Entry, Reading, Status};
use crate::tree::{self, Kind, Node};
use crate::{Change, LayerRole};
use ironcage_sys::rustix::fs::{Mode, renameat};
use similar::TextMerge;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

/// Larger files are not merged.
const LARGEST: u64 = 1024 * 1024;
/// The most that is read of an index.
const INDEX_SIZE: u64 = 256 * 1024 * 1024;

/// Merges every conflict of a reading that can be. Returns whether there was one.
pub(crate) fn reconcile(
    change: &Change,
    roots: &Roots,
    reading: &Reading,
) -> Result<bool, WorkspaceError> {
    let mut merged = Vec::new();
    for entry in &reading.entries {
        let is_text = entry.conflict && entry.status == Status::Modified && entry.git.is_none();
        if !is_text || !are_files(entry) {
            continue;
        }
        // What cannot be merged stays a conflict, which is told.
        if let Ok(Some(node)) = merge(change, roots, entry) {
            merged.push((entry.layer, entry.path.as_path(), node));
        }
    }
    Known::add(change, &merged)?;
    Ok(!merged.is_empty())
}

fn are_files(entry: &Entry) -> bool {
    [&entry.before, &entry.after].into_iter().all(|node| {
        node.as_ref()
            .is_some_and(|node| node.kind == Kind::File && node.size <= LARGEST)
    })
}

/// Merges one file into the upper layer; returns the real one that it was merged with.
fn merge(change: &Change, roots: &Roots, entry: &Entry) -> io::Result<Option<Node>> {
    let Some(layer) = change.layers().get(entry.layer) else {
        return Ok(None);
    };
    if layer.role != LayerRole::Workspace {
        return Ok(None);
    }
    let Some(base) = base(change, &layer.real, &entry.path)? else {
        return Ok(None);
    };
    let host = tree::open_file_below(roots.real(entry.layer)?, &entry.path)?;
    let node = Node::of(&host)?;
    let agents = tree::open_file_below(roots.upper(entry.layer)?, &entry.path)?;
    let (Some(ours), Some(theirs)) = (
        content::read_bounded(&host, LARGEST)?,
        content::read_bounded(&agents, LARGEST)?,
    ) else {
        return Ok(None);
    };
    if [&base, &ours, &theirs].iter().any(|text| text.contains(&0)) {
        return Ok(None);
    }
    let merged = TextMerge::from_lines(&base[..], &ours[..], &theirs[..]);
    if merged.is_conflicted() {
        return Ok(None);
    }
    let mut text = Vec::new();
    merged.to_writer(&mut text)?;
    put(roots, entry, &agents, &text)?;
    Ok(Some(node))
}

/// Puts the merged text in place of the agent's, with all else that the agent gave the file.
fn put(roots: &Roots, entry: &Entry, agents: &File, text: &[u8]) -> io::Result<()> {
    let upper = roots.upper(entry.layer)?;
    let above = tree::open_below(upper, entry.path.parent().unwrap_or(Path::new("")))?;
    let beside = ".ironcage-merged";
    let mode = Mode::RUSR | Mode::WUSR;
    let mut made = tree::create_temporary(above.as_fd(), beside, mode)?;
    made.write_all(text)?;
    staging::dress(
        agents.as_fd(),
        made.as_fd(),
        &Dress::from(&Node::of(agents)?),
    )?;
    made.sync_data()?;
    renameat(
        &above,
        beside,
        &above,
        entry.path.file_name().unwrap_or_default(),
    )?;
    Ok(())
}

/// What git's index had of a path when the change began: only if nobody wrote the index since.
/// A version that the host staged later would make its own edit look like nothing.
fn base(change: &Change, real: &Path, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(git) = git_directory(real) else {
        return Ok(None);
    };
    let directory = tree::open_root(&git)?;
    let index = tree::open_file(directory.as_fd(), "index".as_ref())?;
    if Node::of(&index)?.changed >= change.began() {
        return Ok(None);
    }
    let Some(bytes) = content::read_bounded(&index, INDEX_SIZE)? else {
        return Ok(None);
    };
    let Some(object) = object_in_index(&bytes, path) else {
        return Ok(None);
    };
    Ok(Plumbing::of(&git).blob(&object)?)
}
