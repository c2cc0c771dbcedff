//! The upstream proxy of a policy: where connections to allowed hosts go out.

use super::rule::{InvalidHostRule, denied};
use ironcage_model::{Destination, HostRule, Ports, ProxyServer, ProxyUrl, SecretSource};
use serde::Serialize;

/// Through which proxy connections go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamChoice {
    /// Those of the caller's `HTTPS_PROXY` and `HTTP_PROXY`, where they are set.
    Env,
    /// None.
    Off,
    /// This one.
    Server(ProxyServer),
}

/// What a policy says of the upstream proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamRule {
    /// Which one.
    pub proxy: UpstreamChoice,
    /// Where its user and password come from, as `USER:PASSWORD`.
    pub credentials: Option<SecretSource>,
    /// Hosts that are reached without it.
    pub no_proxy: Vec<HostRule>,
}

impl UpstreamRule {
    /// As a policy writes it, for the user who decides whether to trust it.
    pub(crate) fn in_words(&self) -> String {
        let proxy = match &self.proxy {
            UpstreamChoice::Env => "env".to_owned(),
            UpstreamChoice::Off => "off".to_owned(),
            UpstreamChoice::Server(server) => format!("http://{server}"),
        };
        let credentials = self.credentials.as_ref();
        let credentials = credentials.map(|from| format!(" with {}", super::source_in_words(from)));
        let direct = match self.no_proxy.is_empty() {
            true => String::new(),
            false => format!(", not for {}", super::texts(&self.no_proxy)),
        };
        format!("{proxy}{}{direct}", credentials.unwrap_or_default())
    }
}

/// Reads `env`, `off` or the URL of a proxy.
pub fn upstream(text: &str) -> Result<UpstreamChoice, InvalidHostRule> {
    let wrong = |remedy: &str| InvalidHostRule {
        // Never with a password.
        text: text.rsplit('@').next().unwrap_or_default().to_owned(),
        remedy: remedy.to_owned(),
    };
    match text {
        "env" => return Ok(UpstreamChoice::Env),
        "off" => return Ok(UpstreamChoice::Off),
        _ => {}
    }
    let url = ProxyUrl::read(text).map_err(|error| wrong(error.0))?;
    if url.user_info.is_some() {
        return Err(wrong(
            "user and password do not belong here: put them into HTTPS_PROXY on the host, or set credentials under [network.upstream]",
        ));
    }
    Ok(UpstreamChoice::Server(url.server))
}

/// Reads an entry of `NO_PROXY`: a name with all below it, an address, a network, `*`, each with a
/// port where one is given.
pub fn no_proxy(text: &str) -> Result<HostRule, InvalidHostRule> {
    let host = text.strip_prefix('.').unwrap_or(text);
    let every = |ports| HostRule {
        to: Destination::Any,
        ports,
    };
    let mut rule = match host.strip_prefix('*') {
        Some("") => return Ok(every(Ports::Any)),
        Some(port) if port.starts_with(':') => {
            // Of any name: only its port is of interest.
            every(denied(&format!("a{port}"))?.ports)
        }
        _ => denied(host)?,
    };
    if let Destination::Name(name) = rule.to {
        rule.to = Destination::NameAndBelow(name);
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_no_proxy_are_read_as_programs_take_them() {
        let read = |text| no_proxy(text).unwrap().to_string();
        assert_eq!(read(".Corp.example"), "**.corp.example:*");
        assert_eq!(read("corp.example"), "**.corp.example:*");
        assert_eq!(read("*.corp.example"), "*.corp.example:*");
        assert_eq!(read("db.corp:5432"), "**.db.corp:5432");
        assert_eq!(read("10.0.0.0/8"), "10.0.0.0/8:*");
        assert_eq!(read("::1"), "[::1]:*");
        assert_eq!(read("*"), "every host:*");
        assert_eq!(read("*:22"), "every host:22");
        assert!(no_proxy("169.254/16").is_err() && no_proxy("a*b").is_err());
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        let error = upstream("http://ann:hidden@proxy.corp:3128").unwrap_err();
        assert!(!error.to_string().contains("hidden"), "{error}");
        assert!(matches!(
            upstream("http://proxy.corp:3128"),
            Ok(UpstreamChoice::Server(_))
        ));
        assert_eq!(upstream("off").unwrap(), UpstreamChoice::Off);
        assert!(upstream("socks5://proxy.corp:1080").is_err());
    }
}
