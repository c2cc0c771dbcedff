//! Toolchains outside the system's directories: how they are recognised, and which of
//! their parts execute.
//!
//! The entries lie in `policies/toolchains.toml`. `plan` finds out which of them a host has.

use crate::Listed;
use serde::Serialize;

/// A directory that a variable of the caller's may move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Variable {
    pub name: &'static str,
    /// The directory where it is not set, below `~/`.
    pub default: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Toolchain {
    /// Its name in the plan.
    pub name: &'static str,
    /// Patterns of PATH entries.
    pub entries: &'static [&'static str],
    /// What lies beside a PATH entry of this kind, where no pattern can say.
    pub beside: Option<&'static str>,
    /// A link whose target belongs to a toolchain of its own.
    pub follow: Option<&'static str>,
    /// Whether a link in what an agent can write may lead to it.
    pub interpreter: bool,
    /// What of it is readable.
    pub parts: &'static [Listed],
    /// Variables that it needs.
    pub set: &'static [(&'static str, &'static str)],
}

include!(concat!(env!("OUT_DIR"), "/toolchains.rs"));
