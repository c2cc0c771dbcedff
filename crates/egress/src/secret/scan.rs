//! Looks for texts in a stream, however it is cut: to stop it, or to cover them.

use std::fmt;

/// A stream that holds what must not go there.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Why, without what it was.
    pub(crate) reason: String,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Stopped {}

/// A text that is looked for.
pub(crate) struct Pattern {
    pub(crate) text: Vec<u8>,
    /// Why the stream stops there; `None` where the text is covered.
    pub(crate) stops: Option<String>,
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

    /// Takes a part and gives what can go on: all but an end that may become one of the texts.
    ///
    /// # Errors
    /// Where a text is there that stops the stream.
    pub(crate) fn pass(&mut self, part: &[u8]) -> Result<Vec<u8>, Stopped> {
        self.held.extend(part);
        self.cover()?;
        let keep = self.unfinished();
        let mut on = std::mem::take(&mut self.held);
        self.held = on.split_off(on.len() - keep);
        Ok(on)
    }

    /// What is left at the end.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// All of a text at once.
    pub(crate) fn whole(&mut self, text: &[u8]) -> Result<Vec<u8>, Stopped> {
        let mut on = self.pass(text)?;
        on.extend(self.finish());
        Ok(on)
    }

    fn cover(&mut self) -> Result<(), Stopped> {
        for pattern in &self.patterns {
            let mut from = 0;
            while let Some(at) = find(self.held.get(from..).unwrap_or_default(), &pattern.text) {
                if let Some(reason) = &pattern.stops {
                    return Err(Stopped {
                        reason: reason.clone(),
                    });
                }
                let (start, end) = (from + at, from + at + pattern.text.len());
                if let Some(found) = self.held.get_mut(start..end) {
                    // As many as there were: a length that was said stays true.
                    found.fill(b'*');
                }
                from = end;
            }
        }
        Ok(())
    }

    /// How long an end is with which one of the texts begins.
    fn unfinished(&self) -> usize {
        let longest = self.patterns.iter().map(|pattern| pattern.text.len()).max();
        let most = longest.unwrap_or(0).saturating_sub(1).min(self.held.len());
        (1..=most)
            .rev()
            .find(|length| {
                let end = self
                    .held
                    .get(self.held.len() - length..)
                    .unwrap_or_default();
                let mut patterns = self.patterns.iter();
                patterns.any(|pattern| pattern.text.starts_with(end))
            })
            .unwrap_or(0)
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

    fn covers(texts: &[&str]) -> Scanner {
        let pattern = |text: &&str| Pattern {
            text: text.as_bytes().to_vec(),
            stops: None,
        };
        Scanner::new(texts.iter().map(pattern).collect()).unwrap()
    }

    #[test]
    fn a_text_is_covered_and_what_cannot_be_one_is_not_held() {
        let mut scanner = covers(&["secret-value"]);
        assert_eq!(scanner.pass(b"data: 1\n\n").unwrap(), b"data: 1\n\n");
        assert_eq!(scanner.pass(b"x secret-").unwrap(), b"x ");
        assert_eq!(scanner.pass(b"value y").unwrap(), b"************ y");
        assert_eq!(scanner.pass(b"secret-valu").unwrap(), b"");
        assert_eq!(scanner.finish(), b"secret-valu");
        let mut stops = Scanner::new(vec![Pattern {
            text: b"placeholder".to_vec(),
            stops: Some("why".into()),
        }])
        .unwrap();
        assert!(stops.pass(b"a place").is_ok());
        assert_eq!(stops.pass(b"holder").unwrap_err().reason, "why");
        assert!(Scanner::new(Vec::new()).is_none());
    }

    proptest! {
        #[test]
        fn however_it_is_cut_no_text_gets_through(
            parts in proptest::collection::vec("(aab|a|b|abab|x){0,4}", 0..8),
        ) {
            let whole = parts.concat();
            let mut scanner = covers(&["aabab", "bxb"]);
            let mut out = Vec::new();
            for part in &parts {
                out.extend(scanner.pass(part.as_bytes()).unwrap());
            }
            out.extend(scanner.finish());
            prop_assert_eq!(out.len(), whole.len());
            prop_assert!(find(&out, b"aabab").is_none());
            prop_assert!(find(&out, b"bxb").is_none());
            let mut again = covers(&["aabab", "bxb"]);
            prop_assert_eq!(again.whole(whole.as_bytes()).unwrap(), out);
        }
    }
}
