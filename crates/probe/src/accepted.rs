//! Surfaces that stay open by design, each with the reason and what stands behind it.

use serde::Serialize;

#[derive(Debug, Clone, Copy, Serialize)]
pub struct AcceptedSurface {
    /// The probe that finds it open.
    pub id: &'static str,
    /// Why it is not closed.
    pub reason: &'static str,
    /// What holds if it is used.
    pub behind: &'static str,
}

/// The table.
pub const SURFACES: &[AcceptedSurface] = &[
    AcceptedSurface {
        id: "SY-15",
        reason: "no list of allowed programs is promised: interpreters, compilers and package \
                 managers run code that they have just written",
        behind: "a program from memory is held by the same namespaces, filter and limits as one from a file",
    },
    AcceptedSurface {
        id: "KI-08",
        reason: "a bind mount shows the device and the path it comes from; the kernel has no way to hide that",
        behind: "names only: the mount namespace shows nothing behind them",
    },
    AcceptedSurface {
        id: "RS-09s",
        reason: "without a cgroup the kernel has no means to hold a share of one processor; with \
                 one, as root or where it is delegated, it is held",
        behind: "whole processors are held everywhere (RS-09), and the plan says `partial`",
    },
];

/// Why the surface of this probe is accepted, if it is.
pub fn reason(id: &str) -> Option<&'static AcceptedSurface> {
    SURFACES.iter().find(|entry| entry.id == id)
}
