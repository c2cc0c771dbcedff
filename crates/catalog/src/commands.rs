//! Which profile a command gets by its name.

use serde::Serialize;

/// A command and its profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CommandProfile {
    /// The command's base name.
    pub command: &'static str,
    pub profile: &'static str,
    /// Bundles of hosts that it comes with.
    pub bundles: &'static [&'static str],
    /// Credential variables of its vendor, which it gets by way of the egress proxy.
    pub keys: &'static [&'static str],
    /// Why it gets that one.
    pub why: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/commands.rs"));

/// The profile for a command, by its base name without a version at the end (`python3.12`).
pub fn profile_for(command: &std::ffi::OsStr) -> Option<&'static CommandProfile> {
    let base = std::path::Path::new(command).file_name()?.to_str()?;
    let find = |name: &str| {
        ENTRIES
            .binary_search_by(|entry| entry.command.cmp(name))
            .ok()
            .and_then(|index| ENTRIES.get(index))
    };
    find(base).or_else(|| {
        let bare = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        if bare.is_empty() { None } else { find(bare) }
    })
}
