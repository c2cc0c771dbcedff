//! Why an agent outside the cage, or a key that the policy names, cannot be used.

use ironcage_model::KeyAgent;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why an agent cannot be asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KeyAgentError {
    /// Nothing says where the ssh-agent is.
    #[error("there is no ssh-agent: SSH_AUTH_SOCK is not set")]
    NoSocketVariable,
    /// `gpgconf`, which says where the gpg-agent is, does not answer.
    #[error("cannot ask gpg: `gpgconf` does not answer")]
    NoGpgconf,
    /// The gpg-agent has no socket for others than its user.
    #[error("gpg has no restricted socket")]
    NoRestrictedSocket,
    /// The socket does not answer, or something else answers there.
    #[error("cannot reach the {}-agent: {source}", agent.name())]
    Unreachable {
        /// Whose socket it is.
        agent: KeyAgent,
        /// What went wrong between here and the agent.
        source: Arc<io::Error>,
    },
    /// The request for this run has nothing of the agent.
    #[error("there is no {}-agent", .0.name())]
    NotAsked(KeyAgent),
}

impl KeyAgentError {
    /// For what goes wrong between here and the agent.
    pub fn unreachable(agent: KeyAgent) -> impl Fn(io::Error) -> KeyAgentError {
        move |source| KeyAgentError::Unreachable {
            agent,
            source: Arc::new(source),
        }
    }
}

/// Why the file of a public key cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublicKeyError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Arc<io::Error>,
    },
    /// The file holds something else.
    #[error("{} is not a public key", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
    },
    /// The request for this run does not have the file.
    #[error("it was not read")]
    NotRead,
}

/// Why a key of gpg cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GpgKeyError {
    /// No secret key has the name.
    #[error("gpg has no secret key of this name")]
    NotFound,
    /// Several secret keys have the name.
    #[error("gpg has several keys of this name; use a fingerprint")]
    Ambiguous,
    /// No part of the key signs now.
    #[error("the key cannot sign, or has expired")]
    CannotSign,
    /// gpg does not print the public key.
    #[error("gpg does not export its public key")]
    NotExported,
    /// The request for this run does not have the key.
    #[error("gpg was not asked for it")]
    NotAsked,
}
