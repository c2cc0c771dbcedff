//! Why a cage did not start.

use ironcage_layers::cgroup::CgroupError;
use ironcage_model::{Layer, Reason, StartCode, in_full};
use std::io;
use std::time::Duration;

/// Why a cage did not start. Nothing of it is left when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A pipe or socket between supervisor and cage could not be made.
    #[error("cannot create the channels between supervisor and cage")]
    Channel(#[source] io::Error),
    /// No ids for the cage.
    #[error("cannot claim a range of IDs in {path}")]
    Ids {
        /// The file that records which ranges are taken.
        path: &'static str,
        source: io::Error,
    },
    /// The map that makes an owner outside the agent inside could not be made.
    #[error("cannot map user {owner} outside to the agent inside")]
    OwnerMap { owner: u32, source: io::Error },
    /// The cgroup could not be made.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The namespaces could not be made.
    #[error("cannot create the namespaces of the cage")]
    Fork(#[source] io::Error),
    /// A layer could not be applied inside.
    #[error("{action}: {}", io::Error::from_raw_os_error(*errno))]
    Layer {
        layer: Layer,
        action: String,
        errno: i32,
        /// The code of the failed start.
        code: StartCode,
    },
    /// The egress proxy could not be had.
    #[error("cannot start the egress proxy")]
    Proxy(#[source] io::Error),
    /// The backend gives no terminal.
    #[error("this isolation level has no terminal: {0}")]
    NoTerminal(&'static str),
    /// The backend makes no scopes.
    #[error("this isolation level has no scopes: {0}")]
    NoScope(&'static str),
    /// The isolation level prepares no cages.
    #[error("this isolation level has no prepared cages")]
    NoPrepared,
    /// The plan does not go with the prepared cage.
    #[error("cannot adopt the prepared cage")]
    Unfit(#[source] ironcage_plan::Unfit),
    /// PID 1 neither went on nor ended.
    #[error(
        "the first process of the cage did not {awaited} within {} s",
        .within.as_secs()
    )]
    Silent {
        /// What it was to do.
        awaited: &'static str,
        /// How long it was given.
        within: Duration,
    },
    /// PID 1 ended before the command was started, without a word.
    #[error("the first process of the cage ended before the command was started")]
    Died,
}

impl StartError {
    /// The stable code.
    pub fn code(&self) -> StartCode {
        match self {
            StartError::Channel(_) => StartCode::NoPipes,
            StartError::Ids { .. } => StartCode::NoIds,
            StartError::OwnerMap { .. } => StartCode::OwnerMap,
            StartError::Cgroup(_) => StartCode::NoCgroup,
            StartError::Fork(_) => StartCode::NoUserNamespace,
            StartError::Layer { code, .. } => *code,
            StartError::Proxy(source) => {
                let told = source
                    .get_ref()
                    .and_then(|inner| inner.downcast_ref::<Reason>());
                let code = told.and_then(Reason::start_code);
                code.unwrap_or(StartCode::ProxyFailed)
            }
            StartError::NoTerminal(_) => StartCode::NoTerminal,
            StartError::NoScope(_) => StartCode::NoScopes,
            StartError::NoPrepared | StartError::Unfit(_) => StartCode::NotPrepared,
            StartError::Silent { .. } => StartCode::Timeout,
            StartError::Died => StartCode::FirstProcessEnded,
        }
    }

    /// As it is told and recorded.
    pub fn reason(&self) -> Reason {
        Reason::Start {
            code: self.code(),
            text: in_full(self),
        }
    }
}
