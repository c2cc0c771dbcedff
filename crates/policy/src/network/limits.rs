//! Limits on traffic through the egress proxy, as text.

use crate::Sourced;
use crate::narrow::Dropped;
use ironcage_model::{NetworkLimits, bytes_as_written};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Which bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkLimitName {
    Connections,
    RequestsPerSecond,
    /// Bytes that go out to one host.
    BytesOutPerHost,
    /// Bytes that go out in total.
    BytesOut,
    /// Hosts that were not reached before.
    NewHostsPerMinute,
    /// Bytes in the body of one request.
    Body,
}

use NetworkLimitName::{
    Body, BytesOut, BytesOutPerHost, Connections, NewHostsPerMinute, RequestsPerSecond,
};

impl NetworkLimitName {
    pub const ALL: [NetworkLimitName; 6] = [
        Connections,
        RequestsPerSecond,
        BytesOutPerHost,
        BytesOut,
        NewHostsPerMinute,
        Body,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Connections => "connections",
            RequestsPerSecond => "requests-per-second",
            BytesOutPerHost => "bytes-out-per-host",
            BytesOut => "bytes-out",
            NewHostsPerMinute => "new-hosts-per-minute",
            Body => "body",
        }
    }

    fn is_size(self) -> bool {
        matches!(self, BytesOutPerHost | BytesOut | Body)
    }

    /// Reads what stands for it: a size such as `64K` or a number.
    pub fn read(self, text: &str) -> Result<NetworkLimit, InvalidNetworkLimit> {
        let value = if self.is_size() {
            size(text)
        } else {
            text.parse().ok().filter(|number| *number > 0)
        };
        let wanted = if self.is_size() {
            "a size such as 64K, 10M or 2G"
        } else {
            "a positive number"
        };
        let value = value.ok_or_else(|| InvalidNetworkLimit {
            text: text.to_owned(),
            remedy: format!("expected {wanted}"),
        })?;
        Ok(NetworkLimit { name: self, value })
    }
}

fn size(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(at);
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

/// One bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NetworkLimit {
    pub name: NetworkLimitName,
    /// A number, or bytes.
    pub value: u64,
}

/// Invalid text of a limit; the message says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid limit `{}`: {remedy}", text.escape_debug())]
pub struct InvalidNetworkLimit {
    pub text: String,
    pub remedy: String,
}

/// `NAME=VALUE`, as the flag has it.
impl FromStr for NetworkLimit {
    type Err = InvalidNetworkLimit;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let known = NetworkLimitName::ALL.into_iter();
        let known = known.clone().find(|known| known.name() == name);
        known
            .ok_or_else(|| InvalidNetworkLimit {
                text: text.to_owned(),
                remedy: format!(
                    "expected NAME=VALUE, where NAME is one of {}",
                    NetworkLimitName::ALL.map(NetworkLimitName::name).join(", ")
                ),
            })?
            .read(value)
    }
}

impl fmt::Display for NetworkLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_size() {
            return f.write_str(&bytes_as_written(self.value));
        }
        write!(f, "{}", self.value)
    }
}

/// Puts later words over earlier ones.
pub(super) fn apply(limits: &mut Vec<Sourced<NetworkLimit>>, fragment: Vec<Sourced<NetworkLimit>>) {
    for limit in fragment {
        limits.retain(|known| known.value.name != limit.value.name);
        limits.push(limit);
    }
}

fn of(limits: &[Sourced<NetworkLimit>], name: NetworkLimitName) -> Option<u64> {
    let mut found = limits.iter().filter(|limit| limit.value.name == name);
    found.next().map(|limit| limit.value.value)
}

/// Whether no bound is wider.
pub(crate) fn is_no_wider(
    inner: &[Sourced<NetworkLimit>],
    outer: &[Sourced<NetworkLimit>],
) -> bool {
    NetworkLimitName::ALL
        .into_iter()
        .all(|name| match (of(inner, name), of(outer, name)) {
            (_, None) => true,
            (Some(inner), Some(outer)) => inner <= outer,
            (None, Some(_)) => false,
        })
}

/// Takes bounds out of an untrusted fragment that are wider than the base's.
pub(super) fn narrow(
    base: &[Sourced<NetworkLimit>],
    fragment: &mut Vec<Sourced<NetworkLimit>>,
    dropped: &mut Dropped,
) {
    fragment.retain(|limit| {
        let wider = of(base, limit.value.name).is_some_and(|held| limit.value.value > held);
        if wider {
            let what = format!("network.limits.{}", limit.value.name.name());
            dropped.note(&what, limit.value, limit);
        }
        !wider
    });
}

/// The bounds by their names.
pub fn network_limits(limits: &[Sourced<NetworkLimit>]) -> NetworkLimits {
    NetworkLimits {
        connections: of(limits, Connections),
        requests_per_second: of(limits, RequestsPerSecond),
        bytes_out_per_host: of(limits, BytesOutPerHost),
        bytes_out: of(limits, BytesOut),
        new_hosts_per_minute: of(limits, NewHostsPerMinute),
        body: of(limits, Body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_mistakes_say_what_to_write() {
        let limit: NetworkLimit = "bytes-out=64K".parse().unwrap();
        assert_eq!((limit.name, limit.value), (BytesOut, 65536));
        let limit: NetworkLimit = "connections=10".parse().unwrap();
        assert_eq!(limit.value, 10);
        for wrong in [
            "connections",
            "connections=0",
            "connections=10K",
            "bytes-out=10",
            "bytes-out=0M",
            "bytes-out=99999999999G",
            "other=1",
        ] {
            let error = wrong.parse::<NetworkLimit>().unwrap_err();
            assert!(error.remedy.starts_with("expected "), "{wrong}");
        }
    }
}
