//! Entries of settings as places of this host: paths, and patterns with the directory that they begin in.

use super::Place;
use super::settings::Rule;
use crate::fragment::normal;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Characters that make an entry a pattern.
const WILD: [char; 4] = ['*', '?', '[', ']'];

/// Names looked at for one pattern; a tree that holds more is not listed.
const MOST_NAMES: usize = 200_000;

/// Matches of one pattern; more make no policy that anyone reads.
const MOST_MATCHES: usize = 1000;

/// Longer than any name, and with more parts than a path that anyone would write: such a pattern only costs time.
const LONGEST_PART: usize = 1024;
const MOST_PARTS: usize = 64;

/// What an entry names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spot {
    /// A path that is there, without symbolic links.
    There(PathBuf),
    /// A path that is not there, and the nearest directory above it that is.
    Missing { path: PathBuf, above: PathBuf },
    /// A pattern, and the directory that all its matches lie below.
    Pattern { below: PathBuf, parts: Vec<String> },
    /// Nothing that could exist.
    Nothing,
}

/// What an entry names, in each way that it can be read: one with `[` in it may be a pattern and a name.
pub(super) fn spots(rule: &Rule, place: &Place) -> Vec<Spot> {
    if rule.text.is_empty() || rule.text.contains('\0') {
        return vec![Spot::Nothing];
    }
    if rule.literal {
        return vec![spot(&absolute(&rule.text, rule, place))];
    }
    // `src/**` means `src`.
    let mut text = rule.text.as_str();
    while let Some(rest) = text.trim_end_matches('/').strip_suffix("/**") {
        text = rest;
    }
    if text.is_empty() {
        text = "/";
    }
    let path = absolute(text, rule, place);
    if !text.contains(WILD) {
        return vec![spot(&path)];
    }
    let mut spots = vec![pattern(&path)];
    let literal = absolute(&rule.text, rule, place);
    if fs::symlink_metadata(&literal).is_ok() {
        spots.push(spot(&literal));
    }
    spots
}

fn absolute(text: &str, rule: &Rule, place: &Place) -> PathBuf {
    let path = match text.strip_prefix('~') {
        Some("") => place.home.clone(),
        Some(rest) if rest.starts_with('/') => place.home.join(rest.trim_start_matches('/')),
        _ => rule.from.join(text),
    };
    normal(&path)
}

/// Where a path really is; one that cannot be looked at counts as missing.
fn spot(path: &Path) -> Spot {
    if let Ok(real) = fs::canonicalize(path) {
        return Spot::There(real);
    }
    for above in path.ancestors().skip(1) {
        if let Ok(real) = fs::canonicalize(above) {
            let rest = path.strip_prefix(above).unwrap_or(path);
            return Spot::Missing {
                path: real.join(rest),
                above: real,
            };
        }
    }
    Spot::Nothing
}

fn pattern(path: &Path) -> Spot {
    let mut below = PathBuf::from("/");
    let mut parts = Vec::new();
    for component in path.components().skip(1) {
        let text = component.as_os_str().to_string_lossy().into_owned();
        if parts.is_empty() && !text.contains(WILD) {
            below.push(&text);
        } else {
            parts.push(text);
        }
    }
    match spot(&below) {
        Spot::There(below) => Spot::Pattern { below, parts },
        missing => missing,
    }
}

/// Everything that a pattern matches now. `None` where it cannot be told: the tree is too large, or the pattern is of
/// a kind that only srt reads.
pub(super) fn matches(below: &Path, parts: &[String]) -> Option<Vec<PathBuf>> {
    let plain = |part: &String| {
        part == "**" || (!part.contains("**") && brackets_close(part) && part.len() <= LONGEST_PART)
    };
    if parts.len() > MOST_PARTS || !parts.iter().all(plain) {
        return None;
    }
    let mut walk = Walk {
        found: BTreeSet::new(),
        left: MOST_NAMES,
    };
    walk.descend(below, parts)?;
    Some(walk.found.into_iter().collect())
}

fn brackets_close(part: &str) -> bool {
    let mut open = false;
    for c in part.chars() {
        match c {
            '[' if open => return false,
            '[' => open = true,
            ']' if !open => return false,
            ']' => open = false,
            '*' | '?' if open => return false,
            _ => {}
        }
    }
    !open
}

struct Walk {
    found: BTreeSet<PathBuf>,
    left: usize,
}

impl Walk {
    fn descend(&mut self, directory: &Path, parts: &[String]) -> Option<()> {
        let (first, rest) = parts.split_first()?;
        let deep = first == "**";
        if deep && !rest.is_empty() {
            self.descend(directory, rest)?;
        }
        let Ok(entries) = fs::read_dir(directory) else {
            // What cannot be listed may hold a match.
            self.found.insert(directory.to_owned());
            return Some(());
        };
        for entry in entries {
            let entry = entry.ok()?;
            self.left = self.left.checked_sub(1)?;
            let (path, kind) = (entry.path(), entry.file_type().ok()?);
            let name = entry.file_name();
            let fits = deep || fits(first, &name.to_string_lossy());
            if fits && (rest.is_empty() || deep && rest.iter().all(|part| part == "**")) {
                self.found.insert(path.clone());
                if self.found.len() > MOST_MATCHES {
                    return None;
                }
            }
            // Symbolic links are not followed: what they lead to is in the view at its own place, if at all.
            if !kind.is_dir() {
                continue;
            }
            if deep {
                self.descend(&path, parts)?;
            } else if fits && !rest.is_empty() {
                self.descend(&path, rest)?;
            }
        }
        Some(())
    }
}

/// Whether one name fits one part of a pattern.
fn fits(part: &str, name: &str) -> bool {
    let part: Vec<char> = part.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // For each number of characters of the name: whether the pattern so far fits exactly these.
    let mut reach = vec![false; name.len() + 1];
    if let Some(first) = reach.first_mut() {
        *first = true;
    }
    let mut rest = part.as_slice();
    while let Some((c, after)) = rest.split_first() {
        let mut next = vec![false; name.len() + 1];
        let mut step = |accepts: &dyn Fn(char) -> bool| {
            for (at, letter) in name.iter().enumerate() {
                if reach.get(at) == Some(&true)
                    && accepts(*letter)
                    && let Some(slot) = next.get_mut(at + 1)
                {
                    *slot = true;
                }
            }
        };
        rest = after;
        match c {
            '*' => {
                let mut any = false;
                next = reach
                    .iter()
                    .map(|here| {
                        any |= *here;
                        any
                    })
                    .collect();
            }
            '?' => step(&|_| true),
            '[' => {
                let end = after.iter().position(|c| *c == ']').unwrap_or(after.len());
                let (set, tail) = after.split_at(end);
                rest = tail.get(1..).unwrap_or_default();
                let (negated, set) = match set.split_first() {
                    Some(('!' | '^', set)) => (true, set),
                    _ => (false, set),
                };
                step(&|letter| in_set(set, letter) != negated);
            }
            c => step(&|letter| letter == *c),
        }
        reach = next;
    }
    reach.last() == Some(&true)
}

fn in_set(set: &[char], letter: char) -> bool {
    match set {
        [low, '-', high, rest @ ..] => (*low..=*high).contains(&letter) || in_set(rest, letter),
        [one, rest @ ..] => *one == letter || in_set(rest, letter),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns_as_in_gitignore() {
        for (part, name, expected) in [
            ("*.pem", "a.pem", true),
            ("*.pem", "a.pem.txt", false),
            (".env*", ".env", true),
            (".env*", ".env.local", true),
            ("file?.txt", "file1.txt", true),
            ("file?.txt", "file.txt", false),
            ("file[0-9].txt", "file3.txt", true),
            ("file[!0-9].txt", "file3.txt", false),
            ("a*b*c", "axxbxxc", true),
            ("a*b*c", "axxbxx", false),
        ] {
            assert_eq!(fits(part, name), expected, "{part} {name}");
        }
    }

    #[test]
    fn a_pattern_finds_what_is_there_at_every_depth() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        for file in [".env", "a/.env", "a/b/.env", "a/other"] {
            fs::write(at(file), "").unwrap();
        }
        let found = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            matches(root.path(), &parts)
        };
        assert_eq!(
            found(&["**", ".env"]),
            Some(vec![at(".env"), at("a/.env"), at("a/b/.env")])
        );
        assert_eq!(found(&["*", ".env"]), Some(vec![at("a/.env")]));
        assert_eq!(found(&["x**", ".env"]), None);
        assert_eq!(found(&["[a"]), None);
    }
}
