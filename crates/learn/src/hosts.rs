//! Finds rules that cover the connections and requests of a run.

use ironcage_model::{
    Destination, HOST_NAME, HostName, HostRule, HttpRule, NetworkVerdict, PathPattern, Ports,
    Protocol, Traffic, special,
};
use ironcage_policy::Policy;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// From so many names of one pattern of the bound on, the pattern is given; and so many paths of
/// one host become a pattern.
const SEVERAL: usize = 3;

/// A rule to give, and how often it was needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needed<T> {
    pub(crate) rule: T,
    pub(crate) why: String,
}

/// What connections need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) hosts: Vec<Needed<HostRule>>,
    pub(crate) requests: Vec<Needed<HttpRule>>,
    pub(crate) host_ports: Vec<Needed<u16>>,
    pub(crate) sockets: Vec<Needed<String>>,
}

/// The rule that is about one port of one destination; `None` where the text is neither a name
/// nor an address.
pub(crate) fn rule(host: &str, port: u16) -> Option<HostRule> {
    let to = match host.parse::<IpAddr>() {
        Ok(address) => Destination::net(address, if address.is_ipv4() { 32 } else { 128 })?,
        Err(_) => Destination::Name(HostName::from_ascii(host.as_bytes()).ok()?),
    };
    Some(HostRule {
        to,
        ports: Ports::One(port),
    })
}

/// The rules that the connections of one verdict need. A pattern of `bound` replaces several names
/// that match it; hosts whose requests the egress proxy reads get request rules.
pub(crate) fn needs<'a>(
    traffic: impl Iterator<Item = &'a Traffic>,
    bound: Option<&Policy>,
) -> Needs {
    let mut needs = Needs::default();
    let mut hosts: BTreeMap<(String, u16), (HostRule, u64)> = BTreeMap::new();
    let mut requests: BTreeMap<(String, u16), Vec<&Traffic>> = BTreeMap::new();
    for one in traffic {
        if one.protocol == Protocol::Unix {
            needs.sockets.push(Needed {
                rule: one.host.clone(),
                why: times(one),
            });
        } else if one.host == HOST_NAME {
            needs.host_ports.push(Needed {
                rule: one.port,
                why: times(one),
            });
        } else if one.protocol == Protocol::Dns {
            // The port was never said: 443 is what is meant nearly always.
            if let Some(rule) = rule(&one.host, 443) {
                let entry = hosts.entry((one.host.clone(), 443)).or_insert((rule, 0));
                entry.1 = entry.1.saturating_add(one.connections);
            }
        } else if let Some(rule) = rule(&one.host, one.port) {
            let by_requests = bound.is_some_and(|bound| {
                let mut rules = bound.network.http.iter();
                let name = HostName::from_ascii(one.host.as_bytes());
                name.is_ok_and(|name| rules.any(|rule| rule.value.is_about(&name, one.port)))
            });
            // A name that leads to a special address needs a rule that names that too.
            let led = one.address.as_deref();
            let led = led.and_then(|led| led.parse::<IpAddr>().ok());
            if let Some(led) = led.filter(|led| special(*led).is_some())
                && let Some(rule) = self::rule(&led.to_string(), one.port)
            {
                hosts
                    .entry((led.to_string(), one.port))
                    .or_insert((rule, 1));
            }
            let key = (one.host.clone(), one.port);
            if by_requests {
                requests.entry(key).or_default().push(one);
            } else {
                let entry = hosts.entry(key).or_insert((rule, 0));
                entry.1 = entry.1.saturating_add(one.connections);
            }
        }
    }
    needs.hosts = joined(hosts.into_values().collect(), bound);
    for ((host, port), made) in requests {
        needs.requests.extend(patterns(&host, port, &made));
    }
    needs.host_ports.sort_by_key(|needed| needed.rule);
    needs.host_ports.dedup_by_key(|needed| needed.rule);
    needs.sockets.sort_by(|a, b| a.rule.cmp(&b.rule));
    needs.sockets.dedup_by(|a, b| a.rule == b.rule);
    needs
}

fn times(traffic: &Traffic) -> String {
    let what = match traffic.verdict {
        NetworkVerdict::Allowed => "connections",
        NetworkVerdict::Denied => "refused",
    };
    format!("{what}: {}", traffic.connections.max(1))
}

/// One rule for each host, or the bound's pattern where several hosts lie in it.
fn joined(hosts: Vec<(HostRule, u64)>, bound: Option<&Policy>) -> Vec<Needed<HostRule>> {
    let mut needed: Vec<Needed<HostRule>> = Vec::new();
    let mut left = hosts;
    let patterns = bound.iter().flat_map(|bound| &bound.network.allow);
    for pattern in patterns.map(|rule| &rule.value) {
        let is_pattern = matches!(
            pattern.to,
            Destination::Below(_) | Destination::NameAndBelow(_)
        );
        let inside = |rule: &HostRule| match (&rule.to, rule.ports) {
            (Destination::Name(name), Ports::One(port)) => pattern.names(name, port),
            _ => false,
        };
        let names: BTreeSet<String> = left
            .iter()
            .filter(|(rule, _)| inside(rule))
            .map(|(rule, _)| rule.to.clone())
            .filter_map(|to| match to {
                Destination::Name(name) => Some(name.as_str().to_owned()),
                _ => None,
            })
            .collect();
        if !is_pattern || names.len() < SEVERAL {
            continue;
        }
        left.retain(|(rule, _)| !inside(rule));
        needed.push(Needed {
            rule: pattern.clone(),
            why: format!("connections to {} names below it", names.len()),
        });
    }
    needed.extend(left.into_iter().map(|(rule, count)| Needed {
        rule,
        why: format!("connections: {}", count.max(1)),
    }));
    needed
}

/// Rules over the requests to one port of one host: each path, or what several have in common.
fn patterns(host: &str, port: u16, made: &[&Traffic]) -> Vec<Needed<HttpRule>> {
    let Some(host) = rule(host, port) else {
        return Vec::new();
    };
    let mut by_method: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for traffic in made {
        if let Some((method, path)) = traffic.request.as_deref().and_then(|r| r.split_once(' ')) {
            by_method.entry(method).or_default().insert(path);
        }
    }
    let mut rules = Vec::new();
    for (method, paths) in by_method {
        let texts: BTreeSet<String> = match paths.len() {
            0..SEVERAL => paths.iter().map(|path| plain(path)).collect(),
            _ => [format!("{}/**", common(&paths))].into(),
        };
        for text in texts {
            if let Ok(path) = PathPattern::parse(&text) {
                rules.push(Needed {
                    rule: HttpRule {
                        methods: vec![method.to_owned()],
                        host: host.clone(),
                        path,
                    },
                    why: format!("requests: {} different paths", paths.len()),
                });
            }
        }
    }
    rules
}

/// A path as a pattern: from where it has letters that patterns do not, everything below.
fn plain(path: &str) -> String {
    let mut known = String::new();
    for part in path.trim_start_matches('/').split('/') {
        let odd = |byte: u8| !(0x21..0x7f).contains(&byte) || b"?#\\%;*".contains(&byte);
        if part.bytes().any(odd) || part == "." || part == ".." {
            return format!("{known}/**");
        }
        known.push('/');
        known.push_str(part);
    }
    known
}

/// The directory that paths have in common, without a slash at its end.
fn common(paths: &BTreeSet<&str>) -> String {
    let mut all = paths.iter().map(|path| plain(path));
    let first = all.next().unwrap_or_default();
    let mut parts: Vec<String> = first.split('/').map(str::to_owned).collect();
    parts.pop();
    for path in all {
        let own: Vec<&str> = path.split('/').collect();
        let same = parts.iter().zip(&own).take_while(|(a, b)| a == b).count();
        parts.truncate(same.min(own.len().saturating_sub(1)));
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_have_a_directory_in_common_become_its_pattern() {
        let of = |paths: &[&'static str]| common(&paths.iter().copied().collect());
        assert_eq!(of(&["/v1/a", "/v1/b", "/v1/c/d"]), "/v1");
        assert_eq!(of(&["/a", "/b", "/c"]), "");
        assert_eq!(of(&["/v1/a/x", "/v1/a/y", "/v1/a"]), "/v1");
    }

    #[test]
    fn what_a_pattern_cannot_say_is_everything_below() {
        assert_eq!(plain("/v1/items"), "/v1/items");
        assert_eq!(plain("/v1/a%2fb/c"), "/v1/**");
        assert_eq!(plain("/v1/*/c"), "/v1/**");
        assert!(PathPattern::parse(&plain("/v1/a b")).is_ok());
    }

    #[test]
    fn a_destination_is_a_name_or_an_address_or_nothing() {
        assert_eq!(rule("a.test", 443).unwrap().to_string(), "a.test:443");
        assert_eq!(rule("192.0.2.1", 80).unwrap().to_string(), "192.0.2.1:80");
        assert_eq!(rule("::1", 80).unwrap().to_string(), "[::1]:80");
        assert_eq!(rule("\u{1b}[2J", 80), None);
    }
}
