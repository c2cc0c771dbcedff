//! Which backend for which risk. Only what exists is recommended for use today.

use serde::Serialize;

/// Advice for one kind of risk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Recommendation {
    /// What is to be run.
    pub risk: &'static str,
    /// The backend made for it.
    pub backend: &'static str,
    /// Whether this version has that backend.
    pub available: bool,
    /// Why this one, and what to do while it is not there.
    pub why: &'static str,
}

/// The table, from the least risk to the greatest.
pub(crate) const RECOMMENDATIONS: [Recommendation; 6] = [
    Recommendation {
        risk: "your own coding agent or scripts, on your own machine",
        backend: "namespace",
        available: true,
        why: "all layers, no daemon, no privileges, starts in milliseconds; the kernel is shared",
    },
    Recommendation {
        risk: "model-written code and packages that you have not read",
        backend: "namespace",
        available: true,
        why: "profile `strict`: no toolchains, no identity, nothing kept; add `--syscalls minimal` for a program that starts no others, which leaves little of the kernel to attack",
    },
    Recommendation {
        risk: "a host where user namespaces cannot be had",
        backend: "landlock",
        available: false,
        why: "needs no namespaces; not in this version: mend the host instead, as the findings say",
    },
    Recommendation {
        risk: "images and tools that are built for containers",
        backend: "oci",
        available: false,
        why: "runs a plan under crun, runsc or kata; not in this version",
    },
    Recommendation {
        risk: "small pure functions, by the thousand",
        backend: "wasm",
        available: false,
        why: "no system calls at all; not in this version: use `namespace` with profile `strict`",
    },
    Recommendation {
        risk: "code of strangers, several customers on one host, attacks on the kernel expected",
        backend: "microvm",
        available: false,
        why: "a kernel of its own behind KVM; not in this version: use a virtual machine of your own around `namespace`",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_backend_that_exists_is_called_available() {
        for entry in RECOMMENDATIONS {
            assert_eq!(entry.available, entry.backend == "namespace");
            assert_eq!(entry.why.contains("not in this version"), !entry.available);
        }
    }
}
