//! The ssh configuration of a cage: its own settings, and the user's known keys of allowed hosts.
//!
//! The user's keys, agent and settings stay outside. Each known-hosts line is written again from
//! the name of an allowed host and its key, so that the cage does not learn other names,
//! addresses or comments from the user's line.

use crate::network::Network;
use hmac::{Hmac, KeyInit as _, Mac as _};
use ironcage_model::{Destination, HOST_NAME, HostName, HostRule, Ports, base64};
use sha1::Sha1;
use std::fmt::Write as _;
use std::net::IpAddr;

/// The port of SSH servers, unless something else is said.
const PORT: u16 = 22;

/// The hosts that a cage may reach, as far as they are named: a network that is open to all
/// names none.
struct Reachable {
    allow: Vec<HostRule>,
    deny: Vec<HostRule>,
}

impl Reachable {
    fn of(network: &Network) -> Self {
        let named = |rule: &&HostRule| rule.to != Destination::Any;
        let allow = network.allow.iter().map(|item| &item.what.rule);
        let allow = allow.filter(named).cloned();
        let own = network.host_ports.iter();
        let own = own.flat_map(|item| this_machine(item.what.port));
        Reachable {
            allow: allow.chain(own).collect(),
            deny: (network.deny.iter())
                .map(|item| item.what.rule.clone())
                .collect(),
        }
    }

    fn covers(&self, host: &str, port: u16) -> bool {
        let hit = |rule: &HostRule| match host.parse::<IpAddr>() {
            Ok(address) => rule.covers(address, port),
            Err(_) => {
                HostName::from_ascii(host.as_bytes()).is_ok_and(|name| rule.names(&name, port))
            }
        };
        self.allow.iter().any(hit) && !self.deny.iter().any(hit)
    }

    /// Hosts that are allowed by their whole name or address, as files of known hosts have them. A
    /// rule about every port is about the usual one.
    fn exact(&self) -> Vec<String> {
        let mut hosts = Vec::new();
        for rule in &self.allow {
            let port = match rule.ports {
                Ports::One(port) => port,
                Ports::Any => PORT,
                Ports::Web => continue,
            };
            let name = match &rule.to {
                Destination::Name(name) => name.to_string(),
                Destination::Net { address, prefix } if is_one(*address, *prefix) => {
                    address.to_string()
                }
                _ => continue,
            };
            if self.covers(&name, port) {
                hosts.push(place(&name, port));
            }
        }
        hosts
    }
}

/// Whether a network is one address.
fn is_one(address: IpAddr, prefix: u8) -> bool {
    prefix == if address.is_ipv4() { 32 } else { 128 }
}

/// The names by which the user knows a service on the loopback of this machine.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

fn this_machine(port: u16) -> impl Iterator<Item = HostRule> {
    let rule = move |name: &str| match name.contains(':') {
        true => format!("[{name}]:{port}").parse().ok(),
        false => format!("{name}:{port}").parse().ok(),
    };
    LOOPBACK.into_iter().filter_map(rule)
}

/// The port of a rule about this machine, by its own name or by that in a cage.
pub(crate) fn own_port(host: &HostRule) -> Option<u16> {
    match host.ports {
        Ports::One(port) if host.to.is_name("localhost") || host.to.is_name(HOST_NAME) => {
            Some(port)
        }
        _ => None,
    }
}

/// What a service of this machine is called in a cage, if an entry is one.
fn name_in_cage(entry: &str) -> Option<String> {
    let (host, port) = parse(entry)?;
    LOOPBACK.contains(&host).then(|| place(HOST_NAME, port))
}

fn place(name: &str, port: u16) -> String {
    if port == PORT {
        name.to_owned()
    } else {
        format!("[{name}]:{port}")
    }
}

/// The settings of ssh in the cage.
pub(crate) fn config() -> String {
    "# Written by Ironcage: your own settings, keys and agent are not in the cage.\n\
     Host *\n\
     \tGlobalKnownHostsFile /etc/ssh/ssh_known_hosts\n\
     \t# There is no user to answer a prompt.\n\
     \tStrictHostKeyChecking yes\n\
     \tUpdateHostKeys no\n"
        .into()
}

/// The text of the cage's `ssh_known_hosts`, from what the user knows.
pub(crate) fn known_hosts_file(known: &str, network: Option<&Network>) -> String {
    let mut text = String::from("# Written by Ironcage: the hosts that this cage may reach.\n");
    let lines = network.map(|network| known_hosts(known, &Reachable::of(network)));
    for line in lines.unwrap_or_default() {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Whether a network lets connections to a host through.
pub(crate) fn is_reachable(network: &Network, host: &HostRule) -> bool {
    let (Destination::Name(name), Ports::One(port)) = (&host.to, host.ports) else {
        return false;
    };
    if own_port(host).is_some() {
        return network.host_ports.iter().any(|item| item.what.port == port);
    }
    let hit = |rule: &HostRule| rule.names(name, port);
    let mut allow = network.allow.iter();
    let mut deny = network.deny.iter();
    allow.any(|item| hit(&item.what.rule)) && !deny.any(|item| hit(&item.what.rule))
}

/// Hosts that a network lets through and that are known as SSH servers, each with its port.
pub(crate) fn servers(known: &str, network: &Network) -> Vec<HostRule> {
    let allowed = network.allow.iter().map(|item| item.what.rule.clone());
    let own = network.host_ports.iter();
    let own = own.filter_map(|item| format!("localhost:{}", item.what.port).parse().ok());
    allowed
        .chain(own)
        .filter(|rule| {
            matches!(
                (&rule.to, rule.ports),
                (Destination::Name(_), Ports::One(_))
            )
        })
        .filter(|rule| is_reachable(network, rule) && !host_keys(known, rule).is_empty())
        .collect()
}

/// The public keys of one host, in base64, from what the user knows. Revoked ones are not among
/// them; the keys of authorities sign other keys, and no session.
pub(crate) fn host_keys(known: &str, host: &HostRule) -> Vec<String> {
    let reachable = Reachable {
        allow: match own_port(host) {
            Some(port) => this_machine(port).collect(),
            None => vec![host.clone()],
        },
        deny: Vec::new(),
    };
    let lines = known_hosts(known, &reachable);
    let marked = |line: &&String| line.starts_with('@');
    let key = |line: &String| line.rsplit(' ').next().unwrap_or_default().to_owned();
    let revoked: Vec<String> = (lines.iter().filter(marked))
        .filter(|line| line.starts_with("@revoked"))
        .map(key)
        .collect();
    let keys = lines.iter().filter(|line| !marked(line)).map(key);
    let mut keys: Vec<String> = keys.filter(|key| !revoked.contains(key)).collect();
    // One server is known by several names.
    keys.sort();
    keys.dedup();
    keys
}

/// Takes the keys of allowed hosts from the text of a file of known hosts. Hashed names are
/// found where an allowed host has a whole name; against a pattern nothing can be held. What is
/// not understood is passed over: ssh then does not know the host.
fn known_hosts(text: &str, reachable: &Reachable) -> Vec<String> {
    let mut lines = Vec::new();
    let exact = reachable.exact();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().peekable();
        let marker = words.next_if(|word| word.starts_with('@'));
        if !matches!(marker, None | Some("@cert-authority" | "@revoked")) {
            continue;
        }
        let (Some(names), Some(kind), Some(key)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !is_kind(kind) || !is_base64(key) {
            continue;
        }
        let found = reached(names, reachable, &exact);
        let aliases: Vec<String> = found.iter().filter_map(|name| name_in_cage(name)).collect();
        for name in found.into_iter().chain(aliases) {
            let mut made = String::new();
            if let Some(marker) = marker {
                made.push_str(marker);
                made.push(' ');
            }
            // Writing to a string cannot fail.
            let _ = write!(made, "{name} {kind} {key}");
            if !lines.contains(&made) {
                lines.push(made);
            }
        }
    }
    lines
}

/// The names of allowed hosts that the names of a line stand for.
fn reached(names: &str, reachable: &Reachable, exact: &[String]) -> Vec<String> {
    if let Some(hashed) = names.strip_prefix("|1|") {
        let hit = |name: &&String| is_hash_of(hashed, name);
        return exact.iter().filter(hit).cloned().collect();
    }
    let patterns: Vec<&str> = names.split(',').collect();
    let mut found = Vec::new();
    // A pattern of the user's, and one that is to be left out, hold for whole names.
    for host in exact {
        let fits = |pattern: &str| matches_pattern(host, pattern);
        let left_out = patterns
            .iter()
            .any(|pattern| pattern.strip_prefix('!').is_some_and(fits));
        if !left_out && patterns.iter().any(|pattern| fits(pattern)) {
            found.push(host.clone());
        }
    }
    for name in &patterns {
        let Some((host, port)) = parse(name) else {
            continue;
        };
        if reachable.covers(host, port) {
            found.push(place(host, port));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Name and port of an entry that is no pattern and cannot break a line.
fn parse(entry: &str) -> Option<(&str, u16)> {
    let (name, port) = match entry.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once("]:")?;
            (name, port.parse().ok()?)
        }
        None => (entry, PORT),
    };
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    (!name.is_empty() && name.bytes().all(plain)).then_some((name, port))
}

/// Whether a name fits a pattern in which `*` stands for any characters and `?` for one.
fn matches_pattern(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.as_bytes(), pattern.as_bytes());
    let (mut at, mut in_pattern) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                star = Some((in_pattern, at));
                in_pattern += 1;
            }
            Some(byte) if *byte == b'?' || name[at].eq_ignore_ascii_case(byte) => {
                at += 1;
                in_pattern += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (at, in_pattern) = (from + 1, after + 1);
                }
                None => return false,
            },
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

/// Whether `SALT|HASH` is of a name: HMAC-SHA1 with the salt as its key.
fn is_hash_of(hashed: &str, name: &str) -> bool {
    let parts = hashed.split_once('|');
    let Some((Some(salt), Some(hash))) = parts.map(|(a, b)| (base64::decode(a), base64::decode(b)))
    else {
        return false;
    };
    let Ok(mut made) = Hmac::<Sha1>::new_from_slice(&salt) else {
        return false;
    };
    made.update(name.as_bytes());
    made.verify_slice(&hash).is_ok()
}

fn is_kind(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'@');
    word.bytes().all(plain)
}

fn is_base64(word: &str) -> bool {
    base64::decode(word).is_some_and(|bytes| !bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::NetworkRule;
    use crate::plan::Item;

    const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIJ8y";

    fn rules(texts: &[&str]) -> Vec<Item<NetworkRule>> {
        let rule = |text: &&str| Item {
            what: NetworkRule {
                rule: ironcage_policy::allowed(text).unwrap(),
                bundle: None,
            },
            origin: String::new(),
        };
        texts.iter().map(rule).collect()
    }

    fn network(allow: &[&str], deny: &[&str]) -> Network {
        Network {
            allow: rules(allow),
            deny: rules(deny),
            http: Vec::new(),
            models: None,
            secrets: Vec::new(),
            aws: None,
            logins: Vec::new(),
            authorities: Vec::new(),
            extra_authorities: Vec::new(),
            host_ports: Vec::new(),
            resolve: Vec::new(),
            live: false,
            leases_requests: false,
            leasable: Vec::new(),
            sockets: Vec::new(),
            publish: Vec::new(),
            limits: ironcage_model::NetworkLimits::default(),
            upstream: None,
            proxy_filter: Vec::new(),
        }
    }

    fn taken(text: &str, allow: &[&str]) -> Vec<String> {
        known_hosts(text, &Reachable::of(&network(allow, &[])))
    }

    #[test]
    fn an_allowed_port_of_this_machine_is_known_by_its_names_and_by_that_in_a_cage() {
        let text = format!(
            "[localhost]:2222 ssh-ed25519 {KEY}\n[127.0.0.1]:2223 ssh-ed25519 {KEY}\nlocalhost ssh-rsa {KEY}\n"
        );
        let mut network = network(&[], &[]);
        network.host_ports = vec![Item {
            what: crate::network::HostPort { port: 2222 },
            origin: String::new(),
        }];
        let taken = known_hosts(&text, &Reachable::of(&network));
        let expected = ["[localhost]:2222", "[host.ironcage]:2222"];
        assert_eq!(
            taken,
            expected.map(|name| format!("{name} ssh-ed25519 {KEY}"))
        );
        let rule = |text: &str| ironcage_policy::allowed(text).unwrap();
        for host in ["localhost:2222", "host.ironcage:2222"] {
            assert_eq!(host_keys(&text, &rule(host)), [KEY], "{host}");
            assert!(is_reachable(&network, &rule(host)));
        }
        assert_eq!(host_keys(&text, &rule("localhost:2223")), [KEY]);
        assert!(!is_reachable(&network, &rule("localhost:2223")));
        let servers: Vec<String> = (servers(&text, &network).iter())
            .map(ToString::to_string)
            .collect();
        assert_eq!(servers, ["localhost:2222"]);
    }

    #[test]
    fn only_lines_of_allowed_hosts_are_taken_and_nothing_else_of_them() {
        let text = format!(
            "# comment\ngit.example,10.0.0.7 ssh-ed25519 {KEY} ann@laptop\nsecret.example ssh-rsa {KEY}\n\
             [git.example]:2222 ssh-rsa {KEY}\n@revoked git.example ssh-rsa {KEY}\n@odd git.example ssh-rsa {KEY}\n"
        );
        let usual = [
            format!("git.example ssh-ed25519 {KEY}"),
            format!("@revoked git.example ssh-rsa {KEY}"),
        ];
        assert_eq!(taken(&text, &["git.example:22"]), usual);
        assert_eq!(
            taken(&text, &["git.example"]),
            [""; 0],
            "the web is not ssh"
        );
        assert_eq!(taken(&text, &[]), [""; 0]);
        assert_eq!(
            taken(&text, &["git.example:2222"]),
            [format!("[git.example]:2222 ssh-rsa {KEY}")]
        );
        assert_eq!(
            taken(&text, &["10.0.0.0/8:22"]),
            [format!("10.0.0.7 ssh-ed25519 {KEY}")]
        );
        let denied = network(&["git.example:22", "git.example:2222"], &["git.example:22"]);
        assert_eq!(
            known_hosts(&text, &Reachable::of(&denied)),
            [format!("[git.example]:2222 ssh-rsa {KEY}")]
        );
    }

    #[test]
    fn a_network_that_is_open_to_all_names_nobody() {
        let mut open = network(&["git.example:22"], &[]);
        open.allow[0].what.rule.to = Destination::Any;
        assert_eq!(
            known_hosts(&format!("git.example ssh-rsa {KEY}"), &Reachable::of(&open)),
            [""; 0]
        );
    }

    #[test]
    fn the_keys_of_one_host_are_those_that_are_not_revoked() {
        let text = format!(
            "git.example ssh-ed25519 {KEY}\n@revoked git.example ssh-rsa AAAA\ngit.example ssh-rsa AAAA\n\
             @cert-authority git.example ssh-rsa BBBB\n[git.example]:2222 ssh-rsa CCCC\nother.example ssh-rsa DDDD\n"
        );
        let keys = |host: &str| host_keys(&text, &ironcage_policy::allowed(host).unwrap());
        assert_eq!(keys("git.example:22"), [KEY]);
        assert_eq!(keys("git.example:2222"), ["CCCC"]);
        assert_eq!(keys("unknown.example:22"), [""; 0]);
    }

    #[test]
    fn patterns_of_either_side_hold() {
        let text = format!(
            "*.git.example,!old.git.example ssh-rsa {KEY}\na.git.example ssh-ed25519 {KEY}\n"
        );
        assert_eq!(
            taken(&text, &["b.git.example:22"]),
            [format!("b.git.example ssh-rsa {KEY}")]
        );
        assert_eq!(taken(&text, &["old.git.example:22"]), [""; 0]);
        for pattern in ["*.git.example:22", "**.git.example:*"] {
            assert_eq!(
                taken(&text, &[pattern]),
                [format!("a.git.example ssh-ed25519 {KEY}")]
            );
        }
    }

    #[test]
    fn a_hashed_name_is_found_by_its_hash() {
        // Made with `ssh-keygen -H`.
        let text = "\
            |1|xUpi1iWkQ7DjHyfOfCVTCqz3KV4=|HqgQ9KZJrYJvcerohjfRt4U/Mcg= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINudDhn03Dtd3KHFEYhXEZ1UTD0soyib8Ymdvr0W0QTO\n\
            |1|qsmriqnmtU4uN+Y5JEi0AtHys4c=|1f7F22WHdYmptrGIAGOtPKVV4Dw= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINudDhn03Dtd3KHFEYhXEZ1UTD0soyib8Ymdvr0W0QTO\n";
        assert_eq!(taken(text, &["git.example:22"]).len(), 1, "{text}");
        assert!(taken(text, &["git.example:*"])[0].starts_with("git.example ssh-ed25519 "));
        assert_eq!(taken(text, &["other.example:22", "*.example:22"]), [""; 0]);
    }

    #[test]
    fn a_hashed_address_is_found_where_it_is_allowed_by_itself() {
        // 192.0.2.7, and [127.0.0.1]:2222.
        let text = format!(
            "|1|MDEyMzQ1Njc4OWFiY2RlZmdoaWo=|703BumQzZM6LSTKnmY2v+IdVAHU= ssh-ed25519 {KEY}\n\
             |1|MDEyMzQ1Njc4OWFiY2RlZmdoaWo=|kjl9J932vxVxCmU2IfKMefPFSKM= ssh-rsa AAAA\n"
        );
        let found = [format!("192.0.2.7 ssh-ed25519 {KEY}")];
        assert_eq!(taken(&text, &["192.0.2.7:22"]), found);
        assert_eq!(taken(&text, &["192.0.2.0/24:22"]), [""; 0]);
        // A service of this machine, by any of its names.
        let own = ironcage_policy::allowed("localhost:2222").unwrap();
        assert_eq!(host_keys(&text, &own), ["AAAA"]);
    }

    #[test]
    fn a_line_cannot_bring_in_another() {
        for text in [
            "git.example ssh-rsa AAAA\u{1b}[2J",
            "git.example ssh-\u{7}rsa AAAA",
            "|1|%%%|AAAA ssh-rsa AAAA",
            "|1| ssh-rsa AAAA",
            "git.example ssh-rsa",
            "@revoked",
        ] {
            assert_eq!(taken(text, &["git.example:22"]), [""; 0], "{text:?}");
        }
        assert_eq!(parse("a b"), None);
        assert_eq!(parse("[a]:x"), None);
        assert_eq!(parse("*.example"), None);
    }
}
