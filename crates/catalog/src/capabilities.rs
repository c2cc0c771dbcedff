//! Capabilities: which can be given back inside a cage, and why the others cannot.

use serde::Serialize;

/// One capability of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Its kernel name, such as `CAP_CHOWN`.
    pub name: &'static str,
    pub number: u8,
    /// Whether a cage can have it.
    pub allowed: bool,
    /// What it does inside, or why it is refused.
    pub why: &'static str,
    /// The group of system calls that it is useless without.
    pub group: Option<&'static str>,
    /// What an init system needs it for, where a booted cage has it.
    pub boot: Option<&'static str>,
}

include!(concat!(env!("OUT_DIR"), "/capabilities.rs"));

/// The capability with this name, with or without `CAP_`, in any case.
pub fn find(name: &str) -> Option<&'static Capability> {
    let bare = |name: &str| {
        let upper = name.to_ascii_uppercase();
        upper
            .strip_prefix("CAP_")
            .map(str::to_owned)
            .unwrap_or(upper)
    };
    let wanted = bare(name);
    ENTRIES
        .iter()
        .find(|capability| bare(capability.name) == wanted)
}

/// The capability with this number.
pub fn by_number(number: u8) -> Option<&'static Capability> {
    ENTRIES
        .iter()
        .find(|capability| capability.number == number)
}
