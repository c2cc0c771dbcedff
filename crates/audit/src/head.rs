//! The head of a log: how many lines it has and the hash of the last, kept apart from it.
//!
//! A head is one line of fixed length, rewritten in place: twenty digits, a space, the hash
//! in hexadecimal, a newline. An empty file vouches for no line. In place, as a rename for
//! every line would cost more than the line, and 86 bytes lie in one page.

use crate::chain::Digest;
use crate::error::Error;
use crate::place::head_path;
use crate::reader::open_to_read;
use ironcage_model::CageId;
use ironcage_sys::rustix;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

const NUMBER: usize = 20;
const LENGTH: usize = NUMBER + 1 + 64 + 1;

/// What a head's file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// No line has been written.
    Empty,
    /// So many lines, the last of which has this hash.
    At { lines: u64, hash: Digest },
    /// Something that was never written by a log.
    Unreadable,
}

impl Head {
    pub(crate) fn lines(self) -> u64 {
        match self {
            Head::At { lines, .. } => lines,
            Head::Empty | Head::Unreadable => 0,
        }
    }
}

/// Rewrites the head in place.
pub(crate) fn write(file: &File, lines: u64, hash: Digest) -> rustix::io::Result<()> {
    let mut text = [b'0'; LENGTH];
    let mut rest = lines;
    for digit in text[..NUMBER].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text[NUMBER] = b' ';
    text[NUMBER + 1..LENGTH - 1].copy_from_slice(&hash.hex());
    text[LENGTH - 1] = b'\n';
    let mut done = 0;
    while done < LENGTH {
        let offset = done as u64;
        match rustix::io::pwrite(file, &text[done..], offset) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reads the head of a cage's log; `None` if it has none.
pub(crate) fn read(dir: &Path, id: &CageId) -> Result<Option<Head>, Error> {
    let path = head_path(dir, id);
    let Some(file) = open_to_read(&path)? else {
        return Ok(None);
    };
    let mut text = Vec::with_capacity(LENGTH + 1);
    file.take(LENGTH as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|source| Error::Read { path, source })?;
    Ok(Some(parse(&text)))
}

fn parse(text: &[u8]) -> Head {
    if text.is_empty() {
        return Head::Empty;
    }
    let at = || {
        let text = text.strip_suffix(b"\n")?;
        let (number, rest) = text.split_at_checked(NUMBER)?;
        if !number.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let lines = std::str::from_utf8(number).ok()?.parse().ok()?;
        let hash = Digest::from_hex(rest.strip_prefix(b" ")?)?;
        (lines > 0).then_some(Head::At { lines, hash })
    };
    at().unwrap_or(Head::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_back_as_it_was_written() {
        let file = tempfile::tempfile().unwrap();
        let hash = Digest::genesis(&"c0123456789ab".parse().unwrap());
        for lines in [1, 42, u64::MAX] {
            write(&file, lines, hash).unwrap();
            let mut text = [0; LENGTH];
            assert_eq!(rustix::io::pread(&file, &mut text, 0), Ok(LENGTH));
            assert_eq!(parse(&text), Head::At { lines, hash });
        }
    }

    #[test]
    fn what_no_log_wrote_is_unreadable() {
        assert_eq!(parse(b""), Head::Empty);
        assert_eq!(parse(b"garbage"), Head::Unreadable);
        assert_eq!(parse(&[b'0'; LENGTH]), Head::Unreadable);
        assert_eq!(parse(&[0xff; LENGTH + 1]), Head::Unreadable);
    }
}
