//! Credential variables of well-known services.
//!
//! The entries lie in `policies/keys.toml`.

use serde::Serialize;

/// A credential variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Key {
    pub variable: &'static str,
    /// The hosts that get its value; none where the user's settings of a tool name them.
    pub hosts: &'static [&'static str],
    /// The bundle of such a tool.
    pub bundle: Option<&'static str>,
    /// The flag that passes it, where that is not `--secret`.
    pub flag: Option<&'static str>,
    /// The variable by which a user sends the agent to other hosts.
    pub base_url: Option<&'static str>,
    pub why: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/keys.rs"));

/// The entry of a variable.
pub fn find(variable: &str) -> Option<&'static Key> {
    ENTRIES.iter().find(|key| key.variable == variable)
}
