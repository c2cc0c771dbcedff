//! Names what would allow a denied connection, by its reason.

use crate::named_hosts::NamedHosts;
use ironcage_model::{
    HOST_NAME, HostName, HostRule, NetworkReason, NetworkVerdict, Printable, Protocol, Reason,
    Traffic,
};
use ironcage_policy::{allowed, bundles};
use std::fmt;

/// The flag or rule that would allow a denied connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// A rule over hosts; whether it names an address that a name leads to.
    Host {
        rule: String,
        itself: bool,
    },
    /// A rule over a name, and one over the address that it is known to lead to, which a name alone
    /// does not allow.
    Led {
        rule: String,
        address: String,
    },
    /// A bundle that has the host, and a rule for the host alone.
    Bundle {
        name: &'static str,
        rule: String,
    },
    /// A rule over requests.
    Request(String),
    Other(String),
}

impl Remedy {
    /// The argument of `ironcage net allow` that does the same in a running cage.
    pub(crate) fn live(&self) -> Option<String> {
        match self {
            Remedy::Host { rule, .. } | Remedy::Led { rule, .. } | Remedy::Bundle { rule, .. } => {
                Some(rule.clone())
            }
            Remedy::Request(rule) => Some(format!("--http {rule}")),
            Remedy::Other(_) => None,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Host {
                rule,
                itself: false,
            } => write!(f, "--allow-host {rule}"),
            Remedy::Host { rule, itself: true } => {
                write!(
                    f,
                    "--allow-host {rule} (the address that the name leads to)"
                )
            }
            Remedy::Led { rule, address } => {
                write!(f, "--allow-host {rule} --allow-host {address}")
            }
            Remedy::Bundle { name, .. } => write!(f, "--allow-bundle {name}"),
            Remedy::Request(rule) => write!(f, "--http-allow {rule}"),
            Remedy::Other(text) => f.write_str(text),
        }
    }
}

/// The bundle that has a host, and this port of it where one is known: by the hosts that it names, or
/// by what their names tell.
fn bundle_of(host: &str, port: Option<u16>) -> Option<&'static str> {
    let name = HostName::from_ascii(host.as_bytes()).ok()?;
    let names = |rule: &HostRule| match port {
        Some(port) => rule.names(&name, port),
        None => rule.knows(&name),
    };
    let mut known = bundles::ENTRIES.iter();
    known
        .find(|bundle| {
            let mut hosts = bundle.hosts.iter();
            hosts.any(|host| allowed(host).is_ok_and(|rule| names(&rule)))
                || (host.split('.')).any(|label| bundle.labels.contains(&label))
        })
        .map(|bundle| bundle.name)
}

/// The flag or setting that would allow denied connections.
pub(crate) fn remedy(traffic: &Traffic, named: &NamedHosts) -> Option<Remedy> {
    let reason = match &traffic.reason {
        Some(Reason::Network(reason)) => Some(reason),
        _ => None,
    };
    if traffic.host.starts_with('(') {
        return None;
    }
    if let Some(other) = reason.and_then(|reason| other_than_a_rule(traffic, reason)) {
        return Some(Remedy::Other(other));
    }
    // What was allowed and failed needs no rule.
    if traffic.verdict == NetworkVerdict::Allowed {
        return None;
    }
    if let Some(rule) = &traffic.rule {
        let rule = Printable::new(rule);
        let text = format!("remove the deny rule {rule}");
        return Some(Remedy::Other(text));
    }
    if let Some(NetworkReason::NameLeadsTo { address, .. }) = reason {
        let rule = with_port(address, traffic.port);
        return Some(Remedy::Host { rule, itself: true });
    }
    // The upstream proxy of this host: no rule lifts that.
    if matches!(reason, Some(NetworkReason::UpstreamItself)) {
        return None;
    }
    if traffic.host == HOST_NAME || reason == Some(&NetworkReason::LoopbackPortNotAllowed) {
        let text = format!("--allow-host-port {}", traffic.port);
        return Some(Remedy::Other(text));
    }
    let port = match traffic.protocol {
        Protocol::Dns => named.port_of(&traffic.host),
        _ => Some(traffic.port),
    };
    if reason == Some(&NetworkReason::HostNotAllowed)
        && let Some(name) = bundle_of(&traffic.host, port)
    {
        let rule = rule(&traffic.host, port);
        return Some(Remedy::Bundle { name, rule });
    }
    match (traffic.protocol, reason) {
        (_, Some(NetworkReason::RequestNotAllowed { .. })) => request(traffic),
        (Protocol::Dns, _) => Some(reached(&traffic.host, port, named)),
        (
            Protocol::Tcp,
            Some(
                NetworkReason::HostNotAllowed
                | NetworkReason::PortNotAllowed
                | NetworkReason::AddressNotAllowed
                | NetworkReason::AddressSpecial { .. },
            ),
        ) => Some(reached(&traffic.host, port, named)),
        _ => None,
    }
}

/// Rules by which a host is reached.
fn reached(host: &str, port: Option<u16>, named: &NamedHosts) -> Remedy {
    let only = rule(host, port);
    match named.leads_to(host) {
        Some(address) => Remedy::Led {
            rule: only,
            address: rule(&address.to_string(), port),
        },
        None => Remedy::Host {
            rule: only,
            itself: false,
        },
    }
}

/// The rule for a host, at the web's ports if no other is known.
fn rule(host: &str, port: Option<u16>) -> String {
    match port {
        Some(port) => with_port(host, port),
        None if host.contains(':') => format!("'[{}]'", Printable::new(host)),
        None => Printable::new(host).to_string(),
    }
}

fn with_port(host: &str, port: u16) -> String {
    let shown = Printable::new(host);
    match host.contains(':') {
        true => format!("'[{shown}]:{port}'"),
        false => format!("{shown}:{port}"),
    }
}

fn request(traffic: &Traffic) -> Option<Remedy> {
    let (method, path) = traffic.request.as_ref()?.split_once(' ')?;
    let port = match (traffic.protocol, traffic.port) {
        (Protocol::Https, 443) | (Protocol::Http, 80) => String::new(),
        (_, port) => format!(":{port}"),
    };
    let (method, path) = (Printable::new(method), Printable::new(path));
    let host = Printable::new(&traffic.host);
    Some(Remedy::Request(format!("'{method} {host}{port}{path}'")))
}

/// Remedies other than a host rule.
fn other_than_a_rule(traffic: &Traffic, reason: &NetworkReason) -> Option<String> {
    let host = Printable::new(&traffic.host);
    Some(match reason {
        NetworkReason::LimitReached { limit, .. } => {
            let limit = Printable::new(limit);
            format!("a larger --network-limit {limit}=...")
        }
        NetworkReason::NameNotFound => {
            format!("a name that the host's DNS resolves, or --resolve {host}=ADDRESS")
        }
        NetworkReason::NoResolver => "a DNS resolver of the host that answers".into(),
        NetworkReason::UpstreamCredentials => {
            "the proxy's user and password in HTTPS_PROXY or HTTP_PROXY on the host, or credentials in the policy's [network.upstream]".into()
        }
        NetworkReason::UpstreamUnreachable { .. } => {
            "an upstream proxy that answers, or --upstream-proxy off".into()
        }
        NetworkReason::UpstreamRefused { .. } => {
            format!("a proxy that allows {host}, or {host} in NO_PROXY if it is reached without one")
        }
        NetworkReason::TlsUnknownIssuer { .. } => {
            "SSL_CERT_FILE=FILE in your environment, or authorities = [\"FILE\"] in the policy's [network], with the server's certificate authority".into()
        }
        NetworkReason::AddressShared { name } => {
            let name = Printable::new(name);
            format!("connect to {name}, which has its own rules")
        }
        NetworkReason::AwsHandsOutCredentials { name } => {
            let name = Printable::new(name);
            format!("credentials = [\"{name}\"] in the policy's [network.aws]")
        }
        NetworkReason::SecretTlsOnly { .. } => format!(
            "https://{host} instead of http:// in the program's settings; without TLS a secret is sent only to a loopback port of the host (http://{HOST_NAME}:PORT)"
        ),
        NetworkReason::SecretWrongPlace { secret, place } => {
            let (secret, place) = (Printable::new(secret), Printable::new(place));
            format!("in = [\"{place}\"] in the policy's [network.secrets.{secret}]")
        }
        NetworkReason::SecretWrongHost { secret } => {
            let secret = Printable::new(secret);
            let host = match (traffic.host == HOST_NAME, traffic.port) {
                (true, port) => format!("http://{host}:{port}"),
                (false, 80 | 443) => host.to_string(),
                (false, port) => format!("{host}:{port}"),
            };
            format!("--secret {secret}@{host}, if this host should receive it")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str, port: u16, protocol: Protocol, reason: NetworkReason) -> Traffic {
        Traffic {
            verdict: NetworkVerdict::Denied,
            host: host.into(),
            port,
            protocol,
            address: None,
            rule: None,
            reason: Some(reason.into()),
            request: None,
            status: None,
            connections: 2,
            sent: 0,
            received: 0,
        }
    }

    fn told(traffic: &Traffic) -> String {
        remedy(traffic, &NamedHosts::default()).unwrap().to_string()
    }

    fn live(traffic: &Traffic) -> Option<String> {
        remedy(traffic, &NamedHosts::default()).unwrap().live()
    }

    #[test]
    fn what_would_allow_it_is_a_flag_that_can_be_typed() {
        let not_allowed = || NetworkReason::HostNotAllowed;
        let request = NetworkReason::RequestNotAllowed {
            request: "PUT /x".into(),
        };
        let mut request = denied("a.com", 443, Protocol::Https, request);
        request.request = Some("PUT /x".into());
        assert_eq!(told(&request), "--http-allow 'PUT a.com/x'");
        assert_eq!(live(&request).unwrap(), "--http 'PUT a.com/x'");
        let name = denied("a.com", 53, Protocol::Dns, not_allowed());
        assert_eq!(told(&name), "--allow-host a.com");
        let port = denied("a.com", 22, Protocol::Tcp, NetworkReason::PortNotAllowed);
        assert_eq!(told(&port), "--allow-host a.com:22");
        assert_eq!(live(&port).unwrap(), "a.com:22");
        let six = NetworkReason::AddressNotAllowed;
        let six = denied("2001:db8::1", 22, Protocol::Tcp, six);
        assert_eq!(told(&six), "--allow-host '[2001:db8::1]:22'");
        let own = NetworkReason::LoopbackPortNotAllowed;
        let own = denied(HOST_NAME, 5432, Protocol::Tcp, own);
        assert_eq!(told(&own), "--allow-host-port 5432");
        assert!(live(&own).is_none());
        let proxy = NetworkReason::UpstreamItself;
        let proxy = denied(HOST_NAME, 3128, Protocol::Tcp, proxy);
        assert!(
            remedy(&proxy, &NamedHosts::default()).is_none(),
            "its port is allowed already"
        );
        let led = NetworkReason::NameLeadsTo {
            address: "10.0.0.1".into(),
            kind: "private".into(),
        };
        let led = denied("a.com", 80, Protocol::Http, led);
        assert!(told(&led).starts_with("--allow-host 10.0.0.1:80 ("));
        assert_eq!(live(&led).unwrap(), "10.0.0.1:80");
        let tls = NetworkReason::TlsOtherName {
            name: "b.com".into(),
        };
        let other = denied("a.com", 443, Protocol::Tls, tls);
        assert!(remedy(&other, &NamedHosts::default()).is_none());
    }

    #[test]
    fn a_lookup_is_told_with_the_port_of_the_command_and_where_the_name_leads() {
        let lookup = denied("git.test", 53, Protocol::Dns, NetworkReason::HostNotAllowed);
        let port = denied("git.test", 22, Protocol::Tcp, NetworkReason::PortNotAllowed);
        let github = NetworkReason::HostNotAllowed;
        let github = denied("github.com", 53, Protocol::Dns, github);
        let both = "--allow-host git.test:22 --allow-host 10.0.0.9:22";
        for (traffic, rules, names, flags) in [
            (
                &lookup,
                &["git.test:22"][..],
                "",
                "--allow-host git.test:22",
            ),
            (&lookup, &["git.test:22"], "10.0.0.9 git.test", both),
            (&lookup, &["other.test:22"], "", "--allow-host git.test"),
            (
                &lookup,
                &[],
                "10.0.0.9 git.test",
                "--allow-host git.test --allow-host 10.0.0.9",
            ),
            (&port, &[], "10.0.0.9 git.test", both),
            (&github, &[], "", "--allow-bundle github"),
            (&github, &["github.com:22"], "", "--allow-bundle github"),
            (
                &github,
                &["github.com:9418"],
                "",
                "--allow-host github.com:9418",
            ),
        ] {
            let named = NamedHosts::made_of(rules, names);
            assert_eq!(remedy(traffic, &named).unwrap().to_string(), flags);
        }
    }

    #[test]
    fn what_no_rule_helps_with_has_a_remedy_of_its_own() {
        let secret = || "K".to_owned();
        for (reason, helps) in [
            (NetworkReason::NameNotFound, "--resolve a.com=ADDRESS"),
            (NetworkReason::UpstreamCredentials, "[network.upstream]"),
            (
                NetworkReason::UpstreamRefused { status: 403 },
                "a.com in NO_PROXY",
            ),
            (
                NetworkReason::UpstreamUnreachable { error: "x".into() },
                "--upstream-proxy off",
            ),
            (
                NetworkReason::LimitReached {
                    amount: "1M in a body".into(),
                    limit: "body".into(),
                },
                "--network-limit body=",
            ),
            (
                NetworkReason::TlsUnknownIssuer { error: "x".into() },
                "SSL_CERT_FILE",
            ),
            (
                NetworkReason::SecretWrongPlace {
                    secret: secret(),
                    place: "header:user-agent".into(),
                },
                "in = [\"header:user-agent\"]",
            ),
            (
                NetworkReason::SecretWrongHost { secret: secret() },
                "--secret K@a.com",
            ),
            (
                NetworkReason::SecretTlsOnly { secret: secret() },
                "https://a.com instead",
            ),
            (
                NetworkReason::AwsHandsOutCredentials { name: "sts".into() },
                "credentials = [\"sts\"]",
            ),
            (
                NetworkReason::AddressShared {
                    name: "b.com".into(),
                },
                "connect to b.com",
            ),
        ] {
            let told = told(&denied("a.com", 443, Protocol::Https, reason));
            assert!(told.contains(helps), "{told}");
        }
    }
}
