//! Agents' logins that a policy can name, from `policies/logins.toml`.

use crate::InvalidHostRule;
use crate::network::{host_name, requests_to, secret_host};
use ironcage_model::{HostRule, HttpRule, LoginRule, TokenServer};

pub use ironcage_catalog::logins::*;

/// A login by its name, as it ships.
///
/// # Errors
/// If the login is unknown; the message lists the known ones.
pub fn login(name: &str) -> Result<LoginRule, InvalidHostRule> {
    let known = find(name).ok_or_else(|| InvalidHostRule {
        text: name.to_owned(),
        remedy: format!("expected one of {}", names().join(", ")),
    })?;
    let hosts = known.hosts.iter().map(|host| secret_host(host));
    let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
    Ok(LoginRule {
        requests: shipped_requests(name, &hosts)?,
        hosts,
        name: known.name.to_owned(),
        format: known.format,
        file: None,
        token_server: token_server(known.token_url)?,
        client: known.client.to_owned(),
    })
}

/// The requests that get the token of a login, to other hosts than those that ship.
pub(crate) fn shipped_requests(
    name: &str,
    hosts: &[HostRule],
) -> Result<Vec<HttpRule>, InvalidHostRule> {
    let shipped = find(name).map_or(&[][..], |known| known.requests);
    let mut rules = Vec::new();
    for text in shipped {
        rules.extend(requests_to(hosts, text)?);
    }
    Ok(rules)
}

/// Who renews tokens: `https://NAME[:PORT]/PATH`.
pub(crate) fn token_server(text: &str) -> Result<TokenServer, InvalidHostRule> {
    let wrong = || InvalidHostRule {
        text: text.to_owned(),
        remedy: "expected https://NAME/PATH or https://NAME:PORT/PATH".to_owned(),
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
