//! Finds what was moved: a file that is gone and one that is new with much the same in them.
//!
//! Only a way of telling: nothing depends on what is found here.

use crate::content;
use crate::differences::{Difference, Roots};
use crate::reading::Status;
use crate::tree::{self, Kind, Node};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// More pairs than this are not compared, as with git.
const MOST_PAIRS: usize = 160_000;
/// Larger files are taken for moved only when they are the same.
const LARGEST: u64 = 1024 * 1024;
/// More bytes than these are not read in all.
const MOST_BYTES: u64 = 256 * 1024 * 1024;
/// So much in percent has to be the same.
const ENOUGH: u64 = 50;

/// Lines of a file by their hashes, with the bytes of each.
type Lines = HashMap<u64, u64>;

struct File {
    place: usize,
    size: u64,
    lines: Lines,
    whole: u64,
}

/// Joins removals and additions that are moves. The addition stays, and says where from.
pub(crate) fn pair(roots: &Roots, differences: &mut Vec<Difference>) {
    // Nothing is read that has no other to be compared with.
    let [gone, new] = [Status::Removed, Status::Added].map(|status| {
        let of_it = |difference: &&Difference| candidate(difference, status).is_some();
        differences.iter().filter(of_it).count()
    });
    if gone == 0 || new == 0 || gone.saturating_mul(new) > MOST_PAIRS {
        return;
    }
    let mut budget = MOST_BYTES;
    let gone = files(roots, differences, Status::Removed, &mut budget);
    let new = files(roots, differences, Status::Added, &mut budget);
    let mut pairs = Vec::new();
    for from in &gone {
        for to in &new {
            let layers = (differences[from.place].layer, differences[to.place].layer);
            if layers.0 == layers.1
                && let Some(percent) = similarity(from, to)
            {
                let same_name = differences[from.place].path.file_name()
                    == differences[to.place].path.file_name();
                pairs.push((percent, same_name, from.place, to.place));
            }
        }
    }
    // The best first; of equal ones those that keep their name.
    pairs.sort_by(|a, b| (b.0, b.1, a.2, a.3).cmp(&(a.0, a.1, b.2, b.3)));
    let mut taken = vec![false; differences.len()];
    for (percent, _, from, to) in pairs {
        if taken[from] || taken[to] {
            continue;
        }
        (taken[from], taken[to]) = (true, true);
        let source = differences[from].clone();
        let target = &mut differences[to];
        target.moved = Some((source.path, percent));
        target.before = source.before;
    }
    let mut place = 0;
    differences.retain(|difference| {
        let moved_away = taken[place] && difference.status == Status::Removed;
        place += 1;
        !moved_away
    });
}

/// The file that a difference is about, if it can be one half of a move.
fn candidate(difference: &Difference, status: Status) -> Option<&Node> {
    let node = match status {
        Status::Removed => difference.before.as_ref()?,
        _ => difference.after.as_ref()?,
    };
    let fits = node.kind == Kind::File && (1..=LARGEST).contains(&node.size);
    (difference.status == status && fits).then_some(node)
}

fn files(roots: &Roots, all: &[Difference], status: Status, budget: &mut u64) -> Vec<File> {
    let mut found = Vec::new();
    for (place, difference) in all.iter().enumerate() {
        let Some(node) = candidate(difference, status).filter(|node| node.size <= *budget) else {
            continue;
        };
        let root = match status {
            Status::Removed => roots.real(difference.layer),
            _ => roots.upper(difference.layer),
        };
        let bytes = root
            .and_then(|root| tree::open_file_below(root, &difference.path))
            .and_then(|file| content::read_bounded(&file, LARGEST));
        if let Ok(Some(bytes)) = bytes {
            *budget -= node.size.min(*budget);
            found.push(File {
                place,
                size: bytes.len() as u64,
                lines: lines(&bytes),
                whole: hash(&bytes),
            });
        }
    }
    found
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn lines(bytes: &[u8]) -> Lines {
    let mut lines = Lines::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        *lines.entry(hash(line)).or_default() += line.len() as u64;
    }
    lines
}

/// How much of the larger file is in the other, in percent, if it is enough.
fn similarity(from: &File, to: &File) -> Option<u8> {
    if from.whole == to.whole && from.size == to.size {
        return Some(100);
    }
    let (small, large) = (from.size.min(to.size), from.size.max(to.size));
    if small * 100 < large * ENOUGH {
        return None;
    }
    let shared: u64 = from
        .lines
        .iter()
        .filter_map(|(line, bytes)| to.lines.get(line).map(|other| (*bytes).min(*other)))
        .sum();
    // Not quite the same is never told as the same.
    let percent = (shared * 100 / large).min(99);
    (percent >= ENOUGH).then(|| u8::try_from(percent).unwrap_or(99))
}
