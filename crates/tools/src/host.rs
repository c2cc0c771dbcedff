//! Whether a URL or a host name leads to one of some hosts, from its text alone.
//!
//! Parsers of URLs differ, so only what all of them read alike is read: a scheme, a host of plain
//! letters, a port.

use ironcage_model::{Destination, HostName, HostRule};
use std::net::IpAddr;

/// Whether it names a host that one of the rules names.
pub(crate) fn is_in(text: &str, rules: &[HostRule]) -> bool {
    let Some((host, port)) = host_and_port(text) else {
        return false;
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse::<IpAddr>() {
        return rules.iter().any(|rule| rule.covers(address, port));
    }
    // What a resolver reads as an address in another base is not a name.
    let last = host.rsplit('.').next().unwrap_or_default();
    if last.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let Ok(name) = HostName::from_ascii(host.as_bytes()) else {
        return false;
    };
    let named = |rule: &&HostRule| !matches!(rule.to, Destination::Net { .. });
    rules
        .iter()
        .filter(named)
        .any(|rule| rule.names(&name, port))
}

/// The rule for just the host and the port that a URL or a name means.
pub(crate) fn rule(text: &str) -> Option<HostRule> {
    let (host, port) = host_and_port(text)?;
    let rule: HostRule = format!("{host}:{port}").parse().ok()?;
    // A name that a rule would read as something wider is not one.
    is_in(text, std::slice::from_ref(&rule)).then_some(rule)
}

/// The host and the port that a URL names, or a host name alone.
fn host_and_port(text: &str) -> Option<(String, u16)> {
    if text.len() > 8192
        || text.contains('\\')
        || text
            .chars()
            .any(|c| c.is_ascii_control() || c.is_whitespace())
    {
        return None;
    }
    let (port, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (default_port(scheme)?, rest),
        None => (443, text),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = rest.get(..end)?;
    let (host, port) = match authority.strip_prefix('[') {
        Some(address) => {
            let (address, after) = address.split_once(']')?;
            let plain = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
            if !address.chars().all(plain) {
                return None;
            }
            let port = match after.strip_prefix(':') {
                Some(port) => number(port)?,
                None if after.is_empty() => port,
                None => return None,
            };
            (format!("[{address}]"), port)
        }
        None => {
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, number(port)?),
                None => (authority, port),
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
            if host.is_empty() || !host.chars().all(plain) {
                return None;
            }
            (host.trim_end_matches('.').to_ascii_lowercase(), port)
        }
    };
    Some((host, port))
}

fn number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme.to_ascii_lowercase().as_str() {
        "https" | "wss" => Some(443),
        "http" | "ws" => Some(80),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_url_decides_and_ambiguous_urls_are_not_read() {
        let rules: Vec<HostRule> = ["api.example.com", "**.docs.example.org"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        for text in [
            "https://api.example.com/x?y#z",
            "http://API.example.com.",
            "api.example.com",
            "https://a.docs.example.org:443/",
        ] {
            assert!(is_in(text, &rules), "{text}");
        }
        for text in [
            "https://evil.com/api.example.com",
            "https://api.example.com@evil.com/",
            "https://api.example.com\\@evil.com/",
            "https://evil.com#api.example.com",
            "https://api.example.com:8080/",
            "https://\u{430}pi.example.com/",
            "file://api.example.com/etc/passwd",
            "gopher://api.example.com/",
            "https:///api.example.com",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://api.example.com\t.evil.com/",
            "",
        ] {
            assert!(!is_in(text, &rules), "{text:?}");
        }
    }
}
