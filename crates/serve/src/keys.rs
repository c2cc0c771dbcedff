//! API keys: files of their own, so that `ironcage serve key` works while the service runs, and a
//! revoked key is refused at once.

use crate::projects::Quota;
use ironcage_sys::rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// See cages, processes and files.
    Read,
    /// Create and use cages.
    Cages,
    /// Approve requests, grant and revoke leases, apply changes.
    Permissions,
    /// Name directories of the host, images, every profile and policies of one's own.
    Host,
    /// Act on every project, with the other scopes.
    Admin,
}

pub(crate) const SCOPES: [Scope; 5] = [
    Scope::Read,
    Scope::Cages,
    Scope::Permissions,
    Scope::Host,
    Scope::Admin,
];

impl Scope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Cages => "cages",
            Scope::Permissions => "permissions",
            Scope::Host => "host",
            Scope::Admin => "admin",
        }
    }
}

/// The name of a scope that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown scope `{}`; expected {}", .0.escape_debug(), SCOPES.map(Scope::name).join(", "))]
pub(crate) struct UnknownScope(String);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Scope, UnknownScope> {
        let found = SCOPES.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| UnknownScope(text.to_owned()))
    }
}

/// A key as it is kept: without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project: String,
    pub(crate) scopes: BTreeSet<Scope>,
    /// Microseconds since the epoch.
    pub(crate) created: u64,
    /// What it may use, besides what its project may.
    #[serde(default, skip_serializing_if = "Quota::is_unlimited")]
    pub(crate) quota: Quota,
    /// SHA-256 of the secret, in hexadecimal digits.
    secret: String,
    /// When it stops being valid, in microseconds since the epoch, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<u64>,
}

impl Key {
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
            || (scope == Scope::Read && self.scopes.contains(&Scope::Cages))
    }

    fn expired(&self) -> bool {
        self.expires.is_some_and(|end| end <= crate::clock::now())
    }
}

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("cannot use {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path} is not a key of the service")]
    Invalid {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("there is no key `{}`", id.escape_debug())]
    NotFound { id: String },
    #[error("the name of a project has 1 to 64 of the characters a-z, 0-9, - and _")]
    Project,
    #[error("cannot get random bytes")]
    Random(#[source] io::Error),
}

/// The keys of a data directory.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    directory: PathBuf,
    local: PathBuf,
}

/// Digits of a secret: 192 bits.
const SECRET: usize = 24;
pub(crate) const ID: usize = 6;

pub(crate) fn random_hex(bytes: usize) -> io::Result<String> {
    Ok(hex(&random_bytes(bytes)?))
}

pub(crate) fn random_bytes(bytes: usize) -> io::Result<Vec<u8>> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while let Some(rest) = random.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += getrandom(rest, GetRandomFlags::empty())?;
    }
    Ok(random)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares without telling by its time where two texts differ.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let difference = one
        .bytes()
        .zip(other.bytes())
        .fold(0, |difference, (a, b)| difference | (a ^ b));
    one.len() == other.len() && difference == 0
}

impl Keys {
    pub(crate) fn in_data(data: &Path) -> Keys {
        Keys {
            directory: data.join("keys"),
            local: data.join("local.key"),
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    /// Makes a key. Its text is not kept.
    pub(crate) fn create(
        &self,
        name: &str,
        project: &str,
        scopes: BTreeSet<Scope>,
    ) -> Result<(Key, String), KeyError> {
        self.create_with(name, project, scopes, Quota::default(), None)
    }

    /// Makes a key that stops being valid at a time.
    pub(crate) fn create_until(
        &self,
        name: &str,
        project: &str,
        scopes: BTreeSet<Scope>,
        end: u64,
    ) -> Result<(Key, String), KeyError> {
        self.create_with(name, project, scopes, Quota::default(), Some(end))
    }

    /// Makes a key with a quota and an end.
    pub(crate) fn create_with(
        &self,
        name: &str,
        project: &str,
        scopes: BTreeSet<Scope>,
        quota: Quota,
        expires: Option<u64>,
    ) -> Result<(Key, String), KeyError> {
        if !is_project(project) {
            return Err(KeyError::Project);
        }
        let (id, secret) = (
            random_hex(ID).map_err(KeyError::Random)?,
            random_hex(SECRET).map_err(KeyError::Random)?,
        );
        let key = Key {
            id: id.clone(),
            name: name.to_owned(),
            project: project.to_owned(),
            scopes,
            created: crate::clock::now(),
            quota,
            expires,
            secret: hex(&Sha256::digest(secret.as_bytes())),
        };
        let path = self.path(&id);
        let text = serde_json::to_vec_pretty(&key).map_err(|source| KeyError::Invalid {
            path: path.clone(),
            source,
        })?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(file(&self.directory))?;
        write_new(&path, &text)?;
        Ok((key, format!("ick_{id}_{secret}")))
    }

    pub(crate) fn list(&self) -> Result<Vec<Key>, KeyError> {
        let files = self.files()?;
        let keys: Result<Vec<Key>, _> = files.iter().map(|path| read(path)).collect();
        let mut keys = keys?;
        keys.sort_by_key(|key: &Key| key.created);
        Ok(keys)
    }

    /// The files of keys.
    fn files(&self) -> Result<Vec<PathBuf>, KeyError> {
        let found = match fs::read_dir(&self.directory) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(file(&self.directory)(error)),
        };
        let mut files = Vec::new();
        for entry in found {
            let path = entry.map_err(file(&self.directory))?.path();
            let extension = path.extension();
            if extension.is_some_and(|extension| extension == "json") {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// Whether a key that was checked is still valid: neither revoked nor expired.
    pub(crate) fn still_valid(&self, key: &Key) -> Result<bool, KeyError> {
        match read(&self.path(&key.id)) {
            Ok(now) => Ok(now.secret == key.secret && !now.expired()),
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The quota of a key by its id. One that was revoked has none.
    pub(crate) fn quota_of(&self, id: &str) -> Result<Quota, KeyError> {
        if !is_id(id) {
            return Ok(Quota::default());
        }
        match read(&self.path(id)) {
            Ok(key) => Ok(key.quota),
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Quota::default())
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn revoke(&self, id: &str) -> Result<(), KeyError> {
        let missing = || KeyError::NotFound { id: id.to_owned() };
        if !is_id(id) {
            return Err(missing());
        }
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
            other => other.map_err(file(&self.path(id))),
        }
    }

    /// Removes the keys that are not valid any more. A file that cannot be read stays: it says of
    /// itself when somebody sends its key, or lists the keys.
    pub(crate) fn remove_expired(&self) -> Result<(), KeyError> {
        let keys = self.files()?;
        let keys = keys.iter().filter_map(|path| read(path).ok());
        for key in keys.filter(Key::expired) {
            match self.revoke(&key.id) {
                // Somebody else was faster.
                Ok(()) | Err(KeyError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The key that a text is, if it is one. A file that cannot be read is an error: its key may be
    /// as good as ever.
    pub(crate) fn check(&self, text: &str) -> Result<Option<Key>, KeyError> {
        let parts = text
            .strip_prefix("ick_")
            .and_then(|rest| rest.split_once('_'));
        let Some((id, secret)) = parts.filter(|(id, _)| is_id(id)) else {
            return Ok(None);
        };
        match read(&self.path(id)) {
            Ok(key) => {
                let known = same(&key.secret, &hex(&Sha256::digest(secret.as_bytes())));
                Ok(Some(key).filter(|key| known && !key.expired()))
            }
            Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The key with every scope that the user of this machine has, made where there is none.
    pub(crate) fn local(&self) -> Result<String, KeyError> {
        match fs::read_to_string(&self.local) {
            Ok(text) if self.check(text.trim())?.is_some() => return Ok(text.trim().to_owned()),
            Ok(_) => fs::remove_file(&self.local).map_err(file(&self.local))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(file(&self.local)(error)),
        }
        let (_, text) = self.create("local", "default", SCOPES.into_iter().collect())?;
        write_new(&self.local, text.as_bytes())?;
        Ok(text)
    }
}

/// Whether a project can have this name.
pub(crate) fn is_project(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}

pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 2 * ID && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::File { path, source }
}

fn read(path: &Path) -> Result<Key, KeyError> {
    let text = fs::read(path).map_err(file(path))?;
    serde_json::from_slice(&text).map_err(|source| KeyError::Invalid {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file that only its owner reads, whole or not at all.
pub(crate) fn write_new(path: &Path, text: &[u8]) -> Result<(), KeyError> {
    write_file(path, text).map_err(file(path))
}

/// The same, for files that are not of keys.
pub(crate) fn write_file(path: &Path, text: &[u8]) -> io::Result<()> {
    let staged = path.with_extension(format!("{}.part", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&staged)
        .and_then(|mut out| out.write_all(text).and_then(|()| out.sync_all()))
        .and_then(|()| fs::rename(&staged, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_checked_by_its_secret_and_is_gone_once_revoked() {
        let data = tempfile::tempdir().unwrap();
        let keys = Keys::in_data(data.path());
        let (key, text) = keys.create("ci", "team-a", [Scope::Cages].into()).unwrap();
        assert_eq!(keys.check(&text).unwrap(), Some(key.clone()));
        assert!(key.may(Scope::Read) && key.may(Scope::Cages) && !key.may(Scope::Host));
        let mut other = text.clone();
        other.pop();
        assert_eq!(keys.check(&other).unwrap(), None);
        assert_eq!(keys.check(&format!("{other}z")).unwrap(), None);
        assert_eq!(keys.check("ick_../local_x").unwrap(), None);
        let kept = fs::read(keys.path(&key.id)).unwrap();
        fs::write(keys.path(&key.id), b"cut").unwrap();
        assert!(matches!(keys.check(&text), Err(KeyError::Invalid { .. })));
        fs::write(keys.path(&key.id), kept).unwrap();
        assert_eq!(keys.check(&text).unwrap(), Some(key.clone()));
        keys.revoke(&key.id).unwrap();
        assert_eq!(keys.check(&text).unwrap(), None);
        assert!(matches!(
            keys.revoke(&key.id),
            Err(KeyError::NotFound { .. })
        ));
        assert!(matches!(
            keys.revoke("../local"),
            Err(KeyError::NotFound { .. })
        ));
    }

    #[test]
    fn a_key_with_an_end_is_valid_until_then_and_removed_after() {
        let data = tempfile::tempdir().unwrap();
        let keys = Keys::in_data(data.path());
        let make = |end: u64| {
            let made = keys.create_until("k", "team", [Scope::Read].into(), end);
            made.unwrap().1
        };
        let (over, later) = (make(1), make(u64::MAX));
        let (_, endless) = keys.create("k", "team", [Scope::Read].into()).unwrap();
        let valid = |text: &str| keys.check(text).unwrap().is_some();
        assert!(!valid(&over) && valid(&later) && valid(&endless));
        let still = |text: &str| {
            let key = keys.check(text).unwrap().unwrap();
            let before = keys.still_valid(&key).unwrap();
            let expired = Key {
                expires: Some(1),
                ..key.clone()
            };
            let kept = fs::read(keys.path(&key.id)).unwrap();
            write_new(&keys.path(&key.id), &serde_json::to_vec(&expired).unwrap()).unwrap();
            let after = keys.still_valid(&key).unwrap();
            fs::write(keys.path(&key.id), b"cut").unwrap();
            assert!(keys.still_valid(&key).is_err());
            write_new(&keys.path(&key.id), &kept).unwrap();
            (before, after)
        };
        assert_eq!(still(&later), (true, false));
        assert_eq!(keys.list().unwrap().len(), 3);
        keys.remove_expired().unwrap();
        assert_eq!(keys.list().unwrap().len(), 2);
        assert!(valid(&later) && valid(&endless));
    }

    #[test]
    fn the_local_key_stays_until_it_is_revoked() {
        let data = tempfile::tempdir().unwrap();
        let keys = Keys::in_data(data.path());
        let first = keys.local().unwrap();
        assert_eq!(keys.local().unwrap(), first);
        let id = keys.check(&first).unwrap().unwrap().id;
        keys.revoke(&id).unwrap();
        let second = keys.local().unwrap();
        assert_ne!(second, first);
        assert!(keys.check(&second).unwrap().is_some());
    }

    #[test]
    fn projects_have_plain_names() {
        let data = tempfile::tempdir().unwrap();
        let keys = Keys::in_data(data.path());
        for project in ["", "A", "a/b", "..", &"x".repeat(65)] {
            assert!(matches!(
                keys.create("k", project, BTreeSet::new()),
                Err(KeyError::Project)
            ));
        }
    }
}
