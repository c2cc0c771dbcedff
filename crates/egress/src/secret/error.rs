//! Why a secret or a login cannot be had. No variant holds a part of a value.

use super::store::{LONGEST, SHORTEST};
use serde::{Deserialize, Serialize};
use std::io;
use std::process::ExitStatus;

/// Why the value of a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("the variable {0} is not set in your environment")]
    NoVariable(String),
    #[error(transparent)]
    File(#[from] ironcage_files::ReadError),
    #[error("cannot run its command")]
    Command(#[source] io::Error),
    #[error("its command ended with {0}")]
    CommandFailed(ExitStatus),
    #[error("cannot read the keyring: cannot run `secret-tool` (Debian: libsecret-tools)")]
    Keyring(#[source] io::Error),
    #[error(
        "the keyring does not give it (`secret-tool` ended with {status}); \
         `secret-tool store --label={service} service {service} username {user}` puts it there"
    )]
    KeyringFailed {
        status: ExitStatus,
        service: String,
        user: String,
    },
    #[error("it contains spaces or characters that are not ASCII")]
    NotAscii,
    #[error("it has {0} characters; a secret has {SHORTEST} to {LONGEST}")]
    Length(usize),
    #[error(
        "expected the JSON of a credential_process (AccessKeyId, SecretAccessKey, SessionToken)"
    )]
    NotCredentials,
    #[error("one of them cannot be sent in a request header")]
    NotInHeader,
    #[error("the access key ID contains a slash or a comma")]
    AccessKeyId,
}

/// Why the token of a login cannot be had or renewed. It crosses from the token refresher to the
/// proxy, so errors of the system are text in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum LoginError {
    #[error("cannot start its token refresher: {error}")]
    RefresherNotStarted { error: String },
    #[error("its token refresher has ended")]
    RefresherEnded,
    #[error("its token refresher does not answer")]
    RefresherSilent,
    #[error("{path}: {error}; log in with `{login}` outside the cage first")]
    FileNotOpened {
        path: String,
        error: String,
        login: String,
    },
    #[error("cannot lock its directory: {error}")]
    NotLocked { error: String },
    #[error("timed out waiting for another cage that renews it")]
    LockTimeout,
    #[error("cannot read its file: {error}")]
    FileNotRead { error: String },
    #[error("its file is not JSON")]
    FileNotJson,
    #[error("its file contains no login")]
    NoLogin,
    #[error("cannot store the renewed token: {error}")]
    NotStored { error: String },
    #[error("cannot reach {server}: {error}")]
    ServerUnreachable { server: String, error: String },
    #[error("timed out waiting for {server}")]
    ServerTimeout { server: String },
    /// With the word that the server gives for it, where it is one.
    #[error("{server} refused to renew it: status {status}{}", in_brackets(.word.as_deref()))]
    ServerRefused {
        server: String,
        status: u16,
        word: Option<String>,
    },
    #[error("{server} returned no token")]
    ServerNoToken { server: String },
}

fn in_brackets(word: Option<&str>) -> String {
    word.map(|word| format!(" ({word})")).unwrap_or_default()
}
