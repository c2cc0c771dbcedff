//! Rules of a cage's network: those of its plan, and which can be added while it runs.

use ironcage_control::NetworkRules;
use ironcage_model::{HostRule, HttpRule, NetworkReason, NetworkVerdict, Ports};

/// A rule that is to be added.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewRule {
    /// Whether it allows or denies.
    pub(crate) verdict: NetworkVerdict,
    /// Which hosts and ports.
    pub(crate) rule: HostRule,
    /// Which requests of those hosts, where it allows some only.
    pub(crate) requests: Option<HttpRule>,
    /// How many connections or requests, where that is counted.
    pub(crate) uses: Option<u32>,
}

/// What the plan says of the network.
#[derive(Debug)]
pub(super) struct PlannedNetwork {
    /// Its rules, without those that were added.
    pub(super) rules: NetworkRules,
    pub(super) opens_tls: bool,
}

impl PlannedNetwork {
    pub(super) fn of(network: &ironcage_plan::Network) -> Self {
        let rules = |items: &[ironcage_plan::Item<ironcage_plan::NetworkRule>]| {
            items.iter().map(|item| item.what.rule.clone()).collect()
        };
        PlannedNetwork {
            rules: NetworkRules {
                allow: rules(&network.allow),
                http: (network.http.iter())
                    .map(|item| item.what.rule.clone())
                    .collect(),
                deny: rules(&network.deny),
                host_ports: network.host_ports.iter().map(|p| p.what.port).collect(),
                ports: network.ports(),
                live: Vec::new(),
                published: Vec::new(),
                limits: network.limits,
            },
            opens_tls: network.opens_tls(),
        }
    }
}

/// Whether the egress proxy can hold a host to requests at all.
pub(super) fn can_be_held(
    verdict: NetworkVerdict,
    rule: &HostRule,
    requests: &HttpRule,
    opens_tls: bool,
) -> Result<(), NetworkReason> {
    if verdict != NetworkVerdict::Allowed || requests.host != *rule {
        return Err(NetworkReason::RequestRulesOnlyAllow);
    }
    if rule.ports == Ports::One(80) || opens_tls {
        return Ok(());
    }
    Err(NetworkReason::NoInterception)
}

/// Whether the egress proxy may connect to the ports of a rule at all: it gave up the others for good
/// when it started.
pub(super) fn reachable(rule: &HostRule, ports: Option<Vec<u16>>) -> Result<(), NetworkReason> {
    let Some(ports) = ports else {
        return Ok(());
    };
    let wanted: &[u16] = match &rule.ports {
        Ports::Web => &[80, 443],
        Ports::One(port) => std::slice::from_ref(port),
        Ports::Any => &[],
    };
    let missing: Vec<String> = wanted
        .iter()
        .filter(|port| !ports.contains(port))
        .map(u16::to_string)
        .collect();
    if missing.is_empty() && rule.ports != Ports::Any {
        return Ok(());
    }
    let known: Vec<String> = ports.iter().map(u16::to_string).collect();
    Err(NetworkReason::PortsFixed {
        known: known.join(", "),
        wanted: match rule.ports {
            Ports::Any => "every port".into(),
            _ => missing.join(" and "),
        },
    })
}
