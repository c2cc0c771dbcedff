//! The extent of a part of a ceiling, and what lies in it.
//!
//! Two questions are asked of it: whether it *covers* what is wanted, wholly, so that it can be
//! given; and whether it *meets* it anywhere, so that giving it would bring along what is kept
//! back. Where containment is not plain, the answer is the strict one: it covers nothing, and it
//! meets everything.

use crate::{
    Destination, HOST_NAME, HostRule, HttpRule, LimitKind, Ports, Publish, Resource, special,
};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a part of a ceiling is about; paths have a part of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "what", rename_all = "kebab-case")]
pub enum Extent {
    /// Connections to hosts.
    Host(HostRule),
    /// Requests of HTTP.
    Http(HttpRule),
    /// A secret, by its name.
    Secret(String),
    /// A Unix socket of the host's, by its path.
    Socket(String),
    /// Ports inside that are reached at the host's loopback.
    Port(PortPattern),
    /// A limit, up to so much.
    Limit {
        /// Which.
        limit: LimitKind,
        /// How much: bytes, thousandths of a processor, processes.
        value: u64,
    },
    /// A group of system calls, for one command.
    Syscalls(String),
    /// A capability, for one command.
    Capability(String),
}

impl Extent {
    /// Whether all of a resource lies in it.
    pub fn covers(&self, wanted: &Resource) -> bool {
        match (self, wanted) {
            (Extent::Host(own), Resource::Host { rule }) => contains(own, rule),
            // Who may be connected to may be sent any request.
            (Extent::Host(own), Resource::Http { rule }) => contains(own, &rule.host),
            (Extent::Http(own), Resource::Http { rule }) => requests_contain(own, rule),
            (Extent::Secret(own), Resource::Secret { name }) => own == name,
            (Extent::Socket(own), Resource::Socket { path }) => own == path,
            (Extent::Port(own), Resource::Port { publish }) => own.covers(*publish),
            (
                Extent::Limit { limit, value },
                Resource::Limit {
                    limit: kind,
                    value: wanted,
                },
            ) => limit == kind && wanted <= value,
            (Extent::Syscalls(own), Resource::Syscalls { group }) => own == group,
            (Extent::Capability(own), Resource::Capability { name }) => own == name,
            _ => false,
        }
    }

    /// Whether giving a resource would give any of it: as much of a limit as it says, or more.
    pub fn meets(&self, wanted: &Resource) -> bool {
        match (self, wanted) {
            (Extent::Host(own), Resource::Host { rule }) => overlap(own, rule),
            (Extent::Host(own), Resource::Http { rule }) => overlap(own, &rule.host),
            (Extent::Http(own), Resource::Host { rule }) => overlap(&own.host, rule),
            (Extent::Http(own), Resource::Http { rule }) => {
                let methods = own.methods.is_empty()
                    || rule.methods.is_empty()
                    || own
                        .methods
                        .iter()
                        .any(|method| rule.methods.contains(method));
                methods && overlap(&own.host, &rule.host) && own.path.overlaps(&rule.path)
            }
            (
                Extent::Limit { limit, value },
                Resource::Limit {
                    limit: kind,
                    value: wanted,
                },
            ) => limit == kind && wanted >= value,
            (Extent::Port(own), Resource::Port { publish }) => own.meets(*publish),
            _ => self.covers(wanted),
        }
    }

    /// Whether it holds nothing that `other` does not.
    pub fn lies_in(&self, other: &Extent) -> bool {
        match (self, other) {
            (Extent::Host(own), Extent::Host(outer)) => contains(outer, own),
            (Extent::Http(own), Extent::Host(outer)) => contains(outer, &own.host),
            (Extent::Http(own), Extent::Http(outer)) => requests_contain(outer, own),
            (Extent::Port(own), Extent::Port(outer)) => {
                let within = |own: Option<u16>, outer: Option<u16>| outer.is_none() || own == outer;
                within(own.outer, outer.outer) && within(own.inner, outer.inner)
            }
            (
                Extent::Limit { limit, value },
                Extent::Limit {
                    limit: kind,
                    value: most,
                },
            ) => limit == kind && value <= most,
            _ => self == other,
        }
    }

    /// Whether a proxy has to be there for it.
    pub const fn needs_proxy(&self) -> bool {
        matches!(
            self,
            Extent::Host(_)
                | Extent::Http(_)
                | Extent::Secret(_)
                | Extent::Socket(_)
                | Extent::Port(_)
        )
    }
}

/// As a policy writes it.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Host(rule) => write!(f, "{rule}"),
            Extent::Http(rule) => write!(f, "{rule}"),
            Extent::Secret(text)
            | Extent::Socket(text)
            | Extent::Syscalls(text)
            | Extent::Capability(text) => write!(f, "{}", crate::Printable::new(text)),
            Extent::Port(pattern) => write!(f, "{pattern}"),
            Extent::Limit { limit, value } => Resource::Limit {
                limit: *limit,
                value: *value,
            }
            .fmt(f),
        }
    }
}

/// Which ports may be published: `*` stands for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortPattern {
    /// Of the host's loopback.
    pub outer: Option<u16>,
    /// Inside.
    pub inner: Option<u16>,
}

impl PortPattern {
    fn covers(self, publish: Publish) -> bool {
        // Any that is free is one that a pattern without a star does not mean.
        self.outer.is_none_or(|outer| outer == publish.outer)
            && self.inner.is_none_or(|inner| inner == publish.inner)
    }

    fn meets(self, publish: Publish) -> bool {
        let free = publish.outer == 0;
        self.outer
            .is_none_or(|outer| free || outer == publish.outer)
            && self.inner.is_none_or(|inner| inner == publish.inner)
    }
}

impl fmt::Display for PortPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (port, before) in [(self.outer, ""), (self.inner, ":")] {
            match port {
                Some(port) => write!(f, "{before}{port}")?,
                None => write!(f, "{before}*")?,
            }
        }
        Ok(())
    }
}

impl Serialize for PortPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text that is no pattern of published ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidPortPattern(pub String);

impl fmt::Display for InvalidPortPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a published port: write OUTER:INNER, such as 8080:3000, with * for any, or * alone",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for InvalidPortPattern {}

impl FromStr for PortPattern {
    type Err = InvalidPortPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || InvalidPortPattern(text.to_owned());
        let (outer, inner) = text.split_once(':').unwrap_or((text, text));
        let port = |text: &str| match text {
            "*" => Ok(None),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = digits.parse::<u16>().ok().filter(|port| *port > 0);
                port.map(Some).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        };
        Ok(PortPattern {
            outer: port(outer)?,
            inner: port(inner)?,
        })
    }
}

fn ports_contain(outer: Ports, inner: Ports) -> bool {
    match (outer, inner) {
        (Ports::Any, _) | (Ports::Web, Ports::Web) => true,
        (outer, Ports::One(port)) => outer.contains(port),
        _ => false,
    }
}

fn ports_overlap(a: Ports, b: Ports) -> bool {
    match (a, b) {
        (Ports::Any, _) | (_, Ports::Any) | (Ports::Web, Ports::Web) => true,
        (Ports::One(port), other) | (other, Ports::One(port)) => other.contains(port),
    }
}

/// Whether a rule is about all that another one is about.
fn contains(outer: &HostRule, inner: &HostRule) -> bool {
    let to = match (&outer.to, &inner.to) {
        // Every host of the internet, which the host itself and special addresses are none of.
        (Destination::Any, Destination::Name(name)) => name.as_str() != HOST_NAME,
        (Destination::Any, Destination::Net { address, prefix }) => {
            *prefix == bits(*address) && special(*address).is_none()
        }
        (Destination::Any, _) => true,
        (Destination::Name(outer), Destination::Name(inner)) => outer == inner,
        (Destination::Below(outer), Destination::Name(inner)) => inner.is_below(outer),
        (Destination::Below(outer), Destination::Below(inner)) => {
            inner == outer || inner.is_below(outer)
        }
        (Destination::Below(outer), Destination::NameAndBelow(inner)) => inner.is_below(outer),
        (
            Destination::NameAndBelow(outer),
            Destination::Name(inner) | Destination::Below(inner) | Destination::NameAndBelow(inner),
        ) => inner == outer || inner.is_below(outer),
        (
            Destination::Net { prefix, .. },
            Destination::Net {
                address,
                prefix: longer,
            },
        ) => longer >= prefix && net_covers(outer, *address),
        _ => false,
    };
    to && ports_contain(outer.ports, inner.ports)
}

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn net_covers(net: &HostRule, address: IpAddr) -> bool {
    let any_port = HostRule {
        to: net.to.clone(),
        ports: Ports::Any,
    };
    any_port.covers(address, 1)
}

/// Whether two rules are about anything in common.
fn overlap(a: &HostRule, b: &HostRule) -> bool {
    use Destination::{Any, Below, Name, NameAndBelow, Net};
    let to = match (&a.to, &b.to) {
        (Any, _) | (_, Any) => true,
        (Name(a), Name(b)) => a == b,
        (Name(name), Below(parent)) | (Below(parent), Name(name)) => name.is_below(parent),
        (Name(name), NameAndBelow(parent)) | (NameAndBelow(parent), Name(name)) => {
            name == parent || name.is_below(parent)
        }
        (Below(a) | NameAndBelow(a), Below(b) | NameAndBelow(b)) => {
            a == b || a.is_below(b) || b.is_below(a)
        }
        (Net { address: x, .. }, Net { address: y, .. }) => net_covers(a, *y) || net_covers(b, *x),
        // Where a name leads is known when it is connected to, and is looked at then.
        _ => false,
    };
    to && ports_overlap(a.ports, b.ports)
}

/// Whether a rule over requests allows all that another one does.
fn requests_contain(outer: &HttpRule, inner: &HttpRule) -> bool {
    let methods = outer.methods.is_empty()
        || !inner.methods.is_empty() && inner.methods.iter().all(|m| outer.methods.contains(m));
    methods && contains(&outer.host, &inner.host) && outer.path.contains(&inner.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> HostRule {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_lie_in_hosts_by_whole_labels_ports_and_prefixes() {
        for (outer, inner, covered) in [
            ("every host:*", "a.com", true),
            ("every host:*", "**.com:*", true),
            ("every host:*", "host.ironcage:5432", false),
            ("every host:*", "8.8.8.8:53", true),
            ("every host:*", "127.0.0.1", false),
            ("every host:*", "169.254.169.254:80", false),
            ("every host:*", "8.0.0.0/8", false),
            ("every host", "a.com:22", false),
            ("a.com", "every host", false),
            ("*.a.com", "x.a.com", true),
            ("*.a.com", "a.com", false),
            ("*.a.com", "**.x.a.com", true),
            ("*.a.com", "**.a.com", false),
            ("**.a.com", "*.a.com:443", true),
            ("**.a.com", "xa.com", false),
            ("a.com:443", "a.com", false),
            ("10.0.0.0/8:*", "10.1.0.0/16", true),
            ("10.1.0.0/16:*", "10.0.0.0/8", false),
            ("10.0.0.0/8", "a.com", false),
            ("host.ironcage:5432", "host.ironcage:5432", true),
        ] {
            let found = contains(&host(outer), &host(inner));
            assert_eq!(found, covered, "{inner} in {outer}");
            // What lies in something meets it.
            assert!(
                !found || overlap(&host(outer), &host(inner)),
                "{inner} in {outer}"
            );
        }
        assert!(overlap(&host("*.a.com"), &host("**.a.com:443")));
        assert!(overlap(&host("a.com:22"), &host("**.com:*")));
        assert!(!overlap(&host("a.com:22"), &host("a.com")));
        assert!(!overlap(&host("a.com"), &host("b.com")));
    }

    #[test]
    fn requests_lie_in_requests_by_method_host_and_path() {
        let rule = |text: &str| text.parse::<HttpRule>().unwrap();
        for (outer, inner, covered, met) in [
            ("a.com/**", "GET a.com/x/**", true, true),
            ("GET a.com/**", "a.com/x", false, true),
            ("GET a.com/**", "POST a.com/x", false, false),
            ("GET,HEAD a.com/r/**", "GET a.com/r/x/y", true, true),
            ("GET a.com/r/*", "GET a.com/r/x/y", false, false),
            ("GET a.com/r/*", "GET a.com/r/**", false, true),
            ("GET a.com/r/*", "GET a.com/r/x", true, true),
            ("GET a.com/r/*", "GET a.com/r/x*", true, true),
            ("GET a.com/r/x*", "GET a.com/r/*", false, true),
            ("GET a.com/r/**", "GET a.com/**", false, true),
            ("GET a.com/r/**", "GET a.com/r", true, true),
            ("GET a.com/r", "GET a.com/r/**", false, true),
            ("GET a.com/r", "GET b.com/r", false, false),
            ("GET a.com/r", "GET a.com/s", false, false),
        ] {
            let own = Extent::Http(rule(outer));
            let wanted = Resource::Http { rule: rule(inner) };
            assert_eq!(own.covers(&wanted), covered, "{inner} in {outer}");
            assert_eq!(own.meets(&wanted), met, "{inner} and {outer}");
        }
        let whole = Extent::Host(host("a.com"));
        let wanted = Resource::Http {
            rule: rule("GET a.com/x"),
        };
        assert!(whole.covers(&wanted) && whole.meets(&wanted));
        let denied = Extent::Http(rule("DELETE a.com/**"));
        assert!(denied.meets(&Resource::Host {
            rule: host("a.com")
        }));
    }

    #[test]
    fn limits_are_covered_up_to_their_value_and_met_from_it() {
        let part = |value| Extent::Limit {
            limit: LimitKind::Memory,
            value,
        };
        let wanted = |value| Resource::Limit {
            limit: LimitKind::Memory,
            value,
        };
        assert!(part(8).covers(&wanted(8)) && !part(8).covers(&wanted(9)));
        assert!(part(8).meets(&wanted(8)) && !part(8).meets(&wanted(7)));
        assert!(!part(8).covers(&Resource::Limit {
            limit: LimitKind::Pids,
            value: 1
        }));
    }

    #[test]
    fn ports_have_stars() {
        let covers = |pattern: &str, publish: &str| {
            let pattern: PortPattern = pattern.parse().unwrap();
            assert_eq!(pattern.to_string().parse::<PortPattern>().unwrap(), pattern);
            pattern.covers(publish.parse().unwrap())
        };
        assert!(covers("*", "8080:3000") && covers("*:3000", "0:3000"));
        assert!(covers("8080:3000", "8080:3000"));
        assert!(!covers("8080:3000", "0:3000") && !covers("*:3000", "1:3001"));
        for wrong in ["", "0", "a:1", "1:", "70000", "1:2:3", "**"] {
            assert!(wrong.parse::<PortPattern>().is_err(), "{wrong}");
        }
    }
}
