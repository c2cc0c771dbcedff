//! Rules of the network that change while a cage runs.

use crate::{HostRule, HttpRule, NetworkVerdict, Traffic};
use serde::{Deserialize, Serialize};
use std::fmt;

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
    /// Which requests of those hosts; they get no others. `None` is all that goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<HttpRule>,
    /// How many connections, or requests where it is about those, it allows; `None` is any
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Who added it: `operator`, or what it belongs to.
    pub origin: String,
}

impl LiveRule {
    /// Whether it is about all that goes to its hosts, not only about some requests.
    pub fn is_whole(&self) -> bool {
        self.requests.is_none()
    }

    /// As it is written.
    pub fn written(&self) -> String {
        match &self.requests {
            Some(requests) => requests.to_string(),
            None => self.rule.to_string(),
        }
    }
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

/// Bounds on what goes through the egress proxy; `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkLimits {
    /// Connections at once.
    pub connections: Option<u64>,
    /// Requests a second: those of HTTP that the proxy sees, and connections that it does not
    /// look into.
    pub requests_per_second: Option<u64>,
    /// Bytes that go out to one host.
    pub bytes_out_per_host: Option<u64>,
    /// Bytes that go out at all.
    pub bytes_out: Option<u64>,
    /// Hosts that were not reached before, in one minute.
    pub new_hosts_per_minute: Option<u64>,
    /// Bytes in the body of one request, where the proxy sees it.
    pub body: Option<u64>,
}

impl NetworkLimits {
    /// Whether anything is summed up over all connections of a cage.
    pub fn count_together(&self) -> bool {
        let sums = [
            self.connections,
            self.requests_per_second,
            self.bytes_out_per_host,
            self.bytes_out,
            self.new_hosts_per_minute,
        ];
        sums.iter().any(Option::is_some)
    }
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

/// A request that the proxy saw.
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

/// A port of the cage's that is reached at a port of the host's loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    /// The port of the host's `127.0.0.1`; 0 is any that is free.
    pub outer: u16,
    /// The port inside.
    pub inner: u16,
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.outer, self.inner)
    }
}

/// Text that is no published port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidPublish(pub String);

impl fmt::Display for InvalidPublish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a published port: write OUTER:INNER, such as 8080:3000, or one number for both",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for InvalidPublish {}

impl std::str::FromStr for Publish {
    type Err = InvalidPublish;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || InvalidPublish(text.to_owned());
        let (outer, inner) = text.split_once(':').unwrap_or((text, text));
        let port = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|_| plain)
        };
        let outer = port(outer).ok_or_else(wrong)?;
        let inner = port(inner).filter(|port| *port > 0).ok_or_else(wrong)?;
        Ok(Publish { outer, inner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ports_are_read() {
        let read = |text: &str| text.parse::<Publish>().ok().map(|p| (p.outer, p.inner));
        assert_eq!(read("8080:3000"), Some((8080, 3000)));
        assert_eq!(read("3000"), Some((3000, 3000)));
        assert_eq!(read("0:80"), Some((0, 80)));
        for wrong in [
            "",
            "0",
            "80:",
            ":80",
            "80:0",
            "+80:80",
            "0.0.0.0:80:80",
            "70000",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
