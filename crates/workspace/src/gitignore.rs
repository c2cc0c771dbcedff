//! Rules of a `.gitignore`, as git reads them: bytes, compared without building a program from
//! what an agent wrote.
//!
//! Comparing takes at most the length of the rule times the length of the path: a star that went
//! wrong is tried again from the last one only.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// More rules than this in one file are not read: each is compared with each path.
const MOST_RULES: usize = 4096;

/// The rules of one file.
#[derive(Debug)]
pub(crate) struct Gitignore {
    /// How many names lead to the directory of the file.
    depth: usize,
    rules: Vec<IgnoreRule>,
}

#[derive(Debug)]
struct IgnoreRule {
    segments: Vec<Segment>,
    /// Whether it takes back what an earlier rule said.
    negated: bool,
    directories_only: bool,
}

/// What stands between two slashes.
#[derive(Debug)]
enum Segment {
    /// Any number of names.
    Names,
    Name(Vec<Token>),
}

#[derive(Debug)]
enum Token {
    Byte(u8),
    One,
    Star,
    Class {
        negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

impl Gitignore {
    /// Reads the rules of a file in a directory of the tree. `None` where there are none.
    pub(crate) fn parse(directory: &Path, text: &[u8]) -> Option<Gitignore> {
        // A mark of some editors, which is no part of the first rule.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let lines = text.split(|byte| *byte == b'\n');
        let rules: Vec<IgnoreRule> = lines
            .filter_map(IgnoreRule::parse)
            .take(MOST_RULES)
            .collect();
        let depth = directory.components().count();
        (!rules.is_empty()).then_some(Gitignore { depth, rules })
    }

    /// Whether a path of the tree below the file's directory is ignored; `None` where no rule is
    /// about it.
    pub(crate) fn judge(&self, path: &Path, is_directory: bool) -> Option<bool> {
        let names: Vec<&[u8]> = path
            .components()
            .skip(self.depth)
            .map(|name| name.as_os_str().as_bytes())
            .collect();
        let mut rules = self.rules.iter().rev();
        let rule = rules.find(|rule| {
            (is_directory || !rule.directories_only) && names_match(&rule.segments, &names)
        })?;
        Some(!rule.negated)
    }
}

impl IgnoreRule {
    /// A line. `None` for one that is no rule to git, or one that no name can match.
    fn parse(line: &[u8]) -> Option<IgnoreRule> {
        let line = trim(line.strip_suffix(b"\r").unwrap_or(line));
        if line.starts_with(b"#") {
            return None;
        }
        let (negated, line) = match line.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (directories_only, line) = match line.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        if line.is_empty() {
            return None;
        }
        let mut segments = Vec::new();
        // Without a slash before its end it is about a name at any depth.
        if !line.contains(&b'/') {
            segments.push(Segment::Names);
        }
        let rest = line.strip_prefix(b"/").unwrap_or(line);
        for part in rest.split(|byte| *byte == b'/') {
            segments.push(match part {
                [b'*', b'*', more @ ..] if more.iter().all(|byte| *byte == b'*') => Segment::Names,
                part => Segment::Name(tokens(part)?),
            });
        }
        Some(IgnoreRule {
            segments,
            negated,
            directories_only,
        })
    }
}

/// Without blanks at its end, but those that a backslash keeps.
fn trim(line: &[u8]) -> &[u8] {
    let mut end = line.len();
    while let Some(before) = end.checked_sub(1) {
        let kept = line[..before].iter().rev().take_while(|b| **b == b'\\');
        if line[before] != b' ' || kept.count() % 2 == 1 {
            break;
        }
        end = before;
    }
    &line[..end]
}

/// `None` where it can match nothing: a bracket or an escape that does not end.
fn tokens(part: &[u8]) -> Option<Vec<Token>> {
    let mut found = Vec::new();
    let mut rest = part;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        found.push(match first {
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                rest = after;
                Token::Byte(*escaped)
            }
            b'?' => Token::One,
            b'*' => Token::Star,
            b'[' => {
                let (class, after) = class(rest)?;
                rest = after;
                class
            }
            byte => Token::Byte(*byte),
        });
    }
    Some(found)
}

/// A set of bytes, after its bracket; and what follows it.
fn class(text: &[u8]) -> Option<(Token, &[u8])> {
    let (negated, mut rest) = match text.split_first()? {
        (b'!' | b'^', rest) => (true, rest),
        _ => (false, text),
    };
    let mut ranges = Vec::new();
    let mut first = true;
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b']' if !first => return Some((Token::Class { negated, ranges }, rest)),
            b'[' if rest.first() == Some(&b':') => {
                let end = rest.windows(2).position(|two| two == b":]")?;
                ranges.extend(named(rest.get(1..end)?)?);
                rest = rest.get(end + 2..)?;
            }
            byte => {
                let mut low = *byte;
                if low == b'\\' {
                    let (escaped, after) = rest.split_first()?;
                    (low, rest) = (*escaped, after);
                }
                let high = match rest {
                    [b'-', b']', ..] | [] => low,
                    [b'-', b'\\', high, after @ ..] | [b'-', high, after @ ..] => {
                        rest = after;
                        *high
                    }
                    _ => low,
                };
                ranges.push((low, high));
            }
        }
        first = false;
    }
}

/// The bytes of a class that POSIX names.
fn named(name: &[u8]) -> Option<Vec<(u8, u8)>> {
    Some(match name {
        b"alpha" => vec![(b'a', b'z'), (b'A', b'Z')],
        b"digit" => vec![(b'0', b'9')],
        b"alnum" => vec![(b'a', b'z'), (b'A', b'Z'), (b'0', b'9')],
        b"upper" => vec![(b'A', b'Z')],
        b"lower" => vec![(b'a', b'z')],
        b"space" => vec![(b'\t', b'\r'), (b' ', b' ')],
        b"blank" => vec![(b' ', b' '), (b'\t', b'\t')],
        b"xdigit" => vec![(b'0', b'9'), (b'a', b'f'), (b'A', b'F')],
        b"punct" => vec![(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        b"print" => vec![(b' ', b'~')],
        b"graph" => vec![(b'!', b'~')],
        b"cntrl" => vec![(0, 31), (127, 127)],
        _ => return None,
    })
}

/// Whether the segments match these names from the first to the last. At the end, any number of
/// names is at least one: `a/**` is about what lies in `a`.
fn names_match(segments: &[Segment], names: &[&[u8]]) -> bool {
    let (mut at, mut name) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    loop {
        match segments.get(at) {
            Some(Segment::Names) if at + 1 == segments.len() => return name < names.len(),
            Some(Segment::Names) => {
                again = Some((at + 1, name));
                at += 1;
                continue;
            }
            Some(Segment::Name(tokens)) if names.get(name).is_some_and(|n| matches(tokens, n)) => {
                (at, name) = (at + 1, name + 1);
                continue;
            }
            None if name == names.len() => return true,
            _ => {}
        }
        match again {
            Some((back, from)) if from < names.len() => {
                again = Some((back, from + 1));
                (at, name) = (back, from + 1);
            }
            _ => return false,
        }
    }
}

fn matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut at, mut byte) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    loop {
        let fits = match (tokens.get(at), name.get(byte)) {
            (Some(Token::Star), _) => {
                again = Some((at + 1, byte));
                at += 1;
                continue;
            }
            (None, None) => return true,
            (Some(Token::Byte(wanted)), Some(byte)) => wanted == byte,
            (Some(Token::One), Some(_)) => true,
            (Some(Token::Class { negated, ranges }), Some(byte)) => {
                let within = |(low, high): &(u8, u8)| (low..=high).contains(&byte);
                ranges.iter().any(within) != *negated
            }
            _ => false,
        };
        if fits {
            (at, byte) = (at + 1, byte + 1);
            continue;
        }
        match again {
            Some((back, from)) if from < name.len() => {
                again = Some((back, from + 1));
                (at, byte) = (back, from + 1);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
#[path = "gitignore_tests.rs"]
mod tests;
