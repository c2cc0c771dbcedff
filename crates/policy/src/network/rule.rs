//! Parses host rules: `NAME[:PORT]`, `*.NAME`, `**.NAME`, addresses and networks.
//!
//! Names are normalised here, once, so that later code can compare them as they are.

use ironcage_model::{Destination, HostName, HostRule, Ports};
use std::net::IpAddr;

/// Invalid text of a host rule; the message says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse `{}`: {remedy}", text.escape_debug())]
pub struct InvalidHostRule {
    pub text: String,
    pub remedy: String,
}

const FORMS: &str = "expected NAME, NAME:PORT, '*.NAME' (subdomains), '**.NAME' (NAME and its subdomains), an address, or a network such as 192.0.2.0/24 or [2001:db8::/32]:443";

/// A rule that allows: without a port it is about 80 and 443.
pub fn allowed(text: &str) -> Result<HostRule, InvalidHostRule> {
    rule(text, Ports::Web)
}

/// A rule that denies: without a port it is about every one.
pub fn denied(text: &str) -> Result<HostRule, InvalidHostRule> {
    rule(text, Ports::Any)
}

/// A name as people write it, in its normal form.
pub fn host_name(text: &str) -> Result<HostName, InvalidHostRule> {
    let wrong = |remedy: &str| InvalidHostRule {
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    };
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(wrong("remove the control characters or spaces"));
    }
    if text.is_ascii() {
        return HostName::from_ascii(text.as_bytes()).map_err(|error| wrong(error.0));
    }
    let ascii = idna::domain_to_ascii_strict(text)
        .map_err(|_| wrong("invalid internationalised name; write its xn-- form"))?;
    HostName::from_ascii(ascii.as_bytes()).map_err(|error| wrong(error.0))
}

fn rule(text: &str, without_port: Ports) -> Result<HostRule, InvalidHostRule> {
    let wrong = |remedy: &str| InvalidHostRule {
        text: text.to_owned(),
        remedy: remedy.to_owned(),
    };
    if text.contains("://") || text.contains('@') {
        return Err(wrong(
            "expected only the host, without a scheme, a user or a path",
        ));
    }
    const EVERY_HOST: &str = "to allow every host, use --network open";
    if matches!(text, "*" | "**" | "*:*") {
        return Err(wrong(EVERY_HOST));
    }
    let (host, port) = split(text).ok_or_else(|| wrong(FORMS))?;
    let ports = match port {
        None => without_port,
        Some("*") => Ports::Any,
        Some(digits) => match digits.parse::<u16>() {
            Ok(port) if port > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ports::One(port)
            }
            _ => return Err(wrong("expected a port from 1 to 65535, or *")),
        },
    };
    let to = match address(host) {
        Some(net) => net.ok_or_else(|| wrong("the network prefix is too long"))?,
        None => {
            let (pattern, name): (fn(HostName) -> Destination, &str) =
                if let Some(name) = host.strip_prefix("**.") {
                    (Destination::NameAndBelow, name)
                } else if let Some(name) = host.strip_prefix("*.") {
                    (Destination::Below, name)
                } else {
                    (Destination::Name, host)
                };
            if name.contains('*') {
                return Err(wrong(
                    "a star is only allowed at the beginning, before a dot",
                ));
            }
            let name = host_name(name).map_err(|error| wrong(&error.remedy))?;
            pattern(name)
        }
    };
    // In whatever spelling: `0::/0`, `192.0.2.7/0`.
    if port.is_none() && matches!(to, Destination::Net { prefix: 0, .. }) {
        return Err(wrong(EVERY_HOST));
    }
    Ok(HostRule { to, ports })
}

/// Host and port. An address of IPv6 stands in brackets where a port follows.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        // A name in brackets is nothing.
        host.contains(':').then_some(())?;
        return match rest {
            "" => Some((host, None)),
            rest => rest.strip_prefix(':').map(|port| (host, Some(port))),
        };
    }
    match text.split_once(':') {
        None => Some((text, None)),
        // More than one: IPv6 without a port.
        Some((_, rest)) if rest.contains(':') => Some((text, None)),
        Some((host, port)) => Some((host, Some(port))),
    }
}

/// An address or a network; `None` where it is neither, `Some(None)` with too long a prefix.
fn address(host: &str) -> Option<Option<Destination>> {
    let (address, prefix) = match host.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (host, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let Some(prefix) = prefix else {
        return Some(Destination::net(address, bits));
    };
    let length = prefix.parse::<u8>().ok().filter(|length| *length <= bits);
    Some(length.and_then(|length| Destination::net(address, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        allowed(text).unwrap().to_string()
    }

    #[test]
    fn every_form_is_understood_and_has_one_spelling() {
        assert_eq!(shown("Example.COM."), "example.com");
        assert_eq!(shown("example.com:8443"), "example.com:8443");
        assert_eq!(shown("*.example.com"), "*.example.com");
        assert_eq!(shown("**.Example.com:443"), "**.example.com:443");
        assert_eq!(shown("b\u{fc}cher.example"), "xn--bcher-kva.example");
        assert_eq!(shown("192.0.2.7"), "192.0.2.7");
        assert_eq!(shown("192.0.2.7/24:22"), "192.0.2.0/24:22");
        assert_eq!(shown("2001:DB8::1"), "[2001:db8::1]");
        assert_eq!(shown("[2001:db8::/32]:443"), "[2001:db8::/32]:443");
        assert_eq!(shown("[::ffff:192.0.2.1]:80"), "192.0.2.1:80");
        assert_eq!(shown("example.com:*"), "example.com:*");
        assert_eq!(shown("192.0.2.7/0:443"), "0.0.0.0/0:443");
        assert_eq!(denied("example.com").unwrap().to_string(), "example.com:*");
    }

    #[test]
    fn what_is_no_host_is_refused_with_a_remedy() {
        for text in [
            "",
            "*",
            "*.*.com",
            "a.*.com",
            "https://example.com",
            "me@example.com",
            "example.com/path",
            "example.com:0",
            "example.com:70000",
            "example.com:+80",
            "exa mple.com",
            "example.com\0",
            "example.com\n",
            "192.0.2.0/33",
            "[example.com]:80",
            "127.1",
            "0x7f000001",
            "::/0",
            "[::/0]",
            "[0::/0]",
            "0.0.0.0/0",
            "192.0.2.7/0",
            "[2001:db8::1",
        ] {
            assert!(allowed(text).is_err(), "{text:?}");
        }
        let open = allowed("*").unwrap_err().to_string();
        assert!(open.contains("--network open"), "{open}");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_reads_back_the_same(text in "\\PC{0,40}|[a-z*.:/\\[\\]0-9-]{0,40}") {
            if let Ok(rule) = allowed(&text) {
                let again = allowed(&rule.to_string()).unwrap();
                prop_assert_eq!(rule, again);
            }
        }
    }
}
