//! The form of a line and the chain of hashes through the lines.
//!
//! A line is `{"seq":N,"prev":"HEX",...event...,"hash":"HEX"}` and a newline. The hash is
//! SHA-256 of the line's bytes before `,"hash":`; as these hold `prev`, which is the hash of
//! the line before, each hash stands for the whole log up to it. The bytes are hashed as
//! they stand in the file, so no canonical form of JSON is needed, and a reader in another
//! language needs nothing but a SHA-256. Whether a chain is right is `verify`'s to say.

use crate::error::{Error, Finding};
use ironcage_model::{CageId, Event, EventKind};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::Write as _;

/// The longest line that is ever written or read, newline included.
pub const MAX_LINE: usize = 1 << 20;

/// Of a command line that does not fit into a line, this much is kept. Escaped, a byte
/// becomes six at most, so what is kept always fits.
const KEPT_OF_COMMAND: usize = 64 << 10;

const HEX: usize = 64;
const SEQ_KEY: &[u8] = b"{\"seq\":";
const PREV_KEY: &[u8] = b",\"prev\":\"";
const HASH_KEY: &[u8] = b",\"hash\":\"";
const LINE_END: &[u8] = b"\"}";

/// A SHA-256 in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// What the first line of a cage's log continues. It holds the cage's id, so that one
    /// log under another's name is found, and the version of the format.
    pub(crate) fn genesis(id: &CageId) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"ironcage-audit-1:");
        hash.update(id.as_str().as_bytes());
        Digest(hash.finalize().into())
    }

    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digest as it stands in a log: 64 lower-case hexadecimal digits.
    pub(crate) fn hex(self) -> [u8; HEX] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; HEX];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text
    }

    /// Reads exactly what `hex` writes: an upper-case digit is a changed byte.
    pub(crate) fn from_hex(text: &[u8]) -> Option<Self> {
        fn digit(c: u8) -> Option<u8> {
            match c {
                b'0'..=b'9' => Some(c - b'0'),
                b'a'..=b'f' => Some(c - b'a' + 10),
                _ => None,
            }
        }
        if text.len() != HEX {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.hex()))
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Writes the line of an event into `line`, which is emptied first, and returns its hash.
pub(crate) fn encode(
    line: &mut Vec<u8>,
    seq: u64,
    prev: Digest,
    event: &Event,
) -> Result<Digest, Error> {
    let hash = encode_whole(line, seq, prev, event)?;
    if line.len() <= MAX_LINE {
        return Ok(hash);
    }
    let length = line.len();
    let Some(shorter) = with_shorter_command(event) else {
        return Err(Error::TooLong { length });
    };
    let hash = encode_whole(line, seq, prev, &shorter)?;
    if line.len() <= MAX_LINE {
        return Ok(hash);
    }
    Err(Error::TooLong { length })
}

fn encode_whole(
    line: &mut Vec<u8>,
    seq: u64,
    prev: Digest,
    event: &Event,
) -> Result<Digest, Error> {
    let encoded = |source| Error::Encode { source };
    line.clear();
    line.extend_from_slice(SEQ_KEY);
    // Writing to a vector does not fail; the error has a place all the same.
    write!(line, "{seq}").map_err(|source| encoded(serde_json::Error::io(source)))?;
    line.extend_from_slice(PREV_KEY);
    line.extend_from_slice(&prev.hex());
    line.push(b'"');
    let brace = line.len();
    serde_json::to_writer(&mut *line, event).map_err(encoded)?;
    // The event is an object of its own: its braces give way to the line's.
    line[brace] = b',';
    line.pop();
    let hash = Digest::of(line);
    line.extend_from_slice(HASH_KEY);
    line.extend_from_slice(&hash.hex());
    line.extend_from_slice(LINE_END);
    line.push(b'\n');
    Ok(hash)
}

/// The same event with the end of its command line left out, and a last word that says so.
/// A command line may be longer than a line of the log; the start must be recorded all the same.
fn with_shorter_command(event: &Event) -> Option<Event> {
    let mut event = event.clone();
    let (EventKind::Start { command, .. } | EventKind::Exec { command, .. }) = &mut event.kind
    else {
        return None;
    };
    let words = command.len();
    let bytes: usize = command.iter().map(String::len).sum();
    let mut room = KEPT_OF_COMMAND;
    let mut kept = Vec::new();
    for word in command.iter() {
        // A word costs its quotes and comma as well.
        let fits = word.floor_char_boundary(room.saturating_sub(3));
        if fits == 0 && !word.is_empty() || room < 3 {
            break;
        }
        kept.push(word[..fits].to_owned());
        room = room.saturating_sub(fits + 3);
    }
    kept.push(format!(
        "[cut short: {words} arguments, {bytes} bytes in all]"
    ));
    *command = kept;
    Some(event)
}

/// What the chain needs of a line; the event is left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) seq: u64,
    pub(crate) prev: Digest,
    pub(crate) hash: Digest,
    /// Whether the hash is that of the line's text.
    pub(crate) sound: bool,
}

/// Takes a line, without its newline, apart. It must have the exact form that `encode` gives it.
pub(crate) fn decode(line: &[u8]) -> Result<Link, Finding> {
    split(line).ok_or(Finding::NotARecord)
}

fn split(line: &[u8]) -> Option<Link> {
    let rest = line.strip_prefix(SEQ_KEY)?;
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    let (number, rest) = rest.split_at_checked(digits)?;
    let seq: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let rest = rest.strip_prefix(PREV_KEY)?;
    let (prev, _) = rest.split_at_checked(HEX)?;

    let tail = HASH_KEY.len() + HEX + LINE_END.len();
    let (body, tail) = line.split_at_checked(line.len().checked_sub(tail)?)?;
    let hash = tail.strip_prefix(HASH_KEY)?.strip_suffix(LINE_END)?;
    let hash = Digest::from_hex(hash)?;
    Some(Link {
        seq,
        prev: Digest::from_hex(prev)?,
        hash,
        sound: Digest::of(body) == hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> CageId {
        "c0123456789ab".parse().unwrap()
    }

    fn start(command: Vec<String>) -> Event {
        let kind = EventKind::Start {
            name: None,
            command,
            workspace: "/w".into(),
            profile: "shell".into(),
            isolation: None,
            runtime: None,
            plan: "00".into(),
            layers: Vec::new(),
            degraded: Vec::new(),
            shared: Vec::new(),
            parent: None,
        };
        Event {
            time: 1,
            cage: id(),
            kind,
        }
    }

    #[test]
    fn a_line_decodes_to_what_was_encoded() {
        let mut line = Vec::new();
        let prev = Digest::genesis(&id());
        let hash = encode(&mut line, 7, prev, &start(vec!["true".into()])).unwrap();
        let link = decode(line.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(
            link,
            Link {
                seq: 7,
                prev,
                hash,
                sound: true
            }
        );
    }

    #[test]
    fn a_digest_in_upper_case_is_not_a_digest() {
        let hex = Digest::of(b"x").hex();
        assert_eq!(Digest::from_hex(&hex), Some(Digest::of(b"x")));
        assert_eq!(Digest::from_hex(&hex.to_ascii_uppercase()), None);
        assert_eq!(Digest::from_hex(&hex[1..]), None);
    }

    #[test]
    fn a_command_line_of_any_length_still_makes_a_line() {
        let worst = "\u{1}".repeat(128 << 10);
        let words = vec![worst; 20];
        let mut line = Vec::new();
        encode(&mut line, 0, Digest::genesis(&id()), &start(words)).unwrap();
        assert!(line.len() <= MAX_LINE);
        let text = String::from_utf8(line).unwrap();
        assert!(text.contains("[cut short: 20 arguments, 2621440 bytes in all]"));
    }

    #[test]
    fn many_empty_words_are_cut_short_too() {
        let words = vec![String::new(); 1 << 20];
        let mut line = Vec::new();
        encode(&mut line, 0, Digest::genesis(&id()), &start(words)).unwrap();
        assert!(line.len() <= MAX_LINE);
    }
}
