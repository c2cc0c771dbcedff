//! Recommends an isolation level for each risk; only those that exist in this version.

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
pub(crate) const RECOMMENDATIONS: [Recommendation; 7] = [
    Recommendation {
        risk: "your own coding agent or scripts, on your own machine",
        backend: "namespace",
        available: true,
        why: "all layers, no daemon, no privileges, starts in milliseconds; shares the host's kernel",
    },
    Recommendation {
        risk: "model-written code and packages that you have not read",
        backend: "namespace",
        available: true,
        why: "profile `strict`: no toolchains, no identity, nothing kept; add `--syscalls minimal` for a program that starts no others, which exposes little of the kernel",
    },
    Recommendation {
        risk: "a container that denies a new /proc or network namespace",
        backend: "chroot",
        available: true,
        why: "its own root in a user and mount namespace; shares processes with the host, and has no loopback",
    },
    Recommendation {
        risk: "a host without user namespaces, where `sudo ironcage setup` cannot enable them",
        backend: "landlock",
        available: true,
        why: "needs Linux 6.12 but no namespaces; the view is the host's with denied access, and nothing in a writable directory is protected",
    },
    Recommendation {
        risk: "a host where an OCI runtime must create every container",
        backend: "oci",
        available: true,
        why: "the same view and limits, created by an OCI runtime; no leases, no network rules, no Landlock",
    },
    Recommendation {
        risk: "small pure functions, by the thousand",
        backend: "wasm",
        available: true,
        why: "WASI commands have no system calls, and their runtime is in a namespace cage; they need to be built for WASI",
    },
    Recommendation {
        risk: "hostile code, several customers on one host, kernel attacks expected",
        backend: "microvm",
        available: true,
        why: "its own kernel, in QEMU inside a namespace cage; slow where it is emulated; `ironcage setup microvm` makes the guest",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::Isolation;

    #[test]
    fn only_backends_that_exist_are_called_available_and_each_of_them_is_named() {
        for isolation in Isolation::ALL {
            let name = isolation.name();
            assert!(RECOMMENDATIONS.iter().any(|entry| entry.backend == name));
        }
        for entry in RECOMMENDATIONS {
            assert_eq!(entry.available, entry.backend.parse::<Isolation>().is_ok());
            assert_eq!(entry.why.contains("not in this version"), !entry.available);
        }
    }
}
