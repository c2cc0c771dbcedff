//! Why a cage did not start.

use ironcage_layers::cgroup::CgroupError;
use ironcage_model::Layer;
use std::io;
use std::time::Duration;

/// Why a cage did not start. Nothing of it is left when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A pipe or socket between supervisor and cage could not be made.
    #[error("cannot make the channels between supervisor and cage")]
    Channel(#[source] io::Error),
    /// No ids for the cage.
    #[error("cannot claim a range of ids in {path}")]
    Ids {
        /// The file that records which ranges are taken.
        path: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The map that makes an owner outside the agent inside could not be made.
    #[error("cannot map user {owner} outside to the agent inside")]
    OwnerMap {
        /// The owner.
        owner: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The cgroup could not be made.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The namespaces could not be made.
    #[error("cannot make the namespaces of the cage")]
    Fork(#[source] io::Error),
    /// A layer could not be applied inside.
    #[error("{action}: {}", io::Error::from_raw_os_error(*errno))]
    Layer {
        /// Which.
        layer: Layer,
        /// What it was doing.
        action: String,
        /// The kernel's answer.
        errno: i32,
    },
    /// The network door could not be had.
    #[error("the network door cannot be opened")]
    Door(#[source] io::Error),
    /// The backend gives no terminal.
    #[error("this isolation has no terminal: {0}")]
    NoTerminal(&'static str),
    /// The backend makes no scopes.
    #[error("this isolation has no scopes: {0}")]
    NoScope(&'static str),
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
