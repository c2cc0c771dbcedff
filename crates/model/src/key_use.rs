//! Uses of keys that stay outside the cage, in an ssh-agent or a gpg-agent.

use crate::{NetworkVerdict, Printable, Reason};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where the ssh-agent's socket is in a cage that has keys there.
pub const SSH_AGENT_SOCKET: &str = "/.ironcage/ssh-agent";
/// The home of gpg in a cage that has a key in the gpg-agent.
pub const GPG_HOME: &str = "/.ironcage/gnupg";
/// Where gpg finds its agent there.
pub const GPG_AGENT_SOCKET: &str = "/.ironcage/gnupg/S.gpg-agent";
/// Where gpg finds public keys there.
pub const GPG_KEYRING: &str = "/.ironcage/gnupg/pubring.gpg";

/// Who holds a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyAgent {
    /// ssh-agent, or another that speaks its protocol.
    Ssh,
    /// gpg-agent.
    Gpg,
}

impl KeyAgent {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            KeyAgent::Ssh => "ssh",
            KeyAgent::Gpg => "gpg",
        }
    }
}

/// What a signature is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", rename_all = "kebab-case")]
pub enum KeyPurpose {
    /// To log in to a host, which proved its key.
    Login {
        /// The host, with its port where that is not 22.
        host: String,
        /// The user there, as the cage says it.
        user: String,
    },
    /// A commit or tag of git, by an SSH key.
    Git,
    /// Something by an OpenPGP key. The agent sees its hash, and so does Ironcage.
    OpenPgp,
}

impl fmt::Display for KeyPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPurpose::Login { host, user } => {
                let (host, user) = (Printable::new(host), Printable::new(user));
                write!(f, "log in to {host} as {user}")
            }
            KeyPurpose::Git => f.write_str("sign a commit or tag"),
            KeyPurpose::OpenPgp => f.write_str("sign a document"),
        }
    }
}

/// A use of a key, allowed or denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyUse {
    /// Who holds the key.
    pub agent: KeyAgent,
    /// The key, as the policy names it, or its fingerprint; not there where the cage named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What for, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<KeyPurpose>,
    /// Whether it was allowed.
    pub verdict: NetworkVerdict,
    /// Why not, or why nothing was signed although it was allowed.
    #[serde(flatten)]
    pub reason: Option<Reason>,
}

impl fmt::Display for KeyUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_deref().unwrap_or("unknown");
        write!(f, "{} key {}", self.agent.name(), Printable::new(key))?;
        if let Some(purpose) = &self.purpose {
            write!(f, ", {purpose}")?;
        }
        match (self.verdict, &self.reason) {
            (NetworkVerdict::Denied, Some(reason)) => write!(f, ": denied: {reason}"),
            (NetworkVerdict::Denied, None) => f.write_str(": denied"),
            (_, Some(reason)) => write!(f, ": {reason}"),
            (_, None) => Ok(()),
        }
    }
}
