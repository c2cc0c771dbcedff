//! The file in which an agent keeps its login, as the user has it outside.

use super::error::LoginError;
use ironcage_model::LoginFormat;
use ironcage_sys::rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fsync, open, openat, renameat, unlinkat,
};
use ironcage_sys::rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zeroize::{Zeroize, Zeroizing};

/// Longest file.
const LONGEST: u64 = 1 << 20;
/// How often and how long another refresher is waited for.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// What the proxy gets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tokens {
    pub(crate) access: String,
    /// The name of the account, where the file has one.
    pub(crate) account: Option<String>,
    /// When the token ends, in seconds since 1970; `None` where it does not say.
    pub(crate) until: Option<u64>,
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.access.zeroize();
    }
}

impl Tokens {
    /// Whether the token holds at some time yet.
    pub(crate) fn hold_beyond(&self, time: SystemTime) -> bool {
        self.until.is_none_or(|until| until > seconds(time))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// What who renews tokens has given.
pub(super) struct Renewed {
    said: Value,
    at: SystemTime,
}

impl Drop for Renewed {
    fn drop(&mut self) {
        wipe(&mut self.said);
    }
}

/// Overwrites every text of a value.
fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(fields) => fields.values_mut().for_each(wipe),
        _ => {}
    }
}

impl Renewed {
    /// Reads an answer; `None` where it holds no token.
    pub(super) fn read(body: &[u8]) -> Option<Renewed> {
        let renewed = Renewed {
            said: serde_json::from_slice(body).ok()?,
            at: SystemTime::now(),
        };
        let token = renewed.text("access_token")?;
        is_plain(token).then_some(renewed)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.said.get(name)?.as_str()
    }
}

/// A token is text that can stand in a field of a request.
fn is_plain(text: &str) -> bool {
    (8..=16 * 1024).contains(&text.len()) && text.bytes().all(|b| (0x21..0x7f).contains(&b))
}

pub(super) struct TokenFile {
    directory: OwnedFd,
    name: OsString,
    format: LoginFormat,
}

impl TokenFile {
    /// Where the file really lies: a link stays a link to what is renewed.
    pub(super) fn open(path: &Path, format: LoginFormat) -> io::Result<TokenFile> {
        let real = path.canonicalize()?;
        let none = || io::Error::from(io::ErrorKind::InvalidInput);
        let directory = real.parent().ok_or_else(none)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(TokenFile {
            directory: open(directory, flags, Mode::empty())?,
            name: real.file_name().ok_or_else(none)?.to_owned(),
            format,
        })
    }

    /// The directory in which it lies.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Until what this returns goes, no other refresher renews this login.
    pub(super) fn lock(&self) -> Result<OwnedFd, LoginError> {
        let wrong = |error: Errno| LoginError::NotLocked {
            error: error.to_string(),
        };
        // A description of its own, so that closing it gives the lock up.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = openat(&self.directory, ".", flags, Mode::empty()).map_err(wrong)?;
        for _ in 0..TRIES {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(error) => return Err(wrong(error)),
            }
        }
        Err(LoginError::LockTimeout)
    }

    fn value(&self) -> Result<Value, LoginError> {
        let wrong = |error: io::Error| LoginError::FileNotRead {
            error: error.to_string(),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.directory, &self.name, flags, Mode::empty());
        let file = File::from(file.map_err(|error| wrong(error.into()))?);
        // A FIFO is empty, a device endless: neither is a login that somebody wrote.
        if !file.metadata().map_err(wrong)?.is_file() {
            return Err(wrong(io::Error::other("expected a regular file")));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        let read = file.take(LONGEST).read_to_end(&mut bytes);
        read.map_err(wrong)?;
        // Not with the error, which may hold a part of it.
        serde_json::from_slice(&bytes).map_err(|_| LoginError::FileNotJson)
    }

    /// The token by which others are renewed, and those for the door.
    pub(super) fn read(&self) -> Result<(Zeroizing<String>, Tokens), LoginError> {
        let mut value = self.value()?;
        let found = self.tokens(&value);
        wipe(&mut value);
        found.ok_or(LoginError::NoLogin)
    }

    fn tokens(&self, value: &Value) -> Option<(Zeroizing<String>, Tokens)> {
        let (login, names) = match self.format {
            LoginFormat::Claude => (value.get("claudeAiOauth")?, ["accessToken", "refreshToken"]),
            LoginFormat::Codex => (value.get("tokens")?, ["access_token", "refresh_token"]),
        };
        let text = |name: &str| login.get(name)?.as_str().filter(|text| is_plain(text));
        let [access, refresh] = names;
        let access = text(access)?;
        let until = match self.format {
            LoginFormat::Claude => login.get("expiresAt").and_then(Value::as_u64),
            LoginFormat::Codex => says_end(access).map(|until| until.saturating_mul(1000)),
        };
        let tokens = Tokens {
            access: access.to_owned(),
            account: match self.format {
                LoginFormat::Claude => None,
                LoginFormat::Codex => text("account_id").map(str::to_owned),
            },
            until: until.map(|until| until / 1000),
        };
        Some((Zeroizing::new(text(refresh)?.to_owned()), tokens))
    }

    /// Puts renewed tokens into the file, all at once; what else is in it stays.
    pub(super) fn store(&self, renewed: &Renewed) -> io::Result<()> {
        let mut value = self.value().map_err(io::Error::other)?;
        let stored = self.put(&mut value, renewed);
        let text = Zeroizing::new(serde_json::to_vec_pretty(&value)?);
        wipe(&mut value);
        stored.ok_or_else(|| io::Error::other(LoginError::NoLogin))?;
        let mut beside = self.name.clone();
        beside.push(format!(".ironcage-{}", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        // One of the same name was left by a process that was killed.
        let _ = unlinkat(&self.directory, &beside, AtFlags::empty());
        let file = openat(&self.directory, &beside, flags | OFlags::CLOEXEC, mode)?;
        let mut file = File::from(file);
        let written = file
            .write_all(&text)
            .and_then(|()| file.sync_all())
            .and_then(|()| {
                Ok(renameat(
                    &self.directory,
                    &beside,
                    &self.directory,
                    &self.name,
                )?)
            });
        if written.is_err() {
            let _ = unlinkat(&self.directory, &beside, AtFlags::empty());
        }
        written?;
        Ok(fsync(&self.directory)?)
    }

    fn put(&self, value: &mut Value, renewed: &Renewed) -> Option<()> {
        let now = seconds(renewed.at);
        let lasts = renewed.said.get("expires_in").and_then(Value::as_u64);
        let (within, names) = match self.format {
            LoginFormat::Claude => (
                "claudeAiOauth",
                &[
                    ("accessToken", "access_token"),
                    ("refreshToken", "refresh_token"),
                ][..],
            ),
            LoginFormat::Codex => (
                "tokens",
                &[
                    ("access_token", "access_token"),
                    ("refresh_token", "refresh_token"),
                    ("id_token", "id_token"),
                ][..],
            ),
        };
        let login = value.get_mut(within)?.as_object_mut()?;
        for (name, said) in names {
            // Where one is not given anew, the old one holds.
            if let Some(text) = renewed.text(said).filter(|text| is_plain(text)) {
                login.insert((*name).to_owned(), text.into());
            }
        }
        match self.format {
            LoginFormat::Claude => {
                // Without a word on how long it holds, it is asked for again in an hour.
                let until = now
                    .saturating_add(lasts.unwrap_or(3600))
                    .saturating_mul(1000);
                login.insert("expiresAt".to_owned(), until.into());
            }
            LoginFormat::Codex => {
                value
                    .as_object_mut()?
                    .insert("last_refresh".to_owned(), written(now).into());
            }
        }
        Some(())
    }
}

/// When a token of the form JWT ends, as it says itself.
fn says_end(token: &str) -> Option<u64> {
    let claims = ironcage_model::base64::decode_either(token.split('.').nth(1)?.as_bytes())?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    claims.get("exp")?.as_u64()
}

/// A time as RFC 3339 has it.
fn written(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since the first of March of a year that 400 divides.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
#[path = "token_file_tests.rs"]
mod tests;
