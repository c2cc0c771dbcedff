//! Bundles of hosts that a policy names in one word.
//!
//! The entries lie in `policies/bundles.toml`. Those of package tools hold no hosts: the tool
//! is asked for the user's own settings when a cage is made.

use serde::Serialize;

/// A bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// The name in policies.
    pub name: &'static str,
    /// Its hosts, as `network.allow` writes them; none where the tool is asked.
    pub hosts: &'static [&'static str],
    /// Whether the tool of that name is asked.
    pub asked: bool,
    /// What it is for.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_of_a_bundle_is_one_in_its_normal_form() {
        for bundle in ENTRIES {
            for host in bundle.hosts {
                let rule = crate::allowed(host).unwrap();
                assert_eq!(rule.to_string(), *host, "{}", bundle.name);
            }
        }
        assert!(find("github").is_some() && find("nothing").is_none());
    }

    #[test]
    fn every_bundle_of_a_command_exists() {
        for entry in crate::commands::ENTRIES {
            for name in entry.bundles {
                assert!(find(name).is_some(), "{}: {name}", entry.command);
            }
        }
    }
}
