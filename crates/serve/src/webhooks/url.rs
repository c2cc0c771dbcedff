//! Where a webhook is: its address, and which addresses whose webhooks may have.

use axum::http::Uri;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Bytes of an address.
const LONGEST: usize = 2048;

/// Why a text is not the address of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidUrl {
    #[error("expected https://HOST[:PORT]/PATH of at most {LONGEST} bytes")]
    Syntax,
    #[error("it has a user or a password")]
    User,
}

/// The address of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct HookUrl {
    text: String,
    pub(crate) tls: bool,
    /// A name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) path: String,
}

impl FromStr for HookUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<HookUrl, InvalidUrl> {
        if text.len() > LONGEST || text.contains('#') {
            return Err(InvalidUrl::Syntax);
        }
        let uri: Uri = text.parse().map_err(|_| InvalidUrl::Syntax)?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(InvalidUrl::Syntax),
        };
        let authority = uri.authority().ok_or(InvalidUrl::Syntax)?;
        if authority.as_str().contains('@') {
            return Err(InvalidUrl::User);
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        // What is behind the host has to be a port; `example.com:` has none.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(rest) => {
                let port = rest.strip_prefix(':').and_then(|port| port.parse().ok());
                port.filter(|port| *port != 0).ok_or(InvalidUrl::Syntax)?
            }
            None => return Err(InvalidUrl::Syntax),
        };
        if host.is_empty() {
            return Err(InvalidUrl::Syntax);
        }
        Ok(HookUrl {
            text: text.to_owned(),
            tls,
            host: host.to_ascii_lowercase(),
            port,
            path: uri
                .path_and_query()
                .map_or_else(|| "/".to_owned(), ToString::to_string),
        })
    }
}

impl TryFrom<String> for HookUrl {
    type Error = InvalidUrl;

    fn try_from(text: String) -> Result<HookUrl, InvalidUrl> {
        text.parse()
    }
}

impl From<HookUrl> for String {
    fn from(url: HookUrl) -> String {
        url.text
    }
}

impl fmt::Display for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl HookUrl {
    /// The address, where it is written as one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Host and port as the rules of a ceiling have them.
    pub(crate) fn rule(&self) -> String {
        match self.address() {
            Some(IpAddr::V6(address)) => format!("[{address}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// The field `Host` of its requests.
    pub(super) fn authority(&self) -> String {
        let host = match self.address() {
            Some(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.clone(),
        };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// Why a webhook of a tenant does not get to an address; `None` for those of the internet.
pub(crate) fn not_public(address: IpAddr) -> Option<&'static str> {
    ironcage_model::special(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_host_and_perhaps_a_port_and_a_path() {
        for (text, tls, host, port, path, authority) in [
            (
                "https://a.example/x?y=1",
                true,
                "a.example",
                443,
                "/x?y=1",
                "a.example",
            ),
            (
                "https://A.example:8443",
                true,
                "a.example",
                8443,
                "/",
                "a.example:8443",
            ),
            (
                "http://127.0.0.1:9000/h",
                false,
                "127.0.0.1",
                9000,
                "/h",
                "127.0.0.1:9000",
            ),
            (
                "https://[2001:db8::1]/",
                true,
                "2001:db8::1",
                443,
                "/",
                "[2001:db8::1]",
            ),
        ] {
            let url: HookUrl = text.parse().unwrap();
            assert_eq!(
                (
                    url.tls,
                    url.host.as_str(),
                    url.port,
                    url.path.as_str(),
                    url.authority().as_str()
                ),
                (tls, host, port, path, authority),
                "{text}"
            );
            assert_eq!(url.to_string(), text);
        }
        for text in [
            "",
            "a.example/x",
            "ftp://a.example/",
            "file:///etc/passwd",
            "https://",
            "https:///x",
            "https://a.example:0/",
            "https://a.example:99999/",
            "https://a.example:/",
            "https://a.example/#f",
            "https://a b/",
            "https://a.example/\r\nX: y",
        ] {
            assert_eq!(text.parse::<HookUrl>(), Err(InvalidUrl::Syntax), "{text}");
        }
        let user = "https://user:password@a.example/".parse::<HookUrl>();
        assert_eq!(user, Err(InvalidUrl::User));
        let long = format!("https://a.example/{}", "x".repeat(LONGEST));
        assert!(long.parse::<HookUrl>().is_err());
    }

    #[test]
    fn addresses_of_the_host_and_its_networks_are_not_public() {
        for address in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "fd00::1",
            "fe80::1",
            "64:ff9b::7f00:1",
        ] {
            assert!(not_public(address.parse().unwrap()).is_some(), "{address}");
        }
        for address in ["9.9.9.9", "2620:fe::fe"] {
            assert!(not_public(address.parse().unwrap()).is_none(), "{address}");
        }
    }
}
