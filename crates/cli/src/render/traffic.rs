//! Network traffic and rules, as text.

use super::event::times;
use ironcage_model::{
    LiveRule, NetworkLimits, NetworkVerdict, Printable, Protocol, RuleChange, Traffic,
    bytes_as_written,
};

/// For a cage that made no connection, and none was denied.
pub(crate) const NO_NETWORK: &str =
    "A cage has no network by default; --allow-host NAME allows connections to a host.";

/// Connections of one kind in one line.
pub(crate) fn summary(traffic: &Traffic) -> String {
    use std::fmt::Write as _;
    let verdict = match traffic.verdict {
        NetworkVerdict::Allowed => "allowed",
        NetworkVerdict::Denied => "denied ",
    };
    let mut text = format!("{verdict}  {}", destination(traffic));
    // Writing to a string cannot fail.
    let _ = write!(text, ", {}", times(traffic.connections.max(1)));
    if traffic.sent > 0 || traffic.received > 0 {
        let (sent, received) = (traffic.sent, traffic.received);
        let _ = write!(text, ", {sent} bytes out, {received} in");
    }
    if let Some(rule) = &traffic.rule {
        let _ = write!(text, ", rule {}", Printable::new(rule));
    }
    if let Some(reason) = &traffic.reason {
        let _ = write!(text, ": {reason}");
    }
    text
}

/// Protocol, destination, request and address of a connection.
pub(crate) fn destination(traffic: &Traffic) -> String {
    use std::fmt::Write as _;
    let host = Printable::new(&traffic.host);
    let to = match (traffic.protocol, traffic.port) {
        (Protocol::Dns, _) | (_, 0) => host.to_string(),
        (_, port) if traffic.host.contains(':') => format!("[{host}]:{port}"),
        (_, port) => format!("{host}:{port}"),
    };
    let mut text = format!("{:<4}  {to}", traffic.protocol.name());
    // Writing to a string cannot fail.
    if let Some(request) = &traffic.request {
        let _ = write!(text, " {}", Printable::new(request));
    }
    if let Some(status) = traffic.status {
        let _ = write!(text, " {status}");
    }
    if let Some(address) = &traffic.address {
        let _ = write!(text, " ({})", Printable::new(address));
    }
    text
}

pub(crate) fn verb(verdict: NetworkVerdict) -> &'static str {
    match verdict {
        NetworkVerdict::Allowed => "allow",
        NetworkVerdict::Denied => "deny",
    }
}

pub(crate) fn rule_change(change: RuleChange, rule: &LiveRule, closed: u64) -> String {
    let change = match change {
        RuleChange::Added => "added",
        RuleChange::Removed => "removed",
    };
    let (verdict, number) = (verb(rule.verdict), rule.number);
    let origin = Printable::new(&rule.origin);
    let closed = match closed {
        0 => String::new(),
        closed => format!(", {closed} open connections closed"),
    };
    format!(
        "rule {number} {change} by {origin}: {verdict} {}{closed}",
        rule.written()
    )
}

pub(crate) fn limits_text(limits: &NetworkLimits) -> String {
    let number = |limit: Option<u64>, what: &str| limit.map(|limit| format!("{limit} {what}"));
    let size = |limit: Option<u64>, what: &str| {
        limit.map(|limit| format!("{} {what}", bytes_as_written(limit)))
    };
    let parts: Vec<String> = [
        number(limits.connections, "connections"),
        number(limits.requests_per_second, "requests a second"),
        size(limits.bytes_out_per_host, "out to each host"),
        size(limits.bytes_out, "out in total"),
        number(limits.new_hosts_per_minute, "new hosts a minute"),
        size(limits.body, "in a body"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() {
        return "none".into();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Reason;
    use std::collections::BTreeMap;

    #[test]
    fn names_from_the_cage_are_escaped() {
        let text = summary(&Traffic {
            verdict: NetworkVerdict::Denied,
            host: "a\u{1b}[2J".into(),
            port: 80,
            protocol: Protocol::Http,
            address: None,
            rule: None,
            reason: Some(Reason::Recorded {
                code: None,
                data: BTreeMap::new(),
                text: "b\u{7}".into(),
            }),
            request: None,
            status: None,
            connections: 2,
            sent: 0,
            received: 0,
        });
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{7}'),
            "{text}"
        );
    }
}
