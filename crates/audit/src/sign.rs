//! Signed heads: what logs there were at one time, how long they were and how they ended, signed
//! with a key that no cage can reach.
//!
//! A hash chain shows a change to whoever kept an earlier head. Whoever owns the state directory
//! can write a whole new chain with a new head, so a head is worth as much as the place where it is
//! kept. A signature by a key that is kept elsewhere, or a copy of the signed file, closes that.
//!
//! The signed text is plain lines, so that a reader in another language needs an Ed25519 and a
//! SHA-256, and no canonical JSON.

use crate::chain::Digest;
use crate::error::{Error, Fault};
use crate::reader::open_to_read;
use crate::verify::{self, Verdict};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use ironcage_model::CageId;
use ironcage_sys::rustix;
use rustix::fs::{Mode, OFlags};
use std::fmt::{self, Write as _};
use std::fs::DirBuilder;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FIRST_LINE: &str = "ironcage-heads-1";
const KEY_HEX: usize = 64;

/// A key or a signature could not be read, made or believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    #[error("cannot {verb} the signing key {}", path.display())]
    KeyFile {
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot read the signing key {}: expected 64 hexadecimal digits", path.display())]
    KeyForm { path: PathBuf },
    #[error("cannot use the signing key {}: others can read it (mode {mode:04o})", path.display())]
    KeyOpen { path: PathBuf, mode: u32 },
    #[error("cannot get random bytes for a key")]
    Random { source: io::Error },
    #[error("cannot read the public key: expected 64 hexadecimal digits of an Ed25519 key")]
    PublicKey,
    #[error("cannot read the signature: expected 128 hexadecimal digits")]
    SignatureForm,
    #[error("the signature is not by this key, or the signed text was changed")]
    Signature,
    #[error("cannot read the signed heads: line {line} is not a head")]
    Statement { line: usize },
}

/// Where the signing key lies, beside the logs: cages see neither.
pub fn key_path(dir: &Path) -> PathBuf {
    dir.parent().unwrap_or(dir).join("keys").join("audit")
}

/// The key that signs heads. Its secret part is never shown.
pub struct AuditKey(SigningKey);

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditKey({})", self.public())
    }
}

impl AuditKey {
    /// Reads the key; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, SignError> {
        let failed = |source: io::Error| SignError::KeyFile {
            verb: "read",
            path: path.to_owned(),
            source,
        };
        let file = match open_to_read(path) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(None),
            Err(error) => return Err(failed(io::Error::other(error.to_string()))),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?;
        let mode = stat.st_mode & 0o777;
        if mode & 0o077 != 0 {
            let path = path.to_owned();
            return Err(SignError::KeyOpen { path, mode });
        }
        let mut text = String::new();
        file.take(KEY_HEX as u64 + 2)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let bytes = from_hex::<32>(text.trim_end()).ok_or_else(|| SignError::KeyForm {
            path: path.to_owned(),
        })?;
        Ok(Some(AuditKey(SigningKey::from_bytes(&bytes))))
    }

    /// Makes a key, for this user alone. A key that exists is never replaced.
    pub fn create(path: &Path) -> Result<Self, SignError> {
        let failed = |source: io::Error| SignError::KeyFile {
            verb: "create",
            path: path.to_owned(),
            source,
        };
        let mut bytes = [0_u8; 32];
        let flags = rustix::rand::GetRandomFlags::empty();
        let got =
            rustix::rand::getrandom(&mut bytes, flags).map_err(|errno| SignError::Random {
                source: errno.into(),
            })?;
        if got != bytes.len() {
            let source = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(SignError::Random { source });
        }
        if let Some(parent) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(failed)?;
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let mut file = std::fs::File::from(file.map_err(|errno| failed(errno.into()))?);
        let written = writeln!(file, "{}", hex(&bytes)).and_then(|()| file.sync_all());
        written.map_err(failed)?;
        Ok(AuditKey(SigningKey::from_bytes(&bytes)))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The signature of a text, in hexadecimal.
    pub fn sign(&self, text: &str) -> String {
        hex(&self.0.sign(text.as_bytes()).to_bytes())
    }
}

/// The part of the key that others need to check a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Whether this key signed exactly this text.
    pub fn check(&self, text: &str, signature: &str) -> Result<(), SignError> {
        let bytes = from_hex::<64>(signature).ok_or(SignError::SignatureForm)?;
        // Strict: a weak key or a second form of one signature is not accepted.
        self.0
            .verify_strict(text.as_bytes(), &Signature::from_bytes(&bytes))
            .map_err(|_| SignError::Signature)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0.as_bytes()))
    }
}

impl FromStr for PublicKey {
    type Err = SignError;

    fn from_str(text: &str) -> Result<Self, SignError> {
        let bytes = from_hex::<32>(text).ok_or(SignError::PublicKey)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| SignError::PublicKey)?;
        Ok(PublicKey(key))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The end of one log, as it was when it was signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHead {
    pub cage: CageId,
    pub lines: u64,
    pub hash: Digest,
}

/// What is signed: a time, the digest of a report, and heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Microseconds since the epoch.
    pub time: u64,
    /// SHA-256 of the report that the heads belong to.
    pub report: Digest,
    pub heads: Vec<SignedHead>,
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        writeln!(f, "time {}", self.time)?;
        writeln!(f, "report {}", self.report)?;
        for head in &self.heads {
            writeln!(f, "{} {} {}", head.cage, head.lines, head.hash)?;
        }
        Ok(())
    }
}

impl FromStr for Statement {
    type Err = SignError;

    fn from_str(text: &str) -> Result<Self, SignError> {
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let bad = |line| SignError::Statement { line };
        if lines.next().is_none_or(|(_, line)| line != FIRST_LINE) {
            return Err(bad(1));
        }
        let time = lines
            .next()
            .and_then(|(_, line)| line.strip_prefix("time "));
        let time = time.and_then(|time| time.parse().ok()).ok_or(bad(2))?;
        let report = lines
            .next()
            .and_then(|(_, line)| line.strip_prefix("report "));
        let report = report.and_then(|report| Digest::from_hex(report.as_bytes()));
        let report = report.ok_or(bad(3))?;
        let mut heads = Vec::new();
        for (at, line) in lines {
            let mut words = line.split(' ');
            let mut head = || {
                let cage = words.next()?.parse().ok()?;
                let lines = words.next()?.parse().ok()?;
                let hash = Digest::from_hex(words.next()?.as_bytes())?;
                words
                    .next()
                    .is_none()
                    .then_some(SignedHead { cage, lines, hash })
            };
            heads.push(head().ok_or(bad(at))?);
        }
        Ok(Statement {
            time,
            report,
            heads,
        })
    }
}

/// What a log is, beside its signed head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadVerdict {
    /// The log has the signed lines, unchanged; more may have followed.
    Matches,
    /// The log is not here.
    Missing,
    /// The signed lines were replaced, or their end was cut.
    Differs,
    /// The log is broken in itself.
    Broken(Fault),
}

/// The end of a log that is sound, for signing; the verdict where it is broken.
pub fn head_to_sign(dir: &Path, id: &CageId) -> Result<Result<SignedHead, Verdict>, Error> {
    let verdict = verify::verify(dir, id)?;
    // Of a cage that runs, the lines that its head file had.
    let until = match &verdict {
        Verdict::Intact { lines, .. } => *lines,
        Verdict::TailUnproven(_) => u64::MAX,
        Verdict::Broken(_) => return Ok(Err(verdict)),
    };
    Ok(match verify::chain_end(dir, id, until)? {
        Some(Ok(end)) => Ok(SignedHead {
            cage: id.clone(),
            lines: end.lines,
            hash: end.hash,
        }),
        _ => Err(verdict),
    })
}

/// Holds a log against its signed head. It trusts nothing but the signature that was checked before.
pub fn check_head(dir: &Path, head: &SignedHead) -> Result<HeadVerdict, Error> {
    Ok(match verify::chain_end(dir, &head.cage, head.lines)? {
        None => HeadVerdict::Missing,
        Some(Err(fault)) => HeadVerdict::Broken(fault),
        Some(Ok(end)) if end.lines == head.lines && end.hash == head.hash => HeadVerdict::Matches,
        Some(Ok(_)) => HeadVerdict::Differs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Log, log_path};
    use ironcage_model::{Event, EventKind};

    fn id() -> CageId {
        "c0123456789ab".parse().unwrap()
    }

    /// A log of three lines, in a directory of its own.
    fn logged(dir: &Path) -> SignedHead {
        let mut log = Log::create(dir, &id()).unwrap();
        for time in 0..3 {
            let kind = EventKind::Resumed;
            let cage = id();
            log.append(&Event { time, cage, kind }).unwrap();
        }
        head_to_sign(dir, &id()).unwrap().unwrap()
    }

    #[test]
    fn a_key_is_made_once_for_its_owner_alone_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys/audit");
        assert!(AuditKey::read(&path).unwrap().is_none());
        let made = AuditKey::create(&path).unwrap();
        let read = AuditKey::read(&path).unwrap().unwrap();
        assert_eq!(made.public(), read.public());
        assert!(matches!(
            AuditKey::create(&path),
            Err(SignError::KeyFile { .. })
        ));
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o644)).unwrap();
        assert!(matches!(
            AuditKey::read(&path),
            Err(SignError::KeyOpen { mode: 0o644, .. })
        ));
    }

    #[test]
    fn a_signature_holds_for_its_text_and_key_and_for_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let key = AuditKey::create(&dir.path().join("a")).unwrap();
        let other = AuditKey::create(&dir.path().join("b")).unwrap();
        let signature = key.sign("text");
        key.public().check("text", &signature).unwrap();
        let again: PublicKey = key.public().to_string().parse().unwrap();
        again.check("text", &signature).unwrap();
        for (key, text) in [(key.public(), "texT"), (other.public(), "text")] {
            assert!(matches!(
                key.check(text, &signature),
                Err(SignError::Signature)
            ));
        }
        let short = &signature[2..];
        assert!(matches!(
            key.public().check("text", short),
            Err(SignError::SignatureForm)
        ));
    }

    #[test]
    fn a_statement_reads_back_and_nothing_may_be_added_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let head = logged(&dir.path().join("audit"));
        let statement = Statement {
            time: 7,
            report: head.hash,
            heads: vec![head],
        };
        let text = statement.to_string();
        assert_eq!(text.parse::<Statement>().unwrap(), statement);
        for wrong in [
            text.replace("heads-1", "heads-2"),
            format!("{text}c0123456789ab 3\n"),
            format!("{text}\n"),
        ] {
            assert!(wrong.parse::<Statement>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rewritten_log_differs_even_where_its_own_chain_is_sound() {
        let first = tempfile::tempdir().unwrap();
        let dir = first.path().join("audit");
        let head = logged(&dir);
        assert_eq!(check_head(&dir, &head).unwrap(), HeadVerdict::Matches);

        // The same cage with another history: chain and head file are right.
        let second = tempfile::tempdir().unwrap();
        let forged = second.path().join("audit");
        let mut log = Log::create(&forged, &id()).unwrap();
        for time in 10..13 {
            let kind = EventKind::Resumed;
            let cage = id();
            log.append(&Event { time, cage, kind }).unwrap();
        }
        assert!(head_to_sign(&forged, &id()).unwrap().is_ok());
        assert_eq!(check_head(&forged, &head).unwrap(), HeadVerdict::Differs);
    }

    #[test]
    fn a_cut_changed_or_missing_log_is_found() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("audit");
        let head = logged(&dir);
        let path = log_path(&dir, &id());
        let text = std::fs::read_to_string(&path).unwrap();
        let two: String = text
            .lines()
            .take(2)
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(&path, two).unwrap();
        assert_eq!(check_head(&dir, &head).unwrap(), HeadVerdict::Differs);
        std::fs::write(&path, text.replace("resumed", "resumeD")).unwrap();
        assert!(matches!(
            check_head(&dir, &head).unwrap(),
            HeadVerdict::Broken(_)
        ));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check_head(&dir, &head).unwrap(), HeadVerdict::Missing);
        // Lines that were appended later leave the signed ones as they are.
        std::fs::write(&path, format!("{text}more")).unwrap();
        assert_eq!(check_head(&dir, &head).unwrap(), HeadVerdict::Matches);
    }
}
