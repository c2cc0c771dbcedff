//! Credential variables of the caller that the cage does not get: which flags pass them.

use crate::Request;
use crate::command::matches;
use crate::network::Network;
use ironcage_model::{HOST_NAME, HostName};
use ironcage_policy::Policy;
use ironcage_policy::keys::{self, Key};
use std::fmt::Write as _;

/// Notes each known variable that is set and about which the policy says nothing.
pub(crate) fn not_passed(
    policy: &Policy,
    network: Option<&Network>,
    request: &Request,
) -> Vec<String> {
    let value = |name: &str| {
        let mut found = request.env.iter().filter(|(known, _)| known == name);
        found.next().and_then(|(_, value)| value.to_str())
    };
    let passed = |name: &str| {
        let mut rules = policy.env.iter();
        rules.any(|rule| matches(rule.value.name(), name.as_bytes()))
    };
    let secret = |name: &str| {
        let mut secrets = policy.network.secrets.iter();
        secrets.any(|secret| secret.value.name == name)
    };
    let mut notes = Vec::new();
    for key in keys::ENTRIES {
        let name = key.variable;
        let is_set = value(name).is_some_and(|value| !value.is_empty());
        let aws = key.flag.is_some() && policy.network.aws.is_some();
        if !is_set || passed(name) || secret(name) || aws {
            continue;
        }
        let base_url = key.base_url.and_then(|name| Some((name, value(name)?)));
        let flags = match base_url.filter(|(_, url)| !url.is_empty()) {
            Some((variable, url)) => elsewhere(key, variable, url, passed(variable)),
            None => flags(key, network),
        };
        notes.push(format!(
            "{name} is set in your environment, and the cage does not get it; pass it with {flags}"
        ));
    }
    notes
}

/// The flags that pass a key by way of the egress proxy to the hosts of its service.
fn flags(key: &Key, network: Option<&Network>) -> String {
    let name = key.variable;
    if let Some(flag) = key.flag {
        return format!("{flag} --allow-host HOST");
    }
    if let Some(bundle) = key.bundle {
        return format!(
            "--secret {name}@HOST --allow-bundle {bundle}, where HOST is the registry it is for"
        );
    }
    let mut text = format!("--secret {name}@{}", key.hosts.join(","));
    for host in key.hosts {
        if !network.is_some_and(|network| allows(network, host)) {
            let _ = write!(text, " --allow-host {host}");
        }
    }
    text
}

/// Whether a rule allows connections to a host.
fn allows(network: &Network, host: &str) -> bool {
    let Ok(name) = HostName::from_ascii(host.as_bytes()) else {
        return false;
    };
    let mut rules = network.allow.iter().map(|item| &item.what.rule);
    rules.any(|rule| rule.knows(&name))
}

/// The flags for a service that the user has elsewhere, such as a gateway or a local model.
fn elsewhere(key: &Key, variable: &str, url: &str, passed: bool) -> String {
    let name = key.variable;
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // What stands before it may be a password.
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, Some(port)),
        _ => (authority, None),
    };
    let port_or = |default: &str| port.unwrap_or(default).to_owned();
    let loopback = host == "localhost" || host == "[::1]" || host.starts_with("127.");
    if loopback {
        let port = port_or(if scheme == "http" { "80" } else { "443" });
        let path = rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("");
        let at = format!("http://{HOST_NAME}:{port}");
        return format!("-e {variable}={at}{path} --secret {name}@{at} --allow-host-port {port}");
    }
    let variable = match passed {
        true => String::new(),
        false => format!("-e {variable} "),
    };
    let at = match port {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    format!("{variable}--secret {name}@{at} --allow-host {at}")
}
