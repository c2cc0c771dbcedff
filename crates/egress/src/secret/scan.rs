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
    text: Vec<u8>,
    /// Whether characters of it may be escaped, as JSON, HTML and addresses of pages do.
    escapes: bool,
    /// Why the stream stops there; `None` where the text is covered.
    stops: Option<String>,
}

impl Pattern {
    /// Covered where it stands as it is.
    pub(crate) fn covered(text: Vec<u8>) -> Self {
        Pattern {
            text,
            escapes: false,
            stops: None,
        }
    }

    /// Covered where some of its characters are escaped.
    pub(crate) fn covered_in_escapes(text: Vec<u8>) -> Self {
        Pattern {
            escapes: true,
            ..Pattern::covered(text)
        }
    }

    /// Stops the stream.
    pub(crate) fn stopping(text: Vec<u8>, reason: String) -> Self {
        Pattern {
            stops: Some(reason),
            ..Pattern::covered(text)
        }
    }

    /// Every place in a text at which this stands: where it begins and ends.
    fn places(&self, within: &[u8]) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        let mut from = 0;
        if !self.escapes {
            while let Some(at) = find(within.get(from..).unwrap_or_default(), &self.text) {
                from += at + 1;
                places.push((from - 1, from - 1 + self.text.len()));
            }
            return places;
        }
        let mut escape = next_escape(within, 0);
        while let Some(at) = escape {
            // It begins before the escape by as many characters as are not escaped, at most.
            let first = at.saturating_sub(self.text.len()).max(from);
            for start in first..=at {
                let rest = within.get(start..).unwrap_or_default();
                if let Read::Whole(length) = self.read(rest, false) {
                    places.push((start, start + length));
                }
            }
            from = at + 1;
            escape = next_escape(within, from);
        }
        places
    }

    /// Where the end of a text begins that may become this.
    fn begins(&self, within: &[u8]) -> Option<usize> {
        let longest = match self.escapes {
            true => self.text.len().saturating_mul(LONGEST_ESCAPE),
            false => self.text.len().saturating_sub(1),
        };
        let from = within.len().saturating_sub(longest);
        if self.escapes && next_escape(within, from).is_none() {
            return None;
        }
        (from..within.len()).find(|at| {
            let end = within.get(*at..).unwrap_or_default();
            match self.escapes {
                true => matches!(self.read(end, true), Read::Part),
                false => self.text.starts_with(end),
            }
        })
    }

    /// Reads this at the beginning of a text, with escapes, to which more may come or not.
    fn read(&self, from: &[u8], more: bool) -> Read {
        let mut at = 0;
        for byte in &self.text {
            match character(from.get(at..).unwrap_or_default(), *byte, more) {
                Read::Whole(length) => at += length,
                other => return other,
            }
        }
        Read::Whole(at)
    }
}

/// Bytes of the longest escape of one character.
const LONGEST_ESCAPE: usize = 16;

/// How far a text is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// All of it, in so many bytes.
    Whole(usize),
    /// Its beginning, up to the end of what is there.
    Part,
    /// Something else is.
    Not,
}

fn next_escape(within: &[u8], from: usize) -> Option<usize> {
    let rest = within.get(from..)?;
    memchr::memchr3(b'%', b'\\', b'&', rest).map(|at| from + at)
}

/// Reads one character, as it is or escaped.
fn character(from: &[u8], byte: u8, more: bool) -> Read {
    let Some(first) = from.first() else {
        return Read::Part;
    };
    let mut part = false;
    if matches!(first, b'%' | b'\\' | b'&') {
        // What was escaped twice has several of them.
        let slashes = from.iter().take_while(|byte| **byte == b'\\').count();
        let slashes = slashes.min(if byte == b'\\' { 1 } else { LONGEST_ESCAPE - 5 });
        let after = from.get(slashes..).unwrap_or_default();
        for escape in escapes(*first, byte) {
            let length = escape.len().min(after.len());
            let same = |end: usize| {
                let (there, wanted) = (after.get(..end), escape.as_bytes().get(..end));
                matches!((there, wanted), (Some(a), Some(b)) if a.eq_ignore_ascii_case(b))
            };
            if same(escape.len()) {
                return Read::Whole(slashes + length);
            }
            part |= length < escape.len() && same(length);
        }
    }
    match (part && more, *first == byte) {
        (true, _) => Read::Part,
        (false, true) => Read::Whole(1),
        (false, false) => Read::Not,
    }
}

/// How a character is written after the first byte of an escape; all of it where that is no
/// backslash.
fn escapes(first: u8, byte: u8) -> Vec<String> {
    match first {
        b'%' => vec![format!("%{byte:02x}")],
        b'\\' => {
            let mut all = vec![format!("u{byte:04x}"), format!("x{byte:02x}")];
            // A letter after a backslash is no letter.
            if !byte.is_ascii_alphanumeric() {
                all.push(char::from(byte).to_string());
            }
            all
        }
        _ => {
            let mut all = vec![format!("&#{byte};"), format!("&#x{byte:x};")];
            let named = match byte {
                b'&' => Some("&amp;"),
                b'<' => Some("&lt;"),
                b'>' => Some("&gt;"),
                b'"' => Some("&quot;"),
                b'\'' => Some("&apos;"),
                _ => None,
            };
            all.extend(named.map(str::to_owned));
            all
        }
    }
}

/// Goes through a stream.
pub(crate) struct Scanner {
    patterns: Vec<Pattern>,
    held: Vec<u8>,
    /// How much of what is held is covered by what began before it.
    covered: usize,
}

impl Scanner {
    /// `None` where there is nothing to look for.
    pub(crate) fn new(patterns: Vec<Pattern>) -> Option<Self> {
        (!patterns.is_empty()).then_some(Scanner {
            patterns,
            held: Vec::new(),
            covered: 0,
        })
    }

    /// Takes a part and gives what can go on: all but an end that may become one of the texts.
    ///
    /// # Errors
    /// Where a text is there that stops the stream.
    pub(crate) fn pass(&mut self, part: &[u8]) -> Result<Vec<u8>, Stopped> {
        self.held.extend(part);
        let places = self.places()?;
        let begins = self
            .patterns
            .iter()
            .filter_map(|one| one.begins(&self.held));
        let end = begins.min().unwrap_or(self.held.len());
        Ok(self.give(end, &places))
    }

    /// What is left at the end.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        // What stops a stream has stopped it when its last byte came.
        let places = self.places().unwrap_or_default();
        self.give(self.held.len(), &places)
    }

    /// All of a text at once.
    pub(crate) fn whole(&mut self, text: &[u8]) -> Result<Vec<u8>, Stopped> {
        let mut on = self.pass(text)?;
        on.extend(self.finish());
        Ok(on)
    }

    /// Where something is to be covered. All of it is found before any of it is covered: one
    /// text may be the beginning of another.
    fn places(&self) -> Result<Vec<(usize, usize)>, Stopped> {
        let mut all = vec![(0, self.covered)];
        for pattern in &self.patterns {
            let places = pattern.places(&self.held);
            if let (Some(reason), false) = (&pattern.stops, places.is_empty()) {
                return Err(Stopped {
                    reason: reason.clone(),
                });
            }
            all.extend(places);
        }
        Ok(all)
    }

    /// Gives what is held up to an end, covered.
    fn give(&mut self, end: usize, places: &[(usize, usize)]) -> Vec<u8> {
        let rest = self.held.split_off(end);
        let mut on = std::mem::replace(&mut self.held, rest);
        let mut over = self.covered.saturating_sub(end);
        for (from, to) in places.iter().filter(|(from, _)| *from < end) {
            if let Some(found) = on.get_mut(*from..(*to).min(end)) {
                // As many as there were: a length that was said stays true.
                found.fill(b'*');
            }
            over = over.max(to.saturating_sub(end));
        }
        self.covered = over;
        on
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
        let exact = texts
            .iter()
            .map(|text| Pattern::covered(text.as_bytes().to_vec()));
        let escaped = texts
            .iter()
            .map(|text| Pattern::covered_in_escapes(text.as_bytes().to_vec()));
        Scanner::new(exact.chain(escaped).collect()).unwrap()
    }

    #[test]
    fn a_text_is_covered_and_what_cannot_be_one_is_not_held() {
        let mut scanner = covers(&["secret-value"]);
        assert_eq!(scanner.pass(b"data: 1\n\n").unwrap(), b"data: 1\n\n");
        assert_eq!(scanner.pass(b"x secret-").unwrap(), b"x ");
        assert_eq!(scanner.pass(b"value y").unwrap(), b"************ y");
        assert_eq!(scanner.pass(b"secret-valu").unwrap(), b"");
        assert_eq!(scanner.finish(), b"secret-valu");
        let stopping = Pattern::stopping(b"placeholder".to_vec(), "why".into());
        let mut stops = Scanner::new(vec![stopping]).unwrap();
        assert!(stops.pass(b"a place").is_ok());
        assert_eq!(stops.pass(b"holder").unwrap_err().reason, "why");
        assert!(Scanner::new(Vec::new()).is_none());
    }

    #[test]
    fn a_text_that_begins_another_does_not_uncover_its_end() {
        for texts in [["key-abc", "key-abc-long"], ["key-abc-long", "key-abc"]] {
            let mut scanner = covers(&texts);
            assert_eq!(scanner.whole(b"<key-abc-long>").unwrap(), b"<************>");
            assert_eq!(scanner.whole(b"<key-abc>").unwrap(), b"<*******>");
            assert_eq!(scanner.pass(b"<key-abc").unwrap(), b"<");
            assert_eq!(scanner.pass(b"-long>").unwrap(), b"************>");
            assert_eq!(scanner.pass(b"key-abc-lo").unwrap(), b"");
            assert_eq!(scanner.finish(), b"*******-lo");
        }
        let mut scanner = covers(&["abc-key", "key-abc"]);
        assert_eq!(scanner.whole(b"abc-key-abc.").unwrap(), b"***********.");
        assert_eq!(scanner.pass(b"abc-key").unwrap(), b"****");
        assert_eq!(scanner.pass(b"-abc.").unwrap(), b"*******.");
    }

    #[test]
    fn a_text_is_covered_in_whichever_way_its_characters_are_escaped() {
        for written in [
            r"real\/value+1&",
            r"real\u002fvalue+1\u0026",
            r"real\u002Fvalue\x2b1&",
            r"real\\/value+1\\u0026",
            "real%2fvalue%2B1%26",
            "real%2Fvalue+1&amp;",
            "real&#47;value&#x2b;1&AMP;",
            r"\u0072eal/value+1&",
        ] {
            for cut in 0..written.len() {
                let mut scanner = covers(&["real/value+1&"]);
                let (a, b) = written.as_bytes().split_at(cut);
                let mut out = scanner.pass(a).unwrap();
                out.extend(scanner.pass(b).unwrap());
                out.extend(scanner.finish());
                assert_eq!(out, vec![b'*'; written.len()], "{written} cut at {cut}");
            }
        }
        let mut scanner = covers(&["real/value+1&"]);
        for other in [
            r"real\\value+1&",
            "real%2evalue+1&",
            "100%",
            r"a\",
            "real&#4",
        ] {
            assert_eq!(scanner.whole(other.as_bytes()).unwrap(), other.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn however_it_is_cut_no_text_gets_through(
            parts in proptest::collection::vec("(aab|a|b|abab|x|%61|%|&){0,4}", 0..8),
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
