//! Patterns of hidden paths: `*.pem`, `**/.env`, `config/*.key`.

use serde::Serialize;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The most parts of a pattern: as many as a set of places in it has bits, but one.
const MOST_PARTS: usize = 63;

/// A pattern of paths that must not be visible. `*` stands for any part of a name, `?` for one
/// character, `**` between slashes for any number of directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HidePattern {
    text: String,
    /// The directory below which it holds; `None` is every tree that the cage is given.
    below: Option<PathBuf>,
    #[serde(skip)]
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Any number of directories.
    Any,
    Name(String),
}

/// How far a path has come in a pattern: a set of places in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress(u64);

impl HidePattern {
    /// Whether a text is a pattern, and no path.
    pub fn is_one(text: &str) -> bool {
        text.contains(['*', '?'])
    }

    /// Reads a pattern. One without a slash, or that begins with `**/`, holds in every tree that
    /// the cage is given; another is a path, which `absolute` completes.
    ///
    /// # Errors
    /// Why it cannot be one.
    pub fn parse<E: From<&'static str>>(
        text: &str,
        absolute: impl FnOnce(&str) -> Result<PathBuf, E>,
    ) -> Result<HidePattern, E> {
        let everywhere = !text.contains('/') || text.starts_with("**/");
        let (below, names): (_, Vec<String>) = if everywhere {
            let names = text.split('/').filter(|name| !name.is_empty());
            let names = std::iter::once("**").chain(names);
            (None, names.map(str::to_owned).collect())
        } else {
            let (mut below, mut rest) = (PathBuf::from("/"), Vec::new());
            for component in absolute(text)?.components() {
                let Component::Normal(name) = component else {
                    continue;
                };
                let Some(name) = name.to_str() else {
                    return Err("the name of its directory is not UTF-8".into());
                };
                if rest.is_empty() && !HidePattern::is_one(name) {
                    below.push(name);
                } else {
                    rest.push(name.to_owned());
                }
            }
            (Some(below), rest)
        };
        if names.len() > MOST_PARTS {
            return Err("too many parts".into());
        }
        let part = |name: String| match name.as_str() {
            "**" => Ok(Part::Any),
            name if name.contains("**") => Err("`**` must stand alone between slashes".into()),
            "." | ".." => Err("`.` and `..` are not allowed in a pattern".into()),
            _ => Ok(Part::Name(name)),
        };
        Ok(HidePattern {
            text: text.to_owned(),
            below,
            parts: names.into_iter().map(part).collect::<Result<_, E>>()?,
        })
    }

    /// The directory below which it holds; `None` is every tree that the cage is given.
    pub fn below(&self) -> Option<&Path> {
        self.below.as_deref()
    }

    /// Where a path begins that lies directly in the directory below which it holds.
    pub fn begin(&self) -> Progress {
        Progress(self.skip_any(1))
    }

    /// How far a path has come with one more name.
    pub fn step(&self, from: Progress, name: &[u8]) -> Progress {
        let mut reached = 0;
        for (number, part) in self.parts.iter().enumerate() {
            if from.0 & (1 << number) == 0 {
                continue;
            }
            match part {
                // The last one stands for what is in the directory.
                Part::Any if number + 1 == self.parts.len() => reached |= 1 << (number + 1),
                Part::Any => reached |= 1 << number,
                Part::Name(wanted) if fits(wanted, name) => reached |= 1 << (number + 1),
                Part::Name(_) => {}
            }
        }
        Progress(self.skip_any(reached))
    }

    /// Whether a path that has come so far is hidden.
    pub fn is_hidden(&self, at: Progress) -> bool {
        at.0 & (1 << self.parts.len()) != 0
    }

    /// Whether a path is hidden, or lies in what is, wherever the tree begins that it is given
    /// with.
    pub fn hides(&self, path: &Path) -> bool {
        let below = self.below.as_deref().unwrap_or(Path::new("/"));
        let Ok(rest) = path.strip_prefix(below) else {
            return false;
        };
        let mut at = self.begin();
        rest.iter().any(|name| {
            at = self.step(at, name.as_bytes());
            self.is_hidden(at)
        })
    }

    /// `**` stands for no directory as well, but at the end.
    fn skip_any(&self, mut places: u64) -> u64 {
        for (number, part) in self.parts.iter().enumerate() {
            let last = number + 1 == self.parts.len();
            if *part == Part::Any && !last && places & (1 << number) != 0 {
                places |= 1 << (number + 1);
            }
        }
        places
    }
}

impl Progress {
    /// Of a path that no pattern speaks of.
    pub const NOWHERE: Progress = Progress(0);

    /// Whether nothing below can be hidden.
    pub fn is_over(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for HidePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether a name is what a part of a pattern says. Linear in the name for each star.
fn fits(wanted: &str, name: &[u8]) -> bool {
    let wanted = wanted.as_bytes();
    let (mut at, mut star) = (0, None);
    let mut rest = name;
    loop {
        match (wanted.get(at), rest.split_first()) {
            (Some(b'*'), _) => {
                at += 1;
                star = Some((at, rest));
                continue;
            }
            (Some(b'?'), Some(_)) => {
                at += 1;
                rest = after_character(rest);
                continue;
            }
            (Some(byte), Some((first, after))) if byte == first => {
                at += 1;
                rest = after;
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        // The last star takes one byte more.
        match star {
            Some((after_star, [_, shorter @ ..])) => {
                star = Some((after_star, shorter));
                (at, rest) = (after_star, shorter);
            }
            _ => return false,
        }
    }
}

/// What follows the first character: bytes that are no text count as one each.
fn after_character(name: &[u8]) -> &[u8] {
    let length = name
        .utf8_chunks()
        .next()
        .and_then(|chunk| chunk.valid().chars().next())
        .map_or(1, char::len_utf8);
    name.get(length..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HidePattern {
        HidePattern::parse(text, |text| {
            Ok::<_, &'static str>(Path::new("/w").join(text))
        })
        .expect("a pattern")
    }

    /// Whether a pattern hides a path, or something above it, below its own directory.
    fn hides(text: &str, path: &str) -> bool {
        let pattern = pattern(text);
        let mut at = pattern.begin();
        path.split('/').any(|name| {
            at = pattern.step(at, name.as_bytes());
            pattern.is_hidden(at)
        })
    }

    #[test]
    fn names_are_found_at_any_depth_and_paths_where_they_say() {
        for (text, path, wanted) in [
            ("*.pem", "a.pem", true),
            ("*.pem", "x/y/a.pem", true),
            ("*.pem", "x/a.pem/inside", true),
            ("*.pem", "a.pem.txt", false),
            ("**/.env", ".env", true),
            ("**/.env", "a/b/.env", true),
            ("**/.env", "a/.envrc", false),
            ("**/secrets/*.key", "a/secrets/b.key", true),
            ("**/secrets/*.key", "a/secrets/deeper/b.key", false),
            ("config/*.key", "b.key", true),
            ("config/*.key", "x/b.key", false),
            ("config/*/**/x", "a/b/c/x", true),
            ("config/*/**/x", "x", false),
            ("private/**", "anything", true),
            (".env.?", ".env.é", true),
            (".env.?", ".env.ab", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ab/c", true),
            ("*a*b", "ba", false),
        ] {
            assert_eq!(hides(text, path), wanted, "{text} {path}");
        }
    }

    #[test]
    fn a_path_begins_where_its_first_wildcard_is() {
        assert_eq!(
            pattern("config/*.key").below(),
            Some(Path::new("/w/config"))
        );
        assert_eq!(pattern("*.key").below(), None);
        assert_eq!(pattern("**/config/*.key").below(), None);
        let whole = pattern("config/*.key");
        assert!(whole.step(whole.begin(), b"other").is_over());
        let deep = pattern("*.key");
        assert!(!deep.step(deep.begin(), b"other").is_over());
    }

    #[test]
    fn what_says_two_things_is_refused() {
        let parse = |text: &str| {
            HidePattern::parse(text, |text| {
                Ok::<_, &'static str>(Path::new("/w").join(text))
            })
        };
        for text in ["a**", "x/a**b/*", "**/../*.pem", &"*/".repeat(80)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
