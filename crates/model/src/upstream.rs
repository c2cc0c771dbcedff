//! Upstream proxies: HTTP proxies of the user's network, through which the egress proxy connects.

use crate::network::HostName;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The host of an upstream proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyHost {
    /// By name: the host's own resolver is asked for it.
    Name(HostName),
    /// By address.
    Address(IpAddr),
}

/// An upstream proxy, without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyServer {
    /// Its host.
    pub host: ProxyHost,
    /// Its port.
    pub port: u16,
}

/// Why text is not the URL of an upstream proxy. It never repeats the text, which may hold a
/// password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidProxyUrl(pub &'static str);

impl fmt::Display for InvalidProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidProxyUrl {}

/// A proxy's URL as programs take it: `http://[USER:PASSWORD@]HOST[:PORT]`, the scheme optional.
#[derive(Debug, PartialEq, Eq)]
pub struct ProxyUrl<'a> {
    /// Where it is.
    pub server: ProxyServer,
    /// User and password, as they are written: with `%` escapes.
    pub user_info: Option<&'a str>,
}

impl<'a> ProxyUrl<'a> {
    /// Reads a URL.
    ///
    /// # Errors
    /// Where it is not one of an HTTP proxy that is reached without TLS.
    pub fn read(text: &'a str) -> Result<Self, InvalidProxyUrl> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme, rest),
            None => ("http", text),
        };
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(InvalidProxyUrl(
                "expected http://HOST:PORT; proxies with TLS and SOCKS proxies are not supported",
            ));
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // A password may have an @ of its own, a host never has.
        let (user_info, host) = match rest.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, rest),
        };
        let port = |text: &str| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or(InvalidProxyUrl("expected a port from 1 to 65535"))
        };
        const HOST: InvalidProxyUrl = InvalidProxyUrl("expected http://HOST:PORT");
        let (host, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(HOST)?;
                match rest.strip_prefix(':') {
                    Some(digits) => (host, port(digits)?),
                    None if rest.is_empty() => (host, 80),
                    None => return Err(HOST),
                }
            }
            None => match host.split_once(':') {
                Some((host, digits)) => (host, port(digits)?),
                None => (host, 80),
            },
        };
        let host = match host.parse::<IpAddr>() {
            Ok(address) => ProxyHost::Address(address.to_canonical()),
            Err(_) => ProxyHost::Name(HostName::from_ascii(host.as_bytes()).map_err(|_| HOST)?),
        };
        Ok(ProxyUrl {
            server: ProxyServer { host, port },
            user_info,
        })
    }
}

impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            ProxyHost::Name(name) => write!(f, "{name}:{}", self.port),
            ProxyHost::Address(address) => std::net::SocketAddr::new(*address, self.port).fmt(f),
        }
    }
}

impl FromStr for ProxyServer {
    type Err = InvalidProxyUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ProxyUrl { server, user_info } = ProxyUrl::read(text)?;
        match user_info {
            None => Ok(server),
            Some(_) => Err(InvalidProxyUrl("expected no user and password here")),
        }
    }
}

impl Serialize for ProxyServer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ProxyServer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The variables that name upstream proxies, the one that counts first.
pub const HTTPS_PROXY: [&str; 2] = ["https_proxy", "HTTPS_PROXY"];
/// The same for plain HTTP.
pub const HTTP_PROXY: [&str; 2] = ["http_proxy", "HTTP_PROXY"];
/// The variables that list hosts which are reached directly.
pub const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_programs_take_them() {
        let read = |text| {
            let url = ProxyUrl::read(text).unwrap();
            (url.server.to_string(), url.user_info.map(str::to_owned))
        };
        let plain = |text: &str| (text.to_owned(), None);
        assert_eq!(read("http://Proxy.Corp:3128/"), plain("proxy.corp:3128"));
        assert_eq!(read("proxy.corp:3128"), plain("proxy.corp:3128"));
        assert_eq!(read("HTTP://proxy.corp"), plain("proxy.corp:80"));
        assert_eq!(read("http://[::1]:3128"), plain("[::1]:3128"));
        assert_eq!(read("http://10.0.0.1:8080"), plain("10.0.0.1:8080"));
        let (server, user) = read("http://ann:p%40ss@w@proxy.corp:1");
        assert_eq!(
            (server.as_str(), user.as_deref()),
            ("proxy.corp:1", Some("ann:p%40ss@w"))
        );
    }

    #[test]
    fn what_is_no_http_proxy_is_refused_without_its_text() {
        for text in [
            "https://ann:hidden@proxy.corp:3128",
            "socks5://ann:hidden@proxy.corp:1080",
            "http://ann:hidden@proxy.corp:0",
            "http://ann:hidden@proxy corp:1",
            "http://ann:hidden@proxy.corp:3128/path",
            "",
        ] {
            let error = ProxyUrl::read(text).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
        assert!("ann:hidden@proxy.corp:1".parse::<ProxyServer>().is_err());
    }
}
