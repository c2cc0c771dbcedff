//! Which policy files of workspaces the user has trusted.
//!
//! A file is trusted by its path and the content of it, of all that it extends and of the rules
//! that it names: a change to any of them, also by an agent in a cage, takes the trust away. The
//! records lie in Ironcage's state directory, which no cage can reach.

use crate::chain::Link;
use ironcage_files::Links;
use ironcage_model::Printable;
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The longest path that the kernel takes.
const LONGEST_PATH: u64 = 4096;

/// What is trusted: a file at its place with its content, and all that it extends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrustDigest(String);

impl fmt::Display for TrustDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TrustDigest {
    /// Of the very texts that were parsed, so that nothing changes between look and use.
    pub(crate) fn of(links: &[Link]) -> TrustDigest {
        let mut hash = Sha256::new();
        hash.update(b"ironcage policy trust 1\0");
        for link in links {
            // Lengths go before, so that no two lists of files give the same bytes.
            for (document, kind) in std::iter::once((&link.document, ""))
                .chain(link.rules.iter().map(|rules| (rules, "rules")))
            {
                hash.update(kind);
                for part in [
                    document.path.as_os_str().as_bytes(),
                    document.text.as_bytes(),
                ] {
                    hash.update((part.len() as u64).to_le_bytes());
                    hash.update(part);
                }
            }
        }
        let digest = hash.finalize();
        let mut text = String::with_capacity(64);
        for byte in digest {
            use fmt::Write as _;
            let _ = write!(text, "{byte:02x}");
        }
        TrustDigest(text)
    }

    fn parse(name: &OsStr) -> Option<TrustDigest> {
        let text = name.to_str()?;
        let hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| TrustDigest(text.to_owned()))
    }
}

/// Why a trust record could not be kept or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", Printable::new(path))]
pub struct TrustError {
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    pub source: std::io::Error,
}

/// A file that is trusted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrustedFile {
    pub path: PathBuf,
    pub digest: TrustDigest,
}

/// The records of trust.
#[derive(Debug, Clone)]
pub struct TrustStore {
    directory: PathBuf,
}

/// Bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

impl TrustStore {
    /// The store in Ironcage's state directory.
    pub fn new(state_dir: &Path) -> TrustStore {
        TrustStore {
            directory: state_dir.join("trust"),
        }
    }

    fn error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TrustError {
        let path = path.to_owned();
        move |source| TrustError {
            operation,
            path,
            source,
        }
    }

    /// Whether this was trusted. A record that others could have written is none.
    pub fn is_trusted(&self, digest: &TrustDigest) -> bool {
        let private = |path: &Path| {
            fs::symlink_metadata(path)
                .ok()
                .filter(|metadata| metadata.mode() & OTHERS_WRITE == 0)
        };
        let directory = private(&self.directory).filter(fs::Metadata::is_dir);
        let record = private(&self.directory.join(&digest.0)).filter(fs::Metadata::is_file);
        match (directory, record) {
            (Some(directory), Some(record)) => directory.uid() == record.uid(),
            _ => false,
        }
    }

    /// Records that a file is trusted. Earlier records of the same file go away.
    ///
    /// # Errors
    /// Where the record cannot be written.
    pub fn record(&self, trusted: &TrustedFile) -> Result<(), TrustError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(Self::error("create", &self.directory))?;
        let record = self.directory.join(&trusted.digest.0);
        let draft = self
            .directory
            .join(format!(".{}.{}", trusted.digest, std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(trusted.path.as_os_str().as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &record)
        };
        write().map_err(|source| {
            // What is left of a failed draft is not a record; removing it is only tidy.
            let _ = fs::remove_file(&draft);
            Self::error("write", &record)(source)
        })?;
        for old in self.list()? {
            if old.path == trusted.path && old.digest != trusted.digest {
                self.remove(&old.digest)?;
            }
        }
        Ok(())
    }

    /// Takes the trust from a file; returns whether it had any.
    ///
    /// # Errors
    /// Where the records cannot be read or removed.
    pub fn revoke(&self, path: &Path) -> Result<bool, TrustError> {
        let mut had = false;
        for trusted in self.list()? {
            if trusted.path == path {
                self.remove(&trusted.digest)?;
                had = true;
            }
        }
        Ok(had)
    }

    fn remove(&self, digest: &TrustDigest) -> Result<(), TrustError> {
        let record = self.directory.join(&digest.0);
        fs::remove_file(&record).map_err(Self::error("remove", &record))
    }

    /// Every trusted file, by path.
    ///
    /// # Errors
    /// Where the records cannot be read.
    pub fn list(&self) -> Result<Vec<TrustedFile>, TrustError> {
        let listing = match fs::read_dir(&self.directory) {
            Ok(listing) => listing,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Self::error("read", &self.directory)(error)),
        };
        let mut all = Vec::new();
        for entry in listing {
            let entry = entry.map_err(Self::error("read", &self.directory))?;
            let Some(digest) = TrustDigest::parse(&entry.file_name()) else {
                continue;
            };
            let bytes = ironcage_files::read(&entry.path(), LONGEST_PATH, Links::Refuse)
                .map_err(|error| Self::error("read", &entry.path())(error.into()))?;
            all.push(TrustedFile {
                path: PathBuf::from(OsStr::from_bytes(&bytes)),
                digest,
            });
        }
        all.sort();
        Ok(all)
    }
}
