//! Covers secrets in what comes back from a server, so that nothing but a whole value shows.
//!
//! The agent sees each byte that goes on, and when. So what is held back follows from the server's
//! bytes alone: the end of the stream from the last byte on that stands in no form of any secret,
//! whatever the secrets are. The search takes the same time for a text that begins like a secret
//! and for one that does not: it compares hashes of whole lengths, never prefixes. Docs:
//! `docs/adr/0023-covering-secrets-without-an-oracle.md`.

use super::decode::{Decoded, readings, spaced_hexadecimal, spaced_hexadecimal_at_end};
use super::place::forms;
use super::store::{Origin, SecretStore, Value};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::rc::Rc;
use zeroize::Zeroizing;

/// Shortest value that is covered: a guess at a shorter one could be confirmed by trying.
pub(crate) const SHORTEST_COVERED: usize = 16;
/// The same for what is left of it in the name of a field.
const SHORTEST_NAME: usize = 12;
/// Most bytes that are held back, and the longest form of a value that is covered.
const LONGEST_HELD: usize = 4096;
/// The same for hexadecimal digits with spaces, which take three bytes for one.
const LONGEST_SPACED: usize = 3 * LONGEST_HELD;
/// Former values of logins that are still covered: a login is renewed now and then.
const FORMER: usize = 16;

/// Whether a byte stands in no form of a value: values are printable ASCII without spaces, and so
/// are their escapes, digits and base64. Zero bytes are those of UTF-16.
fn is_delimiter(byte: u8) -> bool {
    !(byte.is_ascii_graphic() || byte == 0)
}

/// Texts of one length.
struct SameLength {
    length: usize,
    /// The base of the hash to the power of the length.
    power: u64,
    texts: Vec<(u64, Zeroizing<Vec<u8>>)>,
}

/// Texts that are looked for by a rolling hash of their whole length. The time that a search takes
/// does not depend on how much of a text matches.
#[derive(Default)]
struct HashedTexts {
    /// The base of the hash: random, so that nobody can make a collision.
    base: u64,
    lengths: Vec<SameLength>,
}

impl HashedTexts {
    fn add(&mut self, text: Zeroizing<Vec<u8>>) {
        let length = text.len();
        let entry = (hash(&text, self.base), text);
        match self.lengths.iter_mut().find(|same| same.length == length) {
            Some(same) => same.texts.push(entry),
            None => self.lengths.push(SameLength {
                length,
                power: (0..length).fold(1, |power: u64, _| power.wrapping_mul(self.base)),
                texts: vec![entry],
            }),
        }
    }

    /// Where these texts begin and end in another.
    fn places(&self, within: &[u8]) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        let fitting = self.lengths.iter();
        for same in fitting.filter(|same| same.length <= within.len()) {
            let mut rolling: u64 = 0;
            for (at, byte) in within.iter().enumerate() {
                rolling = pushed(rolling, *byte, self.base);
                if let Some(gone) = at.checked_sub(same.length).and_then(|at| within.get(at)) {
                    let gone = (u64::from(*gone) + 1).wrapping_mul(same.power);
                    rolling = rolling.wrapping_sub(gone);
                }
                if same.texts.iter().any(|(hash, _)| *hash == rolling) {
                    let from = (at + 1).saturating_sub(same.length);
                    let found = within.get(from..=at).unwrap_or_default();
                    if same.texts.iter().any(|(_, text)| text.as_slice() == found) {
                        places.push((from, at + 1));
                    }
                }
            }
        }
        places
    }
}

/// Values that an origin got in this run.
#[derive(Default)]
pub(super) struct InjectedValues {
    values: VecDeque<Value>,
    forms: HashedTexts,
    /// What is left of each value in the name of a field.
    names: HashedTexts,
}

impl InjectedValues {
    /// `base` is a random number.
    pub(super) fn new(values: VecDeque<Value>, base: u64) -> Self {
        // Even, it would forget all but the last bytes.
        let base = base | 1;
        let texts = || HashedTexts {
            base,
            ..HashedTexts::default()
        };
        let (mut found, mut names) = (texts(), texts());
        for value in values
            .iter()
            .filter(|value| value.len() >= SHORTEST_COVERED)
        {
            for form in forms(value) {
                if (SHORTEST_COVERED..=LONGEST_HELD).contains(&form.len()) {
                    found.add(Zeroizing::new(form));
                }
            }
            let name = Zeroizing::new(squeezed(value));
            if name.len() >= SHORTEST_NAME {
                names.add(name);
            }
        }
        InjectedValues {
            values,
            forms: found,
            names,
        }
    }

    /// The values with one more; `None` where that is among them. Values that are in use stay;
    /// of former ones, which a login had before, the last few do.
    pub(super) fn with(
        &self,
        value: &Value,
        is_in_use: impl Fn(&Value) -> bool,
    ) -> Option<VecDeque<Value>> {
        if self.values.iter().any(|known| Rc::ptr_eq(known, value)) {
            return None;
        }
        let mut more = self.values.clone();
        more.push_front(Rc::clone(value));
        let mut former = 0;
        more.retain(|value| {
            former += usize::from(!is_in_use(value));
            is_in_use(value) || former <= FORMER
        });
        Some(more)
    }

    /// Whether it is made of these values.
    pub(super) fn is_of(&self, values: &VecDeque<Value>) -> bool {
        let mut both = self.values.iter().zip(values);
        self.values.len() == values.len() && both.all(|(a, b)| Rc::ptr_eq(a, b))
    }

    /// Covers the values that stand in a text, in a copy of it.
    fn cover(&self, text: &[u8], shown: &mut [u8]) {
        self.find(text, |place| fill(shown, place));
        // Amazon's S3 says so what it was sent, where a signature does not match.
        for spaced in spaced_hexadecimal(text, SHORTEST_COVERED) {
            let Decoded { text: inner, .. } = &spaced;
            self.find(inner, |(from, to)| fill(shown, spaced.original(from, to)));
        }
    }

    /// Finds the values in the words of a text.
    fn find(&self, text: &[u8], mut found: impl FnMut((usize, usize))) {
        let mut start = 0;
        for word in text.split(|byte| is_delimiter(*byte)) {
            if word.len() >= SHORTEST_COVERED {
                for (from, to) in self.forms.places(word) {
                    found((start + from, start + to));
                }
                for reading in readings(word) {
                    for (from, to) in self.forms.places(&reading.text) {
                        let (from, to) = reading.original(from, to);
                        found((start + from, start + to));
                    }
                }
            }
            start += word.len() + 1;
        }
    }

    /// A whole text with the values covered.
    pub(super) fn covered(&self, text: &[u8]) -> Vec<u8> {
        let mut shown = text.to_vec();
        self.cover(text, &mut shown);
        shown
    }

    /// Whether the name of a field holds a value. It cannot be covered: it would be another name.
    pub(super) fn is_in_name(&self, name: &str) -> bool {
        !self.names.places(&squeezed(name.as_bytes())).is_empty()
    }
}

fn pushed(hash: u64, byte: u8, base: u64) -> u64 {
    hash.wrapping_mul(base).wrapping_add(u64::from(byte) + 1)
}

fn hash(text: &[u8], base: u64) -> u64 {
    text.iter().fold(0, |hash, byte| pushed(hash, *byte, base))
}

/// As many bytes as there were, so that a length that was said stays true. Zero bytes stay: they
/// are halves of characters.
fn fill(shown: &mut [u8], (from, to): (usize, usize)) {
    let found = shown.get_mut(from..to).unwrap_or_default();
    for byte in found.iter_mut().filter(|byte| **byte != 0) {
        *byte = b'*';
    }
}

/// Letters and digits alone, in small letters: what is left of a value in the name of a field.
fn squeezed(text: &[u8]) -> Vec<u8> {
    let kept = text.iter().filter(|byte| byte.is_ascii_alphanumeric());
    kept.map(u8::to_ascii_lowercase).collect()
}

/// Covers values in a stream that comes from an origin.
pub(crate) struct Redactor {
    store: Rc<SecretStore>,
    origin: Origin,
    /// The end of the stream without a delimiter: what came, and what is shown of it.
    came: Vec<u8>,
    shown: Vec<u8>,
    /// How much of that went on already.
    gone: usize,
}

impl Redactor {
    pub(super) fn new(store: &Rc<SecretStore>, origin: Origin) -> Self {
        Redactor {
            store: Rc::clone(store),
            origin,
            came: Vec::new(),
            shown: Vec::new(),
            gone: 0,
        }
    }

    /// Takes a part, and gives what goes on now: all but the end without a delimiter.
    pub(crate) fn pass<'a>(&mut self, part: &'a [u8]) -> Cow<'a, [u8]> {
        // Asked each time: another request may have taken a value there meanwhile.
        let Some(values) = self.store.injected(&self.origin) else {
            return Cow::Borrowed(part);
        };
        self.came.extend(part);
        self.shown.extend(part);
        values.cover(&self.came, &mut self.shown);
        let last = self.came.iter().rposition(|byte| is_delimiter(*byte));
        // What begins before the last 4 KiB and is not over yet is longer than what is covered.
        let most = |length: usize| self.came.len().saturating_sub(length);
        let word = last.map_or(0, |at| at + 1).max(most(LONGEST_HELD));
        let spaced = spaced_hexadecimal_at_end(&self.came).max(most(LONGEST_SPACED));
        let kept = word.min(spaced);
        let on = self.shown.get(self.gone..kept).unwrap_or_default().to_vec();
        self.came.drain(..kept);
        self.shown.drain(..kept);
        self.gone = self.gone.saturating_sub(kept);
        Cow::Owned(on)
    }

    /// Whether something is held back.
    pub(crate) fn holds(&self) -> bool {
        self.gone < self.came.len()
    }

    /// Gives what is held back. It is still known, so that a value of which the rest comes later
    /// is covered from here on.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        let on = self.shown.get(self.gone..).unwrap_or_default().to_vec();
        self.gone = self.came.len();
        on
    }
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
