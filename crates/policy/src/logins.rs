//! Logins of agents that a policy names in one word.
//!
//! The entries lie in `policies/logins.toml`.

use crate::InvalidHostRule;
use crate::network::{host_name, secret_host};
use ironcage_model::{LoginFormat, LoginRule, TokenServer};
use serde::Serialize;

/// A login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Login {
    /// The name in policies.
    pub name: &'static str,
    /// Which form its file has.
    pub format: LoginFormat,
    /// The file, below the home of the user and of the agent.
    pub file: &'static str,
    /// Who gets the access token.
    pub hosts: &'static [&'static str],
    /// Who renews it.
    pub token_url: &'static str,
    /// By which name the agent is known there.
    pub client: &'static str,
    /// Whose it is.
    pub why: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/logins.rs"));

/// The login with this name.
pub fn find(name: &str) -> Option<&'static Login> {
    ENTRIES.iter().find(|login| login.name == name)
}

/// Every name, for messages.
pub fn names() -> Vec<&'static str> {
    ENTRIES.iter().map(|login| login.name).collect()
}

/// A login by its name, as it ships.
///
/// # Errors
/// Where there is none; the text says which there are.
pub fn login(name: &str) -> Result<LoginRule, InvalidHostRule> {
    let known = find(name).ok_or_else(|| InvalidHostRule {
        text: name.to_owned(),
        remedy: format!("a login is one of {}", names().join(", ")),
    })?;
    let hosts = known.hosts.iter();
    Ok(LoginRule {
        name: known.name.to_owned(),
        format: known.format,
        file: None,
        token_server: token_server(known.token_url)?,
        client: known.client.to_owned(),
        hosts: hosts
            .map(|host| secret_host(host))
            .collect::<Result<_, _>>()?,
    })
}

/// Who renews tokens: `https://NAME[:PORT]/PATH`.
pub(crate) fn token_server(text: &str) -> Result<TokenServer, InvalidHostRule> {
    let wrong = || InvalidHostRule {
        text: text.to_owned(),
        remedy: "write https://NAME/PATH, or https://NAME:PORT/PATH".to_owned(),
    };
    let rest = text.strip_prefix("https://").ok_or_else(wrong)?;
    let at = rest.find('/').ok_or_else(wrong)?;
    let (place, path) = rest.split_at(at);
    let (name, port) = match place.split_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)),
        None => (place, Some(443)),
    };
    let plain = path
        .bytes()
        .all(|byte| (0x21..0x7f).contains(&byte) && byte != b'#');
    Ok(TokenServer {
        name: host_name(name)?,
        port: port.filter(|_| plain).ok_or_else(wrong)?,
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_login_that_ships_is_one() {
        for known in ENTRIES {
            let rule = login(known.name).unwrap();
            assert_eq!(rule.token_server.to_string(), known.token_url);
            assert!(std::path::Path::new(known.file).is_relative(), "{known:?}");
        }
        let error = login("gemini").unwrap_err().to_string();
        assert!(error.contains("claude"), "{error}");
    }

    #[test]
    fn who_renews_tokens_proves_a_name() {
        let shown = |text: &str| token_server(text).map(|server| server.to_string());
        assert_eq!(shown("https://a.com/x").unwrap(), "https://a.com/x");
        assert_eq!(
            shown("https://A.com:8443/x").unwrap(),
            "https://a.com:8443/x"
        );
        for wrong in [
            "",
            "http://a.com/x",
            "https://a.com",
            "https://a.com:0/x",
            "https://127.0.0.1/x",
            "https://a.com/x y",
        ] {
            assert!(shown(wrong).is_err(), "{wrong:?}");
        }
    }
}
