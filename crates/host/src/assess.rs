//! Derives from facts about a host how far it can enforce each layer. Pure: no system calls.

use crate::{CgroupHost, Kernel, Privilege};
use ironcage_model::{Enforcement, Layer};
use std::collections::BTreeMap;

/// Which namespaces the kernel was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Namespaces {
    pub(crate) user: bool,
    pub(crate) mount: bool,
    pub(crate) pid: bool,
    pub(crate) net: bool,
    pub(crate) ipc: bool,
    pub(crate) uts: bool,
    pub(crate) cgroup: bool,
    pub(crate) time: bool,
}

impl Namespaces {
    /// A kernel with all of them.
    pub(crate) const ALL: Namespaces = Namespaces {
        user: true,
        mount: true,
        pid: true,
        net: true,
        ipc: true,
        uts: true,
        cgroup: true,
        time: true,
    };
}

/// Switches that keep users from making user namespaces; `None` where the host has no such switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sysctls {
    /// Debian's `kernel.unprivileged_userns_clone`.
    pub(crate) userns_clone: Option<u64>,
    /// Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`.
    pub(crate) apparmor_restrict: Option<u64>,
    /// AppArmor's label of this process, read only where the rule above is in force.
    pub(crate) apparmor_label: Option<String>,
    pub(crate) max_user_namespaces: Option<u64>,
}

/// What is known about a host without trying anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) release: String,
    pub(crate) kernel: Kernel,
    pub(crate) privilege: Privilege,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) landlock_abi: u32,
    pub(crate) seccomp: bool,
    pub(crate) seccomp_notify: bool,
    pub(crate) memory: u64,
    pub(crate) cpus: u32,
    pub(crate) namespaces: Namespaces,
    pub(crate) sysctls: Sysctls,
    pub(crate) cgroup: CgroupHost,
    /// Whether there is swap that no cgroup counts.
    pub(crate) swap_uncounted: bool,
}

/// Something that prevents a layer, and the command that fixes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocker {
    pub(crate) why: String,
    pub(crate) remedy: String,
}

impl Blocker {
    fn new(why: impl Into<String>, remedy: impl Into<String>) -> Blocker {
        Blocker {
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    fn off(self) -> Enforcement {
        Enforcement::Off(format!("{}; {}", self.why, self.remedy))
    }
}

/// How bytes on disk are limited where the kernel does not count them for one cage.
pub const WATCHED_DISK: &str = "tmpfs has a size limit; a watchdog counts writable host directories, and ends a cage over the limit";
/// The same for files.
pub const WATCHED_INODES: &str = "tmpfs has a file count limit; a watchdog counts writable host directories, and ends a cage over the limit";

/// How far this host can enforce each layer. Every layer has an entry.
pub(crate) fn layers(facts: &Facts) -> BTreeMap<Layer, Enforcement> {
    Layer::ALL
        .into_iter()
        .map(|layer| (layer, layer_level(facts, layer)))
        .collect()
}

fn layer_level(facts: &Facts, layer: Layer) -> Enforcement {
    if let Some(blocker) = blocker(facts, layer) {
        return blocker.off();
    }
    match layer {
        // The counters are those of the cage's own user namespace.
        Layer::MountNs
        | Layer::PidNs
        | Layer::NetNs
        | Layer::IpcNs
        | Layer::UtsNs
        | Layer::CgroupNs
        | Layer::TimeNs
        | Layer::Counters => match userns_blocker(facts) {
            Some(_) => Enforcement::Off("needs the user namespace, which is off".into()),
            None => Enforcement::Full,
        },
        Layer::UserNs
        | Layer::Capabilities
        | Layer::NoNewPrivs
        | Layer::Descriptors
        | Layer::Session => Enforcement::Full,
        Layer::Seccomp if !facts.seccomp_notify => Enforcement::Partial(UNREPORTED.into()),
        Layer::Seccomp => Enforcement::Full,
        Layer::Landlock => landlock(facts.landlock_abi),
        Layer::Memory => memory(facts),
        Layer::Pids => limited(facts, "pids", "RLIMIT_NPROC in the user namespace"),
        Layer::Cpu => limited(facts, "cpu", "a set of whole CPUs; no fractions of one"),
        Layer::Disk => Enforcement::Partial(WATCHED_DISK.into()),
        Layer::Inodes => Enforcement::Partial(WATCHED_INODES.into()),
        Layer::Files => Enforcement::Full,
    }
}

/// What prevents a layer by itself, and not through another layer that it needs.
pub(crate) fn blocker(facts: &Facts, layer: Layer) -> Option<Blocker> {
    let namespaces = facts.namespaces;
    let (present, option, since) = match layer {
        Layer::UserNs => return userns_blocker(facts),
        Layer::MountNs => (namespaces.mount, "NAMESPACES", ""),
        Layer::PidNs => (namespaces.pid, "PID_NS", ""),
        Layer::NetNs => (namespaces.net, "NET_NS", ""),
        Layer::IpcNs => (namespaces.ipc, "IPC_NS", ""),
        Layer::UtsNs => (namespaces.uts, "UTS_NS", ""),
        Layer::CgroupNs => (namespaces.cgroup, "CGROUPS", ""),
        Layer::TimeNs => (namespaces.time, "TIME_NS", " (Linux 5.6 or later)"),
        Layer::Seccomp => (facts.seccomp, "SECCOMP_FILTER", ""),
        Layer::Landlock if facts.landlock_abi == 0 => {
            return Some(Blocker::new(
                "the kernel has no Landlock, or Landlock is turned off",
                "add `landlock` to the list in the boot parameter lsm= (see /sys/kernel/security/lsm)",
            ));
        }
        _ => return None,
    };
    (!present).then(|| {
        Blocker::new(
            format!("the kernel was built without CONFIG_{option}"),
            format!("install one with CONFIG_{option}=y{since}"),
        )
    })
}

/// What prevents this process from creating a user namespace.
pub(crate) fn userns_blocker(facts: &Facts) -> Option<Blocker> {
    if !facts.namespaces.user {
        return Some(Blocker::new(
            "the kernel was built without user namespaces",
            "install a kernel built with CONFIG_USER_NS=y",
        ));
    }
    if facts.sysctls.max_user_namespaces == Some(0) {
        return Some(Blocker::new(
            "user.max_user_namespaces is 0",
            "as root: sysctl -w user.max_user_namespaces=15000",
        ));
    }
    if facts.privilege == Privilege::Root {
        return None;
    }
    if facts.sysctls.userns_clone == Some(0) {
        return Some(Blocker::new(
            "kernel.unprivileged_userns_clone is 0",
            "as root: sysctl -w kernel.unprivileged_userns_clone=1",
        ));
    }
    // AppArmor allows a program whose own profile says `userns,`; its label is then not the plain
    // `unconfined`. Only a trial shows whether the profile says so.
    let unconfined = match facts.sysctls.apparmor_label.as_deref() {
        None => true,
        Some(label) => label == "unconfined",
    };
    if matches!(facts.sysctls.apparmor_restrict, Some(1..)) && unconfined {
        return Some(Blocker::new(
            "AppArmor denies capabilities in the user namespaces of programs without a profile \
                  (kernel.apparmor_restrict_unprivileged_userns is 1)",
            apparmor_remedy(),
        ));
    }
    None
}

/// Both ways around Ubuntu's restriction, the narrow one first.
pub(crate) fn apparmor_remedy() -> String {
    "as root, for ironcage alone: printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\n\
     profile ironcage /**/ironcage flags=(unconfined) {\\n  userns,\\n}\\n' > /etc/apparmor.d/ironcage \
     && apparmor_parser -r /etc/apparmor.d/ironcage; or, for every program: \
     sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        .into()
}

/// The filter is enforced, and nothing receives its denials.
pub(crate) const UNREPORTED: &str = "system calls are refused, but denials cannot be reported: \
     a seccomp filter around this process already has a listener (WSL2's init has one)";

/// What the versions of Landlock brought that a cage uses.
fn landlock(abi: u32) -> Enforcement {
    let missing = match abi {
        0 => return Enforcement::Off("the kernel has no Landlock".into()),
        1 => {
            "no control over truncation, renames between directories are always denied; only namespaces restrict signals and abstract sockets (Linux 6.12 has all of it)"
        }
        2 => {
            "no control over truncation, which only read-only mounts prevent; only namespaces restrict signals and abstract sockets (Linux 6.12 has all of it)"
        }
        3..=5 => "only namespaces restrict signals and abstract sockets (Linux 6.12 has scopes)",
        _ => return Enforcement::Full,
    };
    Enforcement::Partial(format!("ABI {abi}: {missing}"))
}

fn memory(facts: &Facts) -> Enforcement {
    let otherwise = "RLIMIT_DATA for each process and a watchdog over the total";
    match limited(facts, "memory", otherwise) {
        Enforcement::Full if facts.swap_uncounted => Enforcement::Partial(format!(
            "the cgroup limits what is in memory; {otherwise} (the kernel does not count swap by cgroup: boot with swapaccount=1)"
        )),
        level => level,
    }
}

fn limited(facts: &Facts, controller: &str, otherwise: &str) -> Enforcement {
    let has = match &facts.cgroup {
        CgroupHost::V2 { controllers, .. } => controllers.iter().any(|name| name == controller),
        CgroupHost::V1(v1) => v1.controllers.contains_key(controller),
        CgroupHost::None { .. } => false,
    };
    if has {
        return Enforcement::Full;
    }
    let why = match &facts.cgroup {
        CgroupHost::None { why } => why.to_string(),
        _ => format!("the cgroup controller `{controller}` is not enabled for this process"),
    };
    Enforcement::Partial(format!("{otherwise} ({why})"))
}

#[cfg(test)]
#[path = "assess_tests.rs"]
pub(crate) mod tests;
