//! Network denials in one line each, with the flag that would allow them.

use super::remedy::remedy;
use crate::named_hosts::NamedHosts;
use ironcage_model::{Extent, HostName, HostRule, Printable, Reason, Traffic};
use ironcage_plan::Plan;
use std::net::IpAddr;

/// Denials that are told at the end of a run.
const MOST: usize = 8;

/// The line for a denial; `None` where it has no destination that a person could allow.
pub(crate) fn line(traffic: &Traffic, named: &NamedHosts) -> Option<String> {
    let allows = remedy(traffic, named)?;
    let host = Printable::new(&traffic.host);
    let about = match traffic.host.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => " (it is the cage's own, and nothing listens)",
        _ => "",
    };
    let times = match traffic.connections {
        0 | 1 => String::new(),
        times => format!(" {times}x"),
    };
    Some(match &traffic.reason {
        Some(Reason::Network(reason)) if reason.is_failure() => {
            format!("ironcage: network: {host} not reached{times}: {reason}; needs {allows}")
        }
        _ => format!("ironcage: network: {host} refused{times}{about}; to allow: {allows}"),
    })
}

/// Whether the ceiling gives any of these hosts to a command that requests it.
pub(crate) fn in_ceiling(plan: &Plan, denied: &[Traffic]) -> bool {
    let parts = plan.leases.iter().flat_map(|leases| &leases.others);
    let given: Vec<&HostRule> = parts
        .filter(|part| part.what.mark.gives())
        .filter_map(|part| match &part.what.extent {
            Extent::Host(rule) => Some(rule),
            _ => None,
        })
        .collect();
    denied.iter().any(|traffic| {
        let name = HostName::from_ascii(traffic.host.as_bytes());
        name.is_ok_and(|name| given.iter().any(|rule| rule.knows(&name)))
    })
}

/// The lines about denials at the end of a run.
pub(crate) fn summary(denied: &[Traffic], more: u64, named: &NamedHosts, id: &str) -> Vec<String> {
    let mut lines: Vec<String> = denied.iter().filter_map(|one| line(one, named)).collect();
    let left_out = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    if left_out > 0 || more > 0 {
        lines.push(format!(
            "ironcage: network: more hosts were refused; `ironcage net {id}` lists them"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{NetworkReason, NetworkVerdict, Protocol};

    fn denied(host: &str, times: u64) -> Traffic {
        Traffic {
            verdict: NetworkVerdict::Denied,
            host: host.into(),
            port: 53,
            protocol: Protocol::Dns,
            address: None,
            rule: None,
            reason: Some(NetworkReason::HostNotAllowed.into()),
            request: None,
            status: None,
            connections: times,
            sent: 0,
            received: 0,
        }
    }

    #[test]
    fn a_denied_host_is_told_with_the_flag_that_allows_it() {
        assert_eq!(
            line(&denied("a.example", 6), &NamedHosts::default()).unwrap(),
            "ironcage: network: a.example refused 6x; to allow: --allow-host a.example"
        );
        assert_eq!(
            line(&denied("api.github.com", 1), &NamedHosts::default()).unwrap(),
            "ironcage: network: api.github.com refused; to allow: --allow-bundle github"
        );
    }

    #[test]
    fn a_loopback_port_of_the_host_is_told_with_the_flag_for_it() {
        let own = Traffic {
            port: 8000,
            protocol: Protocol::Tcp,
            reason: Some(NetworkReason::LoopbackPortNotAllowed.into()),
            ..denied("127.0.0.1", 1)
        };
        let told = line(&own, &NamedHosts::default()).unwrap();
        assert!(
            told.contains("127.0.0.1 refused (it is the cage's own"),
            "{told}"
        );
        assert!(told.ends_with("to allow: --allow-host-port 8000"), "{told}");
    }

    #[test]
    fn a_host_that_is_allowed_and_not_reached_is_not_told_as_refused() {
        let failed = Traffic {
            verdict: NetworkVerdict::Allowed,
            reason: Some(NetworkReason::NameNotFound.into()),
            ..denied("a.example", 2)
        };
        let told = line(&failed, &NamedHosts::default()).unwrap();
        assert!(told.contains("a.example not reached 2x"), "{told}");
        assert!(told.contains("--resolve a.example=ADDRESS"), "{told}");
    }

    #[test]
    fn many_hosts_are_cut() {
        let many: Vec<Traffic> = (0..20)
            .map(|number| denied(&format!("{number}.example"), 1))
            .collect();
        let lines = summary(&many, 0, &NamedHosts::default(), "x1");
        assert_eq!(lines.len(), MOST + 1);
        assert!(lines.last().unwrap().contains("`ironcage net x1`"));
    }
}
