//! Logins of agents that a policy names in one word.
//!
//! The entries lie in `policies/logins.toml`.

use ironcage_model::LoginFormat;
use serde::Serialize;

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
    /// Which requests get it: methods and a path.
    pub requests: &'static [&'static str],
    pub token_url: &'static str,
    /// By which name the agent is known there.
    pub client: &'static str,
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
