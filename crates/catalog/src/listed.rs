//! The data lists of files: what the system view holds, what is protected, what is secret.
//!
//! The entries lie in `policies/`, each with its reason; the build script checks them and
//! makes the statics here. Whether a path exists on this host is for `plan` to find out.

use serde::Serialize;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// A path and the reason why it is in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The path, absolute or relative as its list says.
    pub path: &'static str,
    pub why: &'static str,
}

/// A name of files that often hold secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sensitive {
    /// The name, with at most one star.
    pub path: &'static str,
    pub why: &'static str,
    /// Whether such a file of a workspace is hidden where the policy says so.
    pub hidden: bool,
    /// Only a file that has one of these in it is; every one where there are none.
    pub holds: &'static [&'static str],
}

impl Sensitive {
    /// Whether a file with this content is what its name says.
    pub fn is_held_by(&self, content: &[u8]) -> bool {
        let has = |text: &&str| {
            let mut parts = content.windows(text.len());
            parts.any(|part| part.eq_ignore_ascii_case(text.as_bytes()))
        };
        self.holds.is_empty() || self.holds.iter().any(has)
    }
}

/// A path below `/proc` that is hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Masked {
    /// The path, relative to `/proc`.
    pub path: &'static str,
    /// What it would show.
    pub why: &'static str,
    /// Whether the kernel keeps all but the host's root out of it anyway.
    pub root_only: bool,
}

/// A path below `/proc` or `/etc` that is replaced by a fixed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// The path, relative to there.
    pub path: &'static str,
    /// Why it is not the host's.
    pub why: &'static str,
    /// What it shows instead.
    pub content: &'static str,
}

/// The part of the host system that every cage sees.
pub mod system {
    use super::{Fixed, Listed, Masked};
    include!(concat!(env!("OUT_DIR"), "/system.rs"));
}

/// Files in the root of a workspace that the host would later execute or trust; paths are
/// relative to the workspace.
pub mod protected {
    use super::Listed;
    include!(concat!(env!("OUT_DIR"), "/protected.rs"));
}

/// Credentials that stay hidden whatever is granted above them; paths are relative to the
/// home directory.
pub mod credentials {
    use super::Listed;
    include!(concat!(env!("OUT_DIR"), "/credentials.rs"));
}

/// Names of files that often hold secrets, at any depth; each has at most one star.
pub mod sensitive {
    use super::{Listed, Sensitive, as_compared, is_like_compared};
    use std::ffi::OsStr;
    include!(concat!(env!("OUT_DIR"), "/sensitive.rs"));

    /// The first entry of a kind that a file name is like. Every name of a workspace is asked about,
    /// and hardly any is like an entry.
    fn first(name: &OsStr, wanted: impl Fn(&Sensitive) -> bool) -> Option<&'static Sensitive> {
        let name = as_compared(name);
        let is_like = |path| is_like_compared(path, &name);
        let found = NAMES
            .iter()
            .find(|entry| wanted(entry) && is_like(entry.path))?;
        let example = EXAMPLES.iter().any(|example| is_like(example.path));
        (!example).then_some(found)
    }

    /// The entry that a file name is like.
    pub fn entry(name: &OsStr) -> Option<&'static Sensitive> {
        first(name, |_| true)
    }

    /// The entry that a file name is like, of those that are hidden in a workspace.
    pub fn hidden(name: &OsStr) -> Option<&'static Sensitive> {
        first(name, |entry| entry.hidden)
    }
}

/// Places of the host that a cage gets only by an explicit word; paths are absolute, or begin
/// with `~/`.
pub mod guarded {
    use super::Listed;
    include!(concat!(env!("OUT_DIR"), "/guarded.rs"));
}

/// A setting of git that is taken over from the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GitKey {
    /// Section and key, in lower case: `user.name`.
    pub name: &'static str,
    /// Why it is taken over.
    pub why: &'static str,
}

/// Settings of git that are taken over from the user.
pub mod git {
    use super::GitKey;
    include!(concat!(env!("OUT_DIR"), "/git.rs"));
}

/// What becomes of a file in a change that the host would execute or trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// It is applied, and told.
    Flagged,
    /// It stays aside until it is named.
    Withheld,
}

/// A name or a shape that the host would execute or trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Executed {
    /// One or more names in a row, at any depth, each with at most one star; or the name of a
    /// shape.
    pub path: &'static str,
    /// What becomes of it.
    pub class: Class,
    /// What would happen on the host.
    pub why: &'static str,
    /// Whether a directory of that name, and so what lies in it, means nothing.
    pub files_only: bool,
}

impl Executed {
    /// Where in a path the listed name ends, if it is in it.
    pub fn found_in(&self, parts: &[&OsStr]) -> Option<usize> {
        let wanted: Vec<&str> = self.path.split('/').collect();
        let first = match self.files_only {
            true => parts.len().max(wanted.len()),
            false => wanted.len(),
        };
        (first..=parts.len()).find(|end| {
            let window = &parts[end - wanted.len()..*end];
            let mut pairs = wanted.iter().zip(window);
            pairs.all(|(wanted, part)| is_like(wanted, part))
        })
    }
}

/// Characters that ext4 and f2fs with casefold, HFS+ and others do not see in a name: the
/// default-ignorable ones of Unicode.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A name as the file systems see it that tell least apart, but for the case of its letters. FAT
/// and NTFS keep no dots and spaces at the end (`.envrc.` is `.envrc`); casefolding ones take two
/// letters for ASCII ones and leave some out. A name of nothing but dots and spaces stays.
pub fn as_compared(name: &OsStr) -> Cow<'_, [u8]> {
    fn without_end(name: &[u8]) -> &[u8] {
        let end = name.iter().rposition(|byte| !matches!(byte, b'.' | b' '));
        end.map_or(name, |end| &name[..=end])
    }
    match name.to_str() {
        Some(text) if !text.is_ascii() => {
            let seen = text.chars().filter(|c| !is_unseen(*c));
            let letters = seen.map(|c| match c {
                // Long s and the sign of Kelvin: the only ones beyond ASCII whose case is in it.
                '\u{17f}' => 's',
                '\u{212a}' => 'k',
                other => other,
            });
            let text: String = letters.collect();
            Cow::Owned(without_end(text.as_bytes()).to_vec())
        }
        _ => Cow::Borrowed(without_end(name.as_bytes())),
    }
}

/// Whether a name is as a pattern with at most one star says, without regard to case: the
/// workspace may lie, or be copied to, where case does not count.
pub fn is_like(pattern: &str, name: &OsStr) -> bool {
    is_like_compared(pattern, &as_compared(name))
}

fn is_like_compared(pattern: &str, name: &[u8]) -> bool {
    let same = |a: &str, b: &[u8]| a.as_bytes().eq_ignore_ascii_case(b);
    match pattern.split_once('*') {
        None => same(pattern, name),
        Some((start, end)) => {
            name.len() >= start.len() + end.len()
                && same(start, &name[..start.len()])
                && same(end, &name[name.len() - end.len()..])
        }
    }
}

/// What the host would execute or trust in a change, wherever it lies.
pub mod executed {
    use super::{Class, Executed, Listed, as_compared, is_like};
    use std::collections::{BTreeSet, HashMap};
    use std::ffi::OsStr;
    use std::sync::LazyLock;

    include!(concat!(env!("OUT_DIR"), "/executed.rs"));

    /// Places in [`NAMES`] by the first part of a name: there are many names, and a change can
    /// have as many files as a tree.
    struct ByFirstPart {
        exact: HashMap<Vec<u8>, Vec<usize>>,
        starred: Vec<usize>,
    }

    static BY_FIRST_PART: LazyLock<ByFirstPart> = LazyLock::new(|| {
        let mut index = ByFirstPart {
            exact: HashMap::new(),
            starred: Vec::new(),
        };
        for (place, listed) in NAMES.iter().enumerate() {
            let first = listed.path.split('/').next().unwrap_or_default();
            if first.contains('*') {
                index.starred.push(place);
            } else {
                let key = first.to_ascii_lowercase().into_bytes();
                index.exact.entry(key).or_default().push(place);
            }
        }
        index
    });

    /// The listed names that a path has in it, each with where it first ends, in the list's order.
    pub fn found_in(parts: &[&OsStr]) -> Vec<(&'static Executed, usize)> {
        let mut candidates: BTreeSet<usize> = BTreeSet::new();
        for part in parts {
            let key = as_compared(part).to_ascii_lowercase();
            candidates.extend(BY_FIRST_PART.exact.get(&key).into_iter().flatten());
            let starred = BY_FIRST_PART.starred.iter();
            candidates.extend(starred.filter(|place| is_like(NAMES[**place].path, part)));
        }
        let found = candidates.into_iter().filter_map(|place| {
            let listed = &NAMES[place];
            Some((listed, listed.found_in(parts)?))
        });
        found.collect()
    }
}
