//! Patterns of names: `*` stands for any text, everything else for itself.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A name, or several names by `*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

/// Text that cannot be a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// It is empty, or longer than any name.
    #[error("expected 1 to 512 characters")]
    Length,
    /// It has something in it that no name has.
    #[error("contains spaces or characters that cannot be seen")]
    Invisible,
}

impl Pattern {
    pub fn new(text: &str) -> Result<Self, InvalidPattern> {
        if text.is_empty() || text.len() > 512 {
            return Err(InvalidPattern::Length);
        }
        match text.chars().all(|c| c.is_ascii_graphic()) {
            true => Ok(Pattern(text.to_owned())),
            false => Err(InvalidPattern::Invisible),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a name is one of those meant, letter by letter.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else {
            return rest.is_empty();
        };
        for part in middle {
            let Some((_, after)) = rest.split_once(part).filter(|_| !part.is_empty()) else {
                if part.is_empty() {
                    continue;
                }
                return false;
            };
            rest = after;
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_the_rest_for_itself() {
        let matches = |pattern: &str, name: &str| Pattern::new(pattern).unwrap().matches(name);
        for (pattern, name) in [
            ("*", ""),
            ("read_*", "read_file"),
            ("*_file", "read_file"),
            ("a*b*c", "aXbYc"),
            ("a**c", "abc"),
            ("a*a", "aa"),
            ("file:///n/*", "file:///n/x"),
            ("read", "read"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("read", "Read"),
            ("read", "read_file"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
            ("read_*", "xread_"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert_eq!(Pattern::new(""), Err(InvalidPattern::Length));
        assert_eq!(Pattern::new("re\u{430}d"), Err(InvalidPattern::Invisible));
    }
}
