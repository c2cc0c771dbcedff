//! Notes about network rules with no effect, or less than they seem to have: most likely mistakes.

use crate::network::Network;
use ironcage_model::{Destination, HOST_NAME, HostName, HostRule, Ports};

/// What is to be said of a network at the start.
pub(crate) fn of(network: &Network) -> Vec<String> {
    let mut notes = Vec::new();
    for item in &network.allow {
        notes.extend(own_loopback(network, &item.what.rule, &item.origin));
    }
    for item in &network.secrets {
        let secret = &item.what.rule;
        for host in &secret.hosts {
            notes.extend(without_way(network, &secret.name, host));
        }
    }
    notes.extend(by_name_only(network));
    notes
}

/// Notes the secrets, logins and keys of a cage that has no network and so no egress proxy.
pub(crate) fn without_network(asked: &ironcage_policy::Network) -> Option<String> {
    let secrets = asked.secrets.iter().map(|secret| &secret.value);
    let secrets = secrets.map(|secret| format!("the secret {}", secret.name));
    let logins = asked.logins.iter();
    let logins = logins.map(|login| format!("the {} login", login.value.name));
    let aws = asked.aws.iter().map(|_| "the AWS keys".to_owned());
    let all: Vec<String> = secrets.chain(logins).chain(aws).collect();
    (!all.is_empty()).then(|| {
        format!(
            "the cage has no network and does not get {}; allow the hosts with --allow-host NAME",
            all.join(", ")
        )
    })
}

/// A rule about the host's loopback, which is the cage's own inside.
fn own_loopback(network: &Network, rule: &HostRule, origin: &str) -> Option<String> {
    let loopback = match &rule.to {
        Destination::Net { address, .. } => {
            // It says where a name may lead, which is something else.
            let named = |other: &HostRule| {
                !matches!(&other.to, Destination::Net { .. } | Destination::Any)
                    && meet(other.ports, rule.ports)
            };
            let allowed = network.allow.iter().map(|item| &item.what.rule);
            let requests = network.http.iter().map(|item| &item.what.rule.host);
            let mut led = network.resolve.iter();
            address.is_loopback()
                && !allowed.chain(requests).any(named)
                && !led.any(|item| item.what.address.is_loopback())
        }
        Destination::Name(name) => name.as_str() == "localhost",
        _ => false,
    };
    let port = match rule.ports {
        Ports::One(port) => port.to_string(),
        Ports::Web | Ports::Any => "PORT".to_owned(),
    };
    loopback.then(|| {
        format!(
            "{origin} {rule}: in a cage, that is its own loopback; use --allow-host-port {port} for the host's"
        )
    })
}

/// A secret for a host that no rule lets be reached.
fn without_way(network: &Network, secret: &str, host: &HostRule) -> Option<String> {
    let (Destination::Name(name) | Destination::NameAndBelow(name)) = &host.to else {
        return None;
    };
    if network.live {
        return None;
    }
    if let (HOST_NAME, Ports::One(port)) = (name.as_str(), host.ports) {
        let mut open = network.host_ports.iter().map(|item| item.what.port);
        return (!open.any(|open| open == port)).then(|| {
            format!(
                "the secret {secret} is for {host}, which no rule allows: --allow-host-port {port} lets the cage reach it"
            )
        });
    }
    let rules = || {
        let allowed = network.allow.iter().map(|item| &item.what.rule);
        let requests = network.http.iter().map(|item| &item.what.rule.host);
        let leasable = network.leasable.iter();
        let all = allowed.chain(requests).chain(leasable);
        all.filter(|rule| rule.knows(name))
    };
    if rules().any(|rule| meet(rule.ports, host.ports)) {
        return None;
    }
    let other = rules().find_map(|rule| match rule.ports {
        Ports::One(port) => Some(port),
        Ports::Web | Ports::Any => None,
    });
    Some(match other {
        Some(port) => format!(
            "the secret {secret} is for ports 80 and 443 of {host}, but the rules allow port {port}; use --secret {secret}@{name}:{port}"
        ),
        None => format!(
            "the secret {secret} is for {host}, which no rule allows; allow it with --allow-host {}",
            written(name, host.ports)
        ),
    })
}

/// Names that are denied, or get some requests only, in a network that is open.
fn by_name_only(network: &Network) -> Option<String> {
    let mut allowed = network.allow.iter().map(|item| &item.what.rule.to);
    let open = allowed.any(|to| matches!(to, Destination::Any));
    let by_name = |rule: &HostRule| !matches!(rule.to, Destination::Net { .. });
    let mut denied = network.deny.iter().map(|item| &item.what.rule);
    let named = denied.any(by_name) || !network.http.is_empty();
    (open && named).then(|| {
        "in an open network, a rule for a name applies to the addresses that the name has at that time, not to other names of the same server"
            .to_owned()
    })
}

fn meet(one: Ports, other: Ports) -> bool {
    match (one, other) {
        (Ports::Any, _) | (_, Ports::Any) => true,
        (Ports::One(port), ports) | (ports, Ports::One(port)) => ports.contains(port),
        (Ports::Web, Ports::Web) => true,
    }
}

fn written(name: &HostName, ports: Ports) -> String {
    match ports {
        Ports::One(port) => format!("{name}:{port}"),
        Ports::Web | Ports::Any => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{FixedAddress, NetworkRule, PlannedSecret};
    use crate::plan::Item;
    use ironcage_model::{NetworkLimits, SecretRule, SecretSource};

    fn item<T>(what: T) -> Item<T> {
        Item {
            what,
            origin: "--flag".into(),
        }
    }

    fn notes(allow: &[&str], deny: &[&str], secret: &str, resolve: &[&str]) -> Vec<String> {
        let rule = |text: &&str| {
            item(NetworkRule {
                rule: text.parse().unwrap(),
                bundle: None,
            })
        };
        let secret = (!secret.is_empty()).then(|| {
            item(PlannedSecret {
                rule: SecretRule {
                    name: "TOK".into(),
                    from: SecretSource::Env("TOK".into()),
                    hosts: vec![secret.parse().unwrap()],
                    places: Vec::new(),
                    leased: false,
                },
                placeholder: "x".into(),
            })
        });
        let fixed = |text: &&str| {
            item(FixedAddress {
                name: HostName::from_ascii(b"api.test").unwrap(),
                address: text.parse().unwrap(),
            })
        };
        of(&Network {
            allow: allow.iter().map(rule).collect(),
            deny: deny.iter().map(rule).collect(),
            http: Vec::new(),
            models: None,
            secrets: secret.into_iter().collect(),
            aws: None,
            logins: Vec::new(),
            authorities: Vec::new(),
            extra_authorities: Vec::new(),
            host_ports: Vec::new(),
            resolve: resolve.iter().map(fixed).collect(),
            live: false,
            leases_requests: false,
            leasable: Vec::new(),
            sockets: Vec::new(),
            publish: Vec::new(),
            limits: NetworkLimits::default(),
            upstream: None,
            proxy_filter: Vec::new(),
        })
    }

    #[test]
    fn what_has_no_effect_is_said_and_what_has_is_not() {
        let says = |notes: Vec<String>, text: &str| {
            assert!(notes.len() == 1 && notes[0].contains(text), "{notes:?}");
        };
        let own = "--allow-host-port 18080";
        says(notes(&["127.0.0.1:18080"], &[], "", &[]), own);
        says(notes(&["localhost:18080"], &[], "", &[]), own);
        assert!(notes(&["127.0.0.1:18080"], &[], "", &["127.0.0.1"]).is_empty());
        let led = ["api.test:18080", "127.0.0.1:18080"];
        assert!(notes(&led, &[], "", &[]).is_empty());
        let another = ["api.test:443", "127.0.0.1:18080"];
        says(notes(&another, &[], "", &[]), own);
        says(
            notes(&["api.test:18443"], &[], "api.test", &[]),
            "--secret TOK@api.test:18443",
        );
        says(
            notes(&["other.test"], &[], "api.test", &[]),
            "--allow-host api.test",
        );
        assert!(notes(&["api.test:18443"], &[], "api.test:18443", &[]).is_empty());
        says(
            notes(&["api.test"], &[], "host.ironcage:4000", &[]),
            "--allow-host-port 4000",
        );
        assert!(notes(&["**.test"], &[], "api.test", &[]).is_empty());
        says(
            notes(&["every host:*"], &["api.test:*"], "", &[]),
            "open network",
        );
        assert!(notes(&["every host:*"], &["10.0.0.0/8:*"], "", &[]).is_empty());
    }
}
