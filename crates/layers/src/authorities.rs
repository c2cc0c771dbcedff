//! Files of certificate authorities for a cage: what the host trusts, and the cage's own.
//!
//! Only certificates are taken from the host's files: a bundle that somebody made by hand may
//! hold a private key beside them.

use ironcage_model::base64;
use sha1::{Digest as _, Sha1};
use std::io;
use std::path::{Path, PathBuf};

/// Longest file that is read.
const LONGEST: u64 = 8 << 20;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The content of a file of authorities.
///
/// # Errors
/// Where a bundle cannot be read.
pub(crate) fn content(bundles: &[PathBuf], own: &str, java: bool) -> io::Result<Vec<u8>> {
    let mut blocks = Vec::new();
    for path in bundles {
        blocks.extend(read(path)?);
    }
    blocks.extend(certificates(own));
    if java {
        let decoded = blocks.iter().filter_map(|block| decode(block));
        return Ok(key_store(&decoded.collect::<Vec<_>>()));
    }
    let mut text = String::new();
    for block in blocks {
        text.push_str(BEGIN);
        text.push('\n');
        for line in block.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str(END);
        text.push('\n');
    }
    Ok(text.into_bytes())
}

fn read(path: &Path) -> io::Result<Vec<String>> {
    let bytes = ironcage_files::read(path, LONGEST, ironcage_files::Links::Follow)?;
    Ok(certificates(&String::from_utf8_lossy(&bytes)))
}

/// The certificates of a text, each in base64 without line ends.
fn certificates(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut current: Option<String> = None;
    for line in text.lines().map(str::trim) {
        match (&mut current, line) {
            (_, BEGIN) => current = Some(String::new()),
            (Some(_), END) => found.extend(current.take()),
            (Some(block), line) => block.push_str(line),
            (None, _) => {}
        }
    }
    found.retain(|block| decode(block).is_some());
    found
}

/// What a certificate is in base64.
fn decode(text: &str) -> Option<Vec<u8>> {
    base64::decode(text).filter(|bytes| !bytes.is_empty())
}

/// Java's own form: a count of named certificates and a digest over a password that everybody
/// knows.
fn key_store(certificates: &[Vec<u8>]) -> Vec<u8> {
    const MAGIC: u32 = 0xfeed_feed;
    const VERSION: u32 = 2;
    const TRUSTED: u32 = 2;
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u16).to_be_bytes());
        out.extend(text.as_bytes());
    }
    let mut out = Vec::new();
    for word in [MAGIC, VERSION, certificates.len() as u32] {
        out.extend(word.to_be_bytes());
    }
    for (number, certificate) in certificates.iter().enumerate() {
        out.extend(TRUSTED.to_be_bytes());
        text(&mut out, &format!("authority-{number}"));
        out.extend(0_u64.to_be_bytes());
        text(&mut out, "X.509");
        out.extend((certificate.len() as u32).to_be_bytes());
        out.extend(certificate);
    }
    let mut digest = Sha1::new();
    for character in "changeit".encode_utf16() {
        digest.update(character.to_be_bytes());
    }
    digest.update("Mighty Aphrodite");
    digest.update(&out);
    out.extend(digest.finalize());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certificates_are_taken() {
        let place = std::env::temp_dir().join(format!("authorities-{}", std::process::id()));
        let text = format!(
            "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n# x\n{BEGIN}\nQUJD\n{END}\n{BEGIN}\n!\n{END}\n"
        );
        std::fs::write(&place, text).unwrap();
        let own = format!("{BEGIN}\nREVG\n{END}\n");
        let bundles = [place.clone()];
        let pem = String::from_utf8(content(&bundles, &own, false).unwrap()).unwrap();
        let java = content(&bundles, &own, true).unwrap();
        std::fs::remove_file(place).unwrap();
        assert_eq!(pem, format!("{BEGIN}\nQUJD\n{END}\n{BEGIN}\nREVG\n{END}\n"));
        assert_eq!(
            java.get(..12),
            Some(&[0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2][..])
        );
        assert!(java.windows(3).any(|three| three == b"ABC"));
        assert!(java.windows(3).any(|three| three == b"DEF"));
    }
}
