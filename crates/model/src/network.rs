//! Destinations of the network: names, addresses, ports, and the rules over them.
//!
//! A [`HostName`] is normal by construction: one spelling for each name, so that comparing is
//! deciding. Text of policies becomes one in `policy`, bytes from the wire in the door.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The name under which a cage reaches the ports of the host that its policy names.
pub const HOST_NAME: &str = "host.ironcage";

/// How a rule over everything is printed.
const EVERY_HOST: &str = "every host";

/// A host name in its one normal form: ASCII, lower case, without the dot at the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

/// Bytes that are no host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidHostName(pub &'static str);

impl fmt::Display for InvalidHostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidHostName {}

impl HostName {
    /// Longest name, in bytes, without the dot at the end.
    pub const LONGEST: usize = 253;

    /// Takes ASCII as it comes from the wire or from `idna`: case and one dot at the end do not
    /// count; whatever else is no letter, digit, hyphen or underscore is refused.
    pub fn from_ascii(bytes: &[u8]) -> Result<Self, InvalidHostName> {
        let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
        if bytes.is_empty() {
            return Err(InvalidHostName("a name is not empty"));
        }
        if bytes.len() > Self::LONGEST {
            return Err(InvalidHostName("a name has 253 bytes at most"));
        }
        let mut name = String::with_capacity(bytes.len());
        for label in bytes.split(|byte| *byte == b'.') {
            if label.is_empty() || label.len() > 63 {
                return Err(InvalidHostName(
                    "between dots stand 1 to 63 letters, digits or hyphens",
                ));
            }
            if !name.is_empty() {
                name.push('.');
            }
            for byte in label {
                if !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
                    return Err(InvalidHostName(
                        "a name has letters, digits, hyphens, underscores and dots only",
                    ));
                }
                name.push(char::from(byte.to_ascii_lowercase()));
            }
            if label.starts_with(b"-") || label.ends_with(b"-") {
                return Err(InvalidHostName(
                    "a hyphen stands at neither end of what is between dots",
                ));
            }
        }
        // `127.1`, `0x7f.1` and `2130706433` are addresses to some programs, and names to others.
        let last = name.rsplit('.').next().unwrap_or_default();
        let hexadecimal = last
            .strip_prefix("0x")
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if last.bytes().all(|byte| byte.is_ascii_digit()) || hexadecimal {
            return Err(InvalidHostName(
                "a name does not end in a number; an address is written in full",
            ));
        }
        Ok(HostName(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a name below `parent`, not itself.
    pub fn is_below(&self, parent: &HostName) -> bool {
        self.0
            .strip_suffix(parent.as_str())
            .is_some_and(|rest| rest.ends_with('.'))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidHostName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        HostName::from_ascii(text.as_bytes())
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

/// What a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Everything.
    Any,
    /// This name.
    Name(HostName),
    /// Names below this one.
    Below(HostName),
    /// This name and those below it.
    NameAndBelow(HostName),
    /// Addresses that begin with these bits.
    Net {
        /// The address; bits behind the prefix are zero.
        address: IpAddr,
        /// How many bits count.
        prefix: u8,
    },
}

impl Destination {
    /// Whether this is one name, and that.
    pub fn is_name(&self, text: &str) -> bool {
        matches!(self, Destination::Name(name) if name.as_str() == text)
    }

    /// A network, with the bits behind the prefix set to zero; `None` for too long a prefix.
    /// IPv4 written as IPv6 (`::ffff:192.0.2.1`) is the IPv4 address.
    pub fn net(address: IpAddr, prefix: u8) -> Option<Self> {
        let (address, prefix) = match address {
            IpAddr::V6(six) => match six.to_ipv4_mapped() {
                Some(four) if prefix >= 96 => (IpAddr::V4(four), prefix - 96),
                _ => (address, prefix),
            },
            IpAddr::V4(_) => (address, prefix),
        };
        let address = match address {
            IpAddr::V4(four) => {
                let mask = mask(32, prefix)? as u32;
                IpAddr::V4(Ipv4Addr::from_bits(four.to_bits() & mask))
            }
            IpAddr::V6(six) => {
                let mask = mask(128, prefix)?;
                IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & mask))
            }
        };
        Some(Destination::Net { address, prefix })
    }
}

/// The first `prefix` of `bits` bits.
fn mask(bits: u8, prefix: u8) -> Option<u128> {
    let rest = bits.checked_sub(prefix)?;
    Some(u128::MAX.checked_shl(u32::from(rest)).unwrap_or(0))
}

/// Which ports a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// 80, which carries HTTP, and 443, which carries TLS.
    Web,
    /// This one.
    One(u16),
    /// Every one.
    Any,
}

impl Ports {
    /// Whether it is among them.
    pub fn contains(self, port: u16) -> bool {
        match self {
            Ports::Web => matches!(port, 80 | 443),
            Ports::One(one) => one == port,
            Ports::Any => true,
        }
    }
}

/// A rule over destinations, for allowing or for denying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// Which destinations.
    pub to: Destination,
    /// Which of their ports.
    pub ports: Ports,
}

impl HostRule {
    /// Whether it is about this port of this name.
    pub fn names(&self, name: &HostName, port: u16) -> bool {
        self.ports.contains(port) && self.knows(name)
    }

    /// Whether it is about any port of this name.
    pub fn knows(&self, name: &HostName) -> bool {
        match &self.to {
            Destination::Any => true,
            Destination::Name(own) => own == name,
            Destination::Below(own) => name.is_below(own),
            Destination::NameAndBelow(own) => own == name || name.is_below(own),
            Destination::Net { .. } => false,
        }
    }

    /// Whether it is about this port of this address. IPv4 in an IPv6 address counts as IPv4.
    pub fn covers(&self, address: IpAddr, port: u16) -> bool {
        self.ports.contains(port) && self.knows_address(address)
    }

    /// Whether it is about any port of this address. IPv4 in an IPv6 address counts as IPv4.
    pub fn knows_address(&self, address: IpAddr) -> bool {
        match &self.to {
            Destination::Any => true,
            Destination::Net {
                address: net,
                prefix,
            } => match (*net, address.to_canonical()) {
                (IpAddr::V4(net), IpAddr::V4(asked)) => mask(32, *prefix)
                    .is_some_and(|mask| net.to_bits() == asked.to_bits() & mask as u32),
                (IpAddr::V6(net), IpAddr::V6(asked)) => {
                    mask(128, *prefix).is_some_and(|mask| net.to_bits() == asked.to_bits() & mask)
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// As a policy writes it.
impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Destination::Any => f.write_str(EVERY_HOST)?,
            Destination::Name(name) => write!(f, "{name}")?,
            Destination::Below(name) => write!(f, "*.{name}")?,
            Destination::NameAndBelow(name) => write!(f, "**.{name}")?,
            Destination::Net { address, prefix } => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                let length = if *prefix == bits {
                    String::new()
                } else {
                    format!("/{prefix}")
                };
                match address {
                    IpAddr::V4(four) => write!(f, "{four}{length}")?,
                    IpAddr::V6(six) => write!(f, "[{six}{length}]")?,
                }
            }
        }
        match self.ports {
            Ports::Web => Ok(()),
            Ports::One(port) => write!(f, ":{port}"),
            Ports::Any => f.write_str(":*"),
        }
    }
}

impl Serialize for HostRule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text that is no rule in its normal form, as [`HostRule`] prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidHostRuleText;

impl fmt::Display for InvalidHostRuleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a rule over hosts in its normal form")
    }
}

impl std::error::Error for InvalidHostRuleText {}

/// Reads the normal form, as it is printed. What people write is read by `policy`.
impl std::str::FromStr for HostRule {
    type Err = InvalidHostRuleText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        normal_rule(text).ok_or(InvalidHostRuleText)
    }
}

fn normal_rule(text: &str) -> Option<HostRule> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.contains(':').then_some(())?;
            (host, Some(rest).filter(|rest| !rest.is_empty()))
        }
        None => match text.find(':') {
            Some(at) => (text.get(..at)?, text.get(at..)),
            None => (text, None),
        },
    };
    let ports = match port.map(|port| port.strip_prefix(':')) {
        None => Ports::Web,
        Some(Some("*")) => Ports::Any,
        Some(digits) => Ports::One(digits?.parse().ok().filter(|port| *port > 0)?),
    };
    let name = |text: &str| HostName::from_ascii(text.as_bytes()).ok();
    let (address, prefix) = match host.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (host, None),
    };
    let to = if host == EVERY_HOST {
        Destination::Any
    } else if let Ok(address) = address.parse::<IpAddr>() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok()?,
            None => bits,
        };
        Destination::net(address, prefix)?
    } else if let Some(parent) = host.strip_prefix("**.") {
        Destination::NameAndBelow(name(parent)?)
    } else if let Some(parent) = host.strip_prefix("*.") {
        Destination::Below(name(parent)?)
    } else {
        Destination::Name(name(host)?)
    };
    Some(HostRule { to, ports })
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why an address is not reached through a name, and only where a rule names the address: it
/// belongs to the host, to its neighbours, or to no one in particular. `None` for addresses of
/// the internet at large.
pub fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(four) => special_v4(four),
        IpAddr::V6(six) => special_v6(six),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "this host",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "private",
        (100, 64..=127, _) => "shared by a provider",
        (127, ..) => "loopback",
        (169, 254, _) => "link-local, where clouds keep their metadata",
        (192, 0, 0) => "for protocols",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "for documentation",
        (192, 88, 99) => "a 6to4 relay",
        (198, 18 | 19, _) => "for benchmarks, and the cage's own",
        (224..=239, ..) => "multicast",
        (240..=255, ..) => "reserved",
        // The metadata service of a large cloud, and its platform's agent.
        (168, 63, 129) if address.octets()[3] == 16 => "a cloud's metadata",
        _ => return None,
    })
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let parts = address.segments();
    // IPv4 inside, in whatever form: it goes where that goes.
    if let Some(four) = address.to_ipv4_mapped() {
        return special_v4(four);
    }
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match parts {
        [0, 0, 0, 0, 0, 0, 0, 0] => return Some("this host"),
        [0, 0, 0, 0, 0, 0, 0, 1] => return Some("loopback"),
        [0, 0, 0, 0, 0, 0, ..] => return Some("IPv4 in an old form"),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            return special_v4(embedded(high, low)).map(|_| "NAT64 of a special address");
        }
        [0x64, 0xff9b, 1, ..] => return Some("NAT64 of a site"),
        [0x2002, high, low, ..] => {
            return special_v4(embedded(high, low)).map(|_| "6to4 of a special address");
        }
        [0x2001, 0, ..] => return Some("Teredo"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => return Some("for documentation"),
        [0x2001, 2..=0x1ff, ..] => return Some("for protocols"),
        [0x100, 0, 0, 0, ..] => return Some("discarded"),
        // The older way to write translated IPv4, `::ffff:0:a.b.c.d`.
        [0, 0, 0, 0, 0xffff, 0, ..] => return Some("translated IPv4"),
        _ => {}
    }
    // ISATAP: the last half ends in an IPv4 address.
    if matches!(parts[4], 0 | 0x200) && parts[5] == 0x5efe {
        return Some("IPv4 in a tunnel");
    }
    let first = parts[0];
    Some(match first {
        0xfc00..=0xfdff => "private",
        0xfe80..=0xfebf => "link-local",
        0xfec0..=0xfeff => "site-local",
        0xff00..=0xffff => "multicast",
        0x2000..=0x3fff => return None,
        _ => "reserved",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::from_ascii(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_name_has_one_spelling() {
        assert_eq!(name("API.Example.COM."), name("api.example.com"));
        assert_eq!(name("_dmarc.example.com").as_str(), "_dmarc.example.com");
        let long = format!("{}.com", "a".repeat(64));
        for wrong in [
            "",
            ".",
            "a..b",
            "-a.com",
            "a-.com",
            "a b.com",
            "a\0.com",
            "ex\u{e4}mple.com",
            "a.com..",
            "127.1",
            "2130706433",
            "0x7f.0.0.0x1",
            "1.2.3.4",
            "a/b",
            "a:80",
            &long,
        ] {
            assert!(HostName::from_ascii(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn patterns_match_whole_labels() {
        let rule = |to| HostRule {
            to,
            ports: Ports::Web,
        };
        let below = rule(Destination::Below(name("example.com")));
        assert!(below.names(&name("a.example.com"), 443));
        assert!(below.names(&name("a.b.example.com"), 80));
        assert!(!below.names(&name("example.com"), 443));
        assert!(!below.names(&name("badexample.com"), 443));
        assert!(!below.names(&name("a.example.com"), 8443));
        let both = rule(Destination::NameAndBelow(name("example.com")));
        assert!(both.names(&name("example.com"), 443));
        assert!(both.names(&name("a.example.com"), 443));
        assert!(!both.names(&name("example.com.evil.net"), 443));
    }

    #[test]
    fn networks_cover_their_addresses_in_every_form() {
        let net = |text: &str, prefix| HostRule {
            to: Destination::net(text.parse().unwrap(), prefix).unwrap(),
            ports: Ports::Any,
        };
        let ten = net("10.1.2.3", 8);
        assert_eq!(ten.to_string(), "10.0.0.0/8:*");
        assert!(ten.covers("10.255.0.1".parse().unwrap(), 1));
        assert!(ten.covers("::ffff:10.0.0.1".parse().unwrap(), 1));
        assert!(!ten.covers("11.0.0.1".parse().unwrap(), 1));
        assert!(net("0.0.0.0", 0).covers("1.1.1.1".parse().unwrap(), 1));
        assert!(!net("0.0.0.0", 0).covers("2001:4860::1".parse().unwrap(), 1));
        let six = net("2001:db8::", 32);
        assert!(six.covers("2001:db8:1::1".parse().unwrap(), 1));
        assert_eq!(net("::ffff:192.0.2.1", 128).to_string(), "192.0.2.1:*");
        assert!(Destination::net("10.0.0.0".parse().unwrap(), 33).is_none());
    }

    #[test]
    fn the_normal_form_is_read_back_as_it_was_printed() {
        for text in [
            "every host",
            "every host:*",
            "example.com",
            "*.example.com:443",
            "**.example.com:*",
            "192.0.2.7:22",
            "10.0.0.0/8",
            "[2001:db8::1]",
            "[2001:db8::/32]:443",
        ] {
            let rule: HostRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        for wrong in [
            "",
            "*",
            "example.com:0",
            "example.com:x",
            "[example.com]",
            "10.0.0.0/33",
            "a b",
            "127.1",
            "2001:db8::1",
            "[::1]443",
        ] {
            assert!(wrong.parse::<HostRule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn special_addresses_are_known_in_every_form() {
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "fe80::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
            "::ffff:0:127.0.0.1",
            "2001:db8::5efe:7f00:1",
            "2607:f8b0::5efe:7f00:1",
        ] {
            assert!(special(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "2002:101:101::",
            "172.15.0.1",
            "172.32.0.1",
            "::ffff:1.1.1.1",
        ] {
            assert!(special(text.parse().unwrap()).is_none(), "{text}");
        }
    }
}
