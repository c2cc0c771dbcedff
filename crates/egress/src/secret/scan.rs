//! Looks for placeholders in a stream, however it is cut, and stops it there.
//!
//! Placeholders are known in the cage: that an end of the stream is held back because it begins
//! like one tells nobody anything. Values are never looked for here (see `redact.rs`).

use ironcage_model::NetworkReason;
use std::fmt;

/// A stream that holds what must not go there.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Why, without what it was.
    pub(crate) reason: NetworkReason,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Stopped {}

/// A placeholder that stops a stream.
pub(crate) struct Pattern {
    pub(crate) text: Vec<u8>,
    /// Why the stream stops there.
    pub(crate) reason: NetworkReason,
}

impl Pattern {
    /// Where the end of a text begins that may become this.
    fn begins(&self, within: &[u8]) -> Option<usize> {
        let from = within
            .len()
            .saturating_sub(self.text.len().saturating_sub(1));
        (from..within.len()).find(|at| {
            let end = within.get(*at..).unwrap_or_default();
            self.text.starts_with(end)
        })
    }
}

/// Goes through a stream.
pub(crate) struct Scanner {
    patterns: Vec<Pattern>,
    held: Vec<u8>,
}

impl Scanner {
    /// `None` where there is nothing to look for.
    pub(crate) fn new(patterns: Vec<Pattern>) -> Option<Self> {
        (!patterns.is_empty()).then_some(Scanner {
            patterns,
            held: Vec::new(),
        })
    }

    /// Takes a part and gives what can go on: all but an end that may become a placeholder.
    ///
    /// # Errors
    /// Where there is one.
    pub(crate) fn pass(&mut self, part: &[u8]) -> Result<Vec<u8>, Stopped> {
        self.held.extend(part);
        let mut patterns = self.patterns.iter();
        if let Some(found) = patterns.find(|one| find(&self.held, &one.text).is_some()) {
            return Err(Stopped {
                reason: found.reason.clone(),
            });
        }
        let begins = self
            .patterns
            .iter()
            .filter_map(|one| one.begins(&self.held));
        let end = begins.min().unwrap_or(self.held.len());
        let rest = self.held.split_off(end);
        Ok(std::mem::replace(&mut self.held, rest))
    }

    /// What is left at the end.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// Where a text begins in another.
pub(crate) fn find(within: &[u8], text: &[u8]) -> Option<usize> {
    memchr::memmem::find(within, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(texts: &[&str]) -> Scanner {
        let pattern = |text: &&str| Pattern {
            text: text.as_bytes().to_vec(),
            reason: NetworkReason::SecretWrongHost {
                secret: (*text).to_owned(),
            },
        };
        Scanner::new(texts.iter().map(pattern).collect()).unwrap()
    }

    #[test]
    fn a_placeholder_stops_the_stream_and_its_beginning_does_not() {
        let mut scanner = stops(&["placeholder", "other"]);
        assert_eq!(scanner.pass(b"data: 1\n\n").unwrap(), b"data: 1\n\n");
        assert_eq!(scanner.pass(b"a place").unwrap(), b"a ");
        assert_eq!(scanner.pass(b"s ot").unwrap(), b"places ");
        assert_eq!(scanner.finish(), b"ot");
        assert!(scanner.pass(b"a place").is_ok());
        let stopped = scanner.pass(b"holder").unwrap_err();
        assert_eq!(stopped.reason.code(), "secret-wrong-host");
        assert!(Scanner::new(Vec::new()).is_none());
    }

    proptest! {
        #[test]
        fn however_it_is_cut_no_placeholder_gets_through(
            parts in proptest::collection::vec("(aab|a|b|abab|x){0,4}", 0..8),
        ) {
            let whole = parts.concat();
            let mut scanner = stops(&["aabab", "bxb"]);
            let mut out = Vec::new();
            let mut stopped = false;
            for part in &parts {
                match scanner.pass(part.as_bytes()) {
                    Ok(part) => out.extend(part),
                    Err(_) => {
                        stopped = true;
                        break;
                    }
                }
            }
            if !stopped {
                out.extend(scanner.finish());
                prop_assert_eq!(&out, whole.as_bytes());
            }
            prop_assert_eq!(stopped, whole.contains("aabab") || whole.contains("bxb"));
            prop_assert!(find(&out, b"aabab").is_none() && find(&out, b"bxb").is_none());
        }
    }
}
