//! SHA-256 digests of content, the names of everything in the store.

use crate::ImageError;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read, Write};

/// The SHA-256 of some content, shown as `sha256:HEX`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of bytes in memory.
    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new().chain_update(bytes))
    }

    /// Reads to the end; returns the digest and the number of bytes.
    ///
    /// # Errors
    /// If reading fails.
    pub fn of_reader(mut reader: impl Read) -> io::Result<(Self, u64)> {
        let mut writer = DigestWriter::new(io::sink());
        let size = io::copy(&mut reader, &mut writer)?;
        Ok((writer.finish().0, size))
    }

    /// The 64 hexadecimal digits, a safe file name.
    pub fn hex(&self) -> &str {
        &self.0
    }

    /// The first twelve digits, as people see them.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }

    fn finish(hash: Sha256) -> Self {
        use std::fmt::Write as _;
        let mut hex = String::with_capacity(64);
        for byte in hash.finalize() {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Digest(hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match hex.len() == 64 && hex.bytes().all(lower) {
            true => Ok(Digest(hex.to_owned())),
            false => Err(ImageError::BadDigest {
                text: text.chars().take(100).collect(),
            }),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self, ImageError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Passes bytes on and hashes them on the way.
pub struct DigestWriter<W> {
    inner: W,
    hash: Sha256,
    written: u64,
}

impl<W: Write> DigestWriter<W> {
    /// Writes to `inner`.
    pub fn new(inner: W) -> Self {
        DigestWriter {
            inner,
            hash: Sha256::new(),
            written: 0,
        }
    }

    /// The number of bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The digest of everything written, and the writer below.
    pub fn finish(self) -> (Digest, W) {
        (Digest::finish(self.hash), self.inner)
    }
}

impl<W: Write> Write for DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Hashes what is read through it.
pub(crate) struct DigestReader<R> {
    inner: R,
    hash: Sha256,
    pub(crate) read: u64,
}

impl<R: Read> DigestReader<R> {
    pub(crate) fn new(inner: R) -> Self {
        DigestReader {
            inner,
            hash: Sha256::new(),
            read: 0,
        }
    }

    pub(crate) fn finish(self) -> Digest {
        Digest::finish(self.hash)
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.read += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_lower_case_hexadecimal_digits() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        for wrong in [
            "",
            "sha256:",
            "sha256:../../etc/passwd",
            &empty[..70],
            &empty.to_uppercase(),
            &empty.replace("sha256", "sha512"),
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_written_and_what_is_read_have_the_same_digest() {
        let mut writer = DigestWriter::new(Vec::new());
        writer.write_all(b"layer").unwrap();
        assert_eq!(writer.written(), 5);
        let (digest, bytes) = writer.finish();
        assert_eq!(digest, Digest::of(&bytes));
        let mut reader = DigestReader::new(bytes.as_slice());
        io::copy(&mut reader, &mut io::sink()).unwrap();
        assert_eq!(reader.finish(), digest);
    }
}
