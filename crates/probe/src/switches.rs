//! On which parts of Ironcage a probe's failure rests, by the names of [`Switch`].
//!
//! A probe says in words what should stop it in any sandbox. This is the same for Ironcage, in a
//! form that `ironcage probe matrix` can try: with all parts of a line left out the probe gets
//! through, and with one of them alone it is seen whether that one stops it.

use ironcage_model::Layer::{
    self, Capabilities, Counters, Cpu, Descriptors, Disk, Files, Inodes, IpcNs, Landlock, Memory,
    MountNs, NetNs, NoNewPrivs, PidNs, Pids, Seccomp, Session, UserNs, UtsNs,
};
use ironcage_model::Switch;

/// The layers behind a probe.
const LAYERS: &[(&[&str], &[Layer])] = &[
    (
        &[
            "FS-01", "FS-01b", "FS-10", "FS-11", "FS-15", "FS-16", "FS-21",
        ],
        &[MountNs],
    ),
    (
        &["FD-08", "IP-02", "IP-02d", "IP-04", "KI-05", "KI-07"],
        &[MountNs],
    ),
    (
        &["FS-02", "FS-03", "FS-07", "FS-22", "FS-23"],
        &[MountNs, Landlock],
    ),
    (
        &["PS-01", "PS-01r", "PS-02", "PS-05", "PS-08"],
        &[MountNs, Landlock],
    ),
    (&["FS-24"], &[Descriptors, Landlock]),
    (&["FS-05r"], &[MountNs, Seccomp, Counters, Landlock]),
    (&["FS-08"], &[Capabilities, Seccomp, UserNs]),
    (&["FS-12"], &[Capabilities, Seccomp, MountNs, Landlock]),
    (
        &["FS-13", "FS-14"],
        &[Capabilities, Seccomp, UserNs, Landlock],
    ),
    (&["FD-05", "FD-06", "FD-07", "FD-09"], &[Descriptors]),
    (&["FD-01"], &[Descriptors, UserNs]),
    (&["FD-02"], &[Descriptors, Landlock, UserNs]),
    (&["FD-03"], &[Descriptors, PidNs, Landlock, UserNs]),
    (&["FD-04"], &[Descriptors, Capabilities, Seccomp, UserNs]),
    (&["PR-01"], &[PidNs]),
    (&["PR-14"], &[PidNs, UserNs, Capabilities]),
    (
        &["PR-02", "PR-03"],
        &[PidNs, UserNs, Landlock, Capabilities],
    ),
    (
        &["PR-04", "PR-05", "PR-07"],
        &[PidNs, UserNs, Landlock, Capabilities, Seccomp],
    ),
    (&["PR-06", "PR-08"], &[PidNs, UserNs, Landlock]),
    (&["PR-13"], &[Capabilities, Seccomp, UserNs]),
    (&["IP-01", "IP-01d"], &[NetNs, Landlock]),
    (&["IP-03", "IP-06"], &[IpcNs, UserNs]),
    (&["IP-05"], &[IpcNs]),
    (
        &[
            "NE-01", "NE-02", "NE-03", "NE-04", "NE-06", "NE-07", "NE-13", "NE-15", "NE-19",
        ],
        &[NetNs],
    ),
    (&["NE-08", "NE-09", "NE-12"], &[Seccomp]),
    (&["NE-10", "NE-11"], &[Seccomp, Capabilities, UserNs]),
    (
        &["SY-01", "SY-02", "SY-05", "SY-06", "SY-25"],
        &[Seccomp, Counters],
    ),
    (&["SY-03", "SY-04"], &[Seccomp, Counters, Landlock]),
    (
        &[
            "SY-07", "SY-09", "SY-12", "SY-13", "SY-14", "SY-16", "SY-17", "SY-21", "SY-22",
            "SY-23",
        ],
        &[Seccomp],
    ),
    (&["SY-08"], &[Seccomp, NetNs, Landlock]),
    (&["SY-11", "SY-18"], &[Seccomp, Capabilities, UserNs]),
    (&["SY-19"], &[NoNewPrivs]),
    (&["SY-20"], &[Capabilities]),
    (
        &["KI-01", "KI-02", "KI-03", "KI-04"],
        &[MountNs, Capabilities, Landlock],
    ),
    (&["KI-06"], &[MountNs, Capabilities]),
    (&["KI-09"], &[MountNs, PidNs, Landlock, Capabilities]),
    (&["SE-03"], &[PidNs]),
    (&["SE-04"], &[UtsNs]),
    (&["SE-05", "SE-06", "SU-03", "SU-04", "SU-06"], &[MountNs]),
    (&["SE-07"], &[Disk, Seccomp]),
    (&["TT-02"], &[Session]),
    (&["TT-01", "TT-03"], &[Session, Seccomp]),
    (&["RS-01"], &[Pids]),
    (&["RS-02", "RS-02t", "RS-02s"], &[Memory]),
    (&["RS-03", "RS-03m"], &[Disk]),
    (&["RS-04", "RS-04m"], &[Inodes]),
    (&["RS-05"], &[Files]),
    (&["RS-06"], &[Capabilities, Cpu, UserNs]),
    (&["RS-09", "RS-09s"], &[Cpu]),
    (&["RS-10"], &[Seccomp]),
    (&["LF-01", "LF-05"], &[PidNs]),
    // Only an ordinary user can show it.
    (&["SU-10"], &[Counters, IpcNs]),
    (&["SU-08"], &[PidNs, NetNs, UserNs, Landlock]),
];

/// What stands beside the layers.
const OTHERS: &[(&str, &[Switch])] = &[
    ("PR-09", &[Switch::Unreadable, Switch::Layer(Seccomp)]),
    ("PR-10", &[Switch::Unreadable, Switch::Layer(Seccomp)]),
    ("SE-01", &[Switch::Environment]),
    ("LF-02", &[Switch::Tether]),
    ("LF-04", &[Switch::Deadline]),
];

/// The parts of Ironcage behind a probe; none where no part can be left out.
pub(crate) fn of(id: &str) -> Vec<Switch> {
    let layers = LAYERS
        .iter()
        .find(|(ids, _)| ids.contains(&id))
        .into_iter()
        .flat_map(|(_, layers)| layers.iter().copied().map(Switch::Layer));
    let others = OTHERS
        .iter()
        .find(|(other, _)| *other == id)
        .into_iter()
        .flat_map(|(_, switches)| switches.iter().copied());
    layers.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn every_name_is_a_probe_and_stands_in_one_line() {
        let layers = LAYERS.iter().flat_map(|(ids, _)| ids.iter());
        let mut all: Vec<&str> = layers.copied().collect();
        all.extend(OTHERS.iter().map(|(id, _)| *id));
        for (index, id) in all.iter().enumerate() {
            assert!(catalogue::find(id).is_some(), "{id} is no probe");
            assert!(!all[..index].contains(id), "{id} stands there twice");
        }
    }
}
