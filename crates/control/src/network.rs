//! Requests about a running cage's network. Plain types.

use ironcage_model::{HostRule, HttpRule, LiveRule, NetworkLimits, NetworkVerdict, Publish};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;

/// What a client asks about the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkRequest {
    /// What holds. Answered by [`crate::Reply::NetworkRules`].
    Rules,
    /// Adds a rule. Answered by [`crate::Reply::NetworkChanged`] once it holds.
    Add {
        /// Whether it allows or denies.
        verdict: NetworkVerdict,
        /// Which hosts and ports.
        rule: HostRule,
        /// Which requests of those hosts, where it allows some only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requests: Option<HttpRule>,
    },
    /// Takes rules away that were added before. Answered as above.
    Remove {
        /// Their numbers.
        numbers: Vec<u32>,
    },
    /// Takes away every rule that an operator added. Answered as above.
    Reset,
    /// Sets the limits. Answered as above.
    Limits(NetworkLimits),
    /// Publishes a port at the listening socket beside this message. Answered as above.
    Publish(Publish),
    /// Ends that. Answered as above.
    Unpublish {
        /// The host's port.
        outer: u16,
    },
    /// Tells connections as they happen to the socket beside this message. Answered by
    /// [`crate::Reply::Watching`].
    Watch,
}

/// What holds for the network of a running cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRules {
    /// Rules of the plan: what goes out.
    pub allow: Vec<HostRule>,
    /// Rules of the plan: requests that go out, to hosts that get no others.
    pub http: Vec<HttpRule>,
    /// Rules of the plan: what does not.
    pub deny: Vec<HostRule>,
    /// Ports of the host's own loopback.
    pub host_ports: Vec<u16>,
    /// Ports that rules can be about; `None` where that is every one.
    pub ports: Option<Vec<u16>>,
    /// Rules that were added.
    pub live: Vec<LiveRule>,
    /// Ports inside that are reached at the host's loopback.
    pub published: Vec<Publish>,
    /// Bounds on what goes out.
    pub limits: NetworkLimits,
}

/// Listens on the host's loopback for a port inside, at any that is free where none is named.
pub fn listen_on_loopback(wanted: Publish) -> std::io::Result<(Publish, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.outer))?;
    let outer = listener.local_addr()?.port();
    let publish = Publish { outer, ..wanted };
    Ok((publish, listener.into()))
}
