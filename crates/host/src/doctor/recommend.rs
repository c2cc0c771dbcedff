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
pub(crate) const RECOMMENDATIONS: [Recommendation; 7] = [
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
        risk: "a place where a process file system or a network namespace of one's own is refused",
        backend: "chroot",
        available: true,
        why: "a root of its own in a user and mount namespace; processes are shared with the host, there is no loopback",
    },
    Recommendation {
        risk: "a host where user namespaces cannot be had, and `sudo ironcage setup` cannot change that",
        backend: "landlock",
        available: true,
        why: "needs no namespaces but Linux 6.12; the view is the host's with denied access, and nothing in a writable directory is protected",
    },
    Recommendation {
        risk: "a host where an OCI runtime has to make every container",
        backend: "oci",
        available: true,
        why: "the same view and limits, made by crun: where containers have to be made by a runtime that is reviewed; no leases, no network rules, no Landlock",
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
