//! Rules of the network that change while a cage runs.

use crate::{HostRule, NetworkVerdict, Traffic};
use serde::{Deserialize, Serialize};

/// A rule that was added to a running cage, on top of those of its plan. Denying wins, as
/// everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRule {
    /// Its number in this cage, by which it is taken away.
    pub number: u32,
    /// Whether it allows or denies.
    pub verdict: NetworkVerdict,
    /// Which hosts and ports.
    pub rule: HostRule,
    /// Who added it: `operator`, or what it belongs to.
    pub origin: String,
}

/// What happened to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleChange {
    /// It holds from now on.
    Added,
    /// It holds no more.
    Removed,
}

/// Bounds on what goes through the network door; `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkLimits {
    /// Connections at once.
    pub connections: Option<u64>,
    /// Requests a second: those of HTTP that the door sees, and connections that it does not
    /// look into.
    pub requests_per_second: Option<u64>,
    /// Bytes that go out to one host.
    pub bytes_out_per_host: Option<u64>,
    /// Bytes that go out at all.
    pub bytes_out: Option<u64>,
    /// Hosts that were not reached before, in one minute.
    pub new_hosts_per_minute: Option<u64>,
    /// Bytes in the body of one request, where the door sees it.
    pub body: Option<u64>,
}

/// What happened to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowStep {
    /// It was refused.
    Refused,
    /// It was allowed, and nobody answered.
    Failed,
    /// It was let through.
    Opened,
    /// A request went over it, and was answered.
    Request,
    /// It is over.
    Closed,
}

/// A request that the door saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRequest {
    /// Its method.
    pub method: String,
    /// Its path, without what follows a question mark.
    pub path: String,
    /// The status of the answer.
    pub status: u16,
}

/// One connection as it happens, for whoever watches. Told and forgotten: the record has sums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The connection's number.
    pub number: u64,
    /// What happened.
    pub step: FlowStep,
    /// The port inside from which it came, by which its process may be found.
    pub from: u16,
    /// How many were not told before this one, because the watcher was too slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// The request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<FlowRequest>,
    /// Where to, by which rule, how much.
    #[serde(flatten)]
    pub traffic: Traffic,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
