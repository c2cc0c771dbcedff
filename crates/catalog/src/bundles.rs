//! Bundles of hosts that a policy names in one word.
//!
//! The entries lie in `policies/bundles.toml`. Those of package tools follow the user's own
//! settings, which are read when a cage is made.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// The name in policies.
    pub name: &'static str,
    /// Its hosts, as `network.allow` writes them; none where the tool is asked.
    pub hosts: &'static [&'static str],
    /// Whether the tool of that name is asked.
    pub asked: bool,
    /// Labels of host names by which a message takes a denied host for one of the tool's; they
    /// allow nothing.
    pub labels: &'static [&'static str],
    /// Variables of a cage that does not have the bundle: its tool would try again and again.
    pub without: &'static [(&'static str, &'static str)],
    pub why: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/bundles.rs"));

/// The bundle with this name.
pub fn find(name: &str) -> Option<&'static Bundle> {
    ENTRIES.iter().find(|bundle| bundle.name == name)
}

/// Every name, for messages.
pub fn names() -> Vec<&'static str> {
    ENTRIES.iter().map(|bundle| bundle.name).collect()
}
