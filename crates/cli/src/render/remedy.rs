//! Names what would allow a denied connection, by its reason.

use ironcage_files::Links;
use ironcage_model::{
    HOST_NAME, NetworkReason, NetworkVerdict, Printable, Protocol, Reason, Traffic, special,
};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

/// The flag or rule that would allow a denied connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// A rule over hosts; whether it names an address that a name leads to.
    Host {
        rule: String,
        itself: bool,
    },
    /// A rule over a name, and one over the address that the host's own file of names has for it,
    /// which a name alone does not allow.
    Led {
        rule: String,
        address: String,
    },
    /// A rule over requests.
    Request(String),
    Other(String),
}

impl Remedy {
    /// The argument of `ironcage net allow` that does the same in a running cage.
    pub(crate) fn live(&self) -> Option<String> {
        match self {
            Remedy::Host { rule, .. } | Remedy::Led { rule, .. } => Some(rule.clone()),
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
            Remedy::Request(rule) => write!(f, "--http-allow {rule}"),
            Remedy::Other(text) => f.write_str(text),
        }
    }
}

/// The flag or setting that would allow denied connections.
pub(crate) fn remedy(traffic: &Traffic) -> Option<Remedy> {
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
    let host = |rule| Remedy::Host {
        rule,
        itself: false,
    };
    match (traffic.protocol, reason) {
        (_, Some(NetworkReason::RequestNotAllowed { .. })) => request(traffic),
        (Protocol::Dns, _) => Some(host(Printable::new(&traffic.host).to_string())),
        (
            Protocol::Tcp,
            Some(
                NetworkReason::HostNotAllowed
                | NetworkReason::PortNotAllowed
                | NetworkReason::AddressNotAllowed
                | NetworkReason::AddressSpecial { .. },
            ),
        ) => {
            let led = leads_to(&traffic.host, &hosts_file());
            let rule = with_port(&traffic.host, traffic.port);
            Some(match led {
                Some(address) => Remedy::Led {
                    address: with_port(&address.to_string(), traffic.port),
                    rule,
                },
                None => host(rule),
            })
        }
        _ => None,
    }
}

fn hosts_file() -> String {
    const LONGEST: u64 = 1 << 20;
    let hosts = Path::new("/etc/hosts");
    ironcage_files::read_text(hosts, LONGEST, Links::Follow).unwrap_or_default()
}

/// The special address that a file of names has for a name, if it has one.
fn leads_to(host: &str, names: &str) -> Option<IpAddr> {
    let lines = names.lines();
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default());
    let mut found = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        let named = words.any(|name| name.eq_ignore_ascii_case(host));
        named.then_some(address)
    });
    found.find(|address| special(*address).is_some())
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
        remedy(traffic).unwrap().to_string()
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
        assert_eq!(
            remedy(&request).unwrap().live().unwrap(),
            "--http 'PUT a.com/x'"
        );
        let name = denied("a.com", 53, Protocol::Dns, not_allowed());
        assert_eq!(told(&name), "--allow-host a.com");
        let port = denied("a.com", 22, Protocol::Tcp, NetworkReason::PortNotAllowed);
        assert_eq!(told(&port), "--allow-host a.com:22");
        assert_eq!(remedy(&port).unwrap().live().unwrap(), "a.com:22");
        let six = NetworkReason::AddressNotAllowed;
        let six = denied("2001:db8::1", 22, Protocol::Tcp, six);
        assert_eq!(told(&six), "--allow-host '[2001:db8::1]:22'");
        let own = NetworkReason::LoopbackPortNotAllowed;
        let own = denied(HOST_NAME, 5432, Protocol::Tcp, own);
        assert_eq!(told(&own), "--allow-host-port 5432");
        assert!(remedy(&own).unwrap().live().is_none());
        let proxy = NetworkReason::UpstreamItself;
        let proxy = denied(HOST_NAME, 3128, Protocol::Tcp, proxy);
        assert!(remedy(&proxy).is_none(), "its port is allowed already");
        let led = NetworkReason::NameLeadsTo {
            address: "10.0.0.1".into(),
            kind: "private".into(),
        };
        let led = denied("a.com", 80, Protocol::Http, led);
        assert!(told(&led).starts_with("--allow-host 10.0.0.1:80 ("));
        assert_eq!(remedy(&led).unwrap().live().unwrap(), "10.0.0.1:80");
        let tls = NetworkReason::TlsOtherName {
            name: "b.com".into(),
        };
        assert!(remedy(&denied("a.com", 443, Protocol::Tls, tls)).is_none());
    }

    #[test]
    fn a_name_of_the_hosts_own_file_needs_its_address_too() {
        let names = "127.0.0.1 localhost\n10.0.0.9 git.test Box # work\n93.184.216.34 far.test\n";
        let led = |name| leads_to(name, names).map(|address| address.to_string());
        assert_eq!(led("git.test").as_deref(), Some("10.0.0.9"));
        assert_eq!(led("box").as_deref(), Some("10.0.0.9"));
        assert_eq!(led("far.test"), None, "the name alone is enough");
        assert_eq!(led("work"), None);
        let remedy = Remedy::Led {
            rule: "git.test:22".into(),
            address: "10.0.0.9:22".into(),
        };
        assert_eq!(
            remedy.to_string(),
            "--allow-host git.test:22 --allow-host 10.0.0.9:22"
        );
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
