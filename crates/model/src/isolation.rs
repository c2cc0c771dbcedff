//! The strengths of isolation, by the names users type and read.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a cage is made: an isolation level, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Landlock, seccomp and rlimits on the host's own view: for hosts that forbid namespaces.
    Landlock,
    /// A root of its own in a user and mount namespace, and nothing else apart.
    Chroot,
    /// An OCI runtime of the host (crun, runc or runsc) runs a bundle that is made of the plan.
    Oci,
    /// Every namespace that the kernel has.
    Namespace,
    /// A namespace cage in which a WebAssembly runtime is the only program that is executed.
    Wasm,
    /// A kernel of its own, in a virtual machine that runs inside a namespace cage.
    Microvm,
}

impl Isolation {
    /// Every isolation level, the weakest first.
    pub const ALL: [Isolation; 6] = [
        Isolation::Landlock,
        Isolation::Chroot,
        Isolation::Oci,
        Isolation::Namespace,
        Isolation::Wasm,
        Isolation::Microvm,
    ];

    /// The name used in policies, flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Isolation::Landlock => "landlock",
            Isolation::Chroot => "chroot",
            Isolation::Oci => "oci",
            Isolation::Namespace => "namespace",
            Isolation::Wasm => "wasm",
            Isolation::Microvm => "microvm",
        }
    }

    /// Whether the cage has every namespace of its own.
    pub const fn has_all_namespaces(self) -> bool {
        match self {
            Isolation::Landlock | Isolation::Chroot | Isolation::Oci => false,
            Isolation::Namespace | Isolation::Wasm | Isolation::Microvm => true,
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no isolation has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownIsolation(pub String);

impl fmt::Display for UnknownIsolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Isolation::ALL.map(Isolation::name).join(", ");
        write!(
            f,
            "unknown isolation level `{}`; expected one of {names}",
            self.0
        )
    }
}

impl std::error::Error for UnknownIsolation {}

impl FromStr for Isolation {
    type Err = UnknownIsolation;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Isolation::ALL
            .into_iter()
            .find(|isolation| isolation.name() == text)
            .ok_or_else(|| UnknownIsolation(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_an_unknown_one_is_answered_with_the_list() {
        for isolation in Isolation::ALL {
            assert_eq!(isolation.name().parse(), Ok(isolation));
        }
        let error = "jail".parse::<Isolation>().unwrap_err().to_string();
        assert!(error.contains("`jail`") && error.contains("chroot"));
    }
}
