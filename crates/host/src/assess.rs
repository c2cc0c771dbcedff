//! From facts about a host to how far each layer can hold on it. Pure: no system call.

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
    /// `user.max_user_namespaces`.
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
}

/// Something in the way, and the command that takes it away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocker {
    pub(crate) why: String,
    pub(crate) remedy: String,
}

impl Blocker {
    fn sentence(&self) -> String {
        format!("{}; {}", self.why, self.remedy)
    }
}

/// How far each layer can hold. Every layer has an entry.
pub(crate) fn layers(facts: &Facts) -> BTreeMap<Layer, Enforcement> {
    Layer::ALL
        .into_iter()
        .map(|layer| (layer, layer_level(facts, layer)))
        .collect()
}

fn layer_level(facts: &Facts, layer: Layer) -> Enforcement {
    let namespaces = facts.namespaces;
    match layer {
        Layer::UserNs => user_namespace(facts),
        Layer::MountNs => namespace(facts, namespaces.mount, "NAMESPACES"),
        Layer::PidNs => namespace(facts, namespaces.pid, "PID_NS"),
        Layer::NetNs => namespace(facts, namespaces.net, "NET_NS"),
        Layer::IpcNs => namespace(facts, namespaces.ipc, "IPC_NS"),
        Layer::UtsNs => namespace(facts, namespaces.uts, "UTS_NS"),
        Layer::CgroupNs => namespace(facts, namespaces.cgroup, "CGROUPS"),
        Layer::TimeNs => namespace(facts, namespaces.time, "TIME_NS"),
        // The counters are those of the cage's own user namespace.
        Layer::Counters => namespace(facts, true, "USER_NS"),
        Layer::Capabilities | Layer::NoNewPrivs | Layer::Descriptors | Layer::Session => {
            Enforcement::Full
        }
        Layer::Seccomp => seccomp(facts),
        Layer::Landlock => landlock(facts.landlock_abi),
        Layer::Memory => limited(
            facts,
            "memory",
            "RLIMIT_DATA for each process and a watchdog over the total",
        ),
        Layer::Pids => limited(facts, "pids", "RLIMIT_NPROC in the user namespace"),
        Layer::Cpu => limited(facts, "cpu", "a set of whole processors; no share of one"),
        Layer::Disk => Enforcement::Partial(
            "tmpfs has a size; a watchdog over writable directories of the host".into(),
        ),
        Layer::Inodes => Enforcement::Partial(
            "tmpfs has a number of files; a watchdog over writable directories of the host".into(),
        ),
        Layer::Files => Enforcement::Full,
    }
}

/// What is known to keep this process from making a user namespace.
pub(crate) fn userns_blocker(facts: &Facts) -> Option<Blocker> {
    if !facts.namespaces.user {
        return Some(Blocker {
            why: "the kernel was built without user namespaces".into(),
            remedy: "install a kernel built with CONFIG_USER_NS=y".into(),
        });
    }
    if facts.sysctls.max_user_namespaces == Some(0) {
        return Some(Blocker {
            why: "user.max_user_namespaces is 0".into(),
            remedy: "as root: sysctl -w user.max_user_namespaces=15000".into(),
        });
    }
    if facts.privilege == Privilege::Root {
        return None;
    }
    if facts.sysctls.userns_clone == Some(0) {
        return Some(Blocker {
            why: "kernel.unprivileged_userns_clone is 0".into(),
            remedy: "as root: sysctl -w kernel.unprivileged_userns_clone=1".into(),
        });
    }
    // A program with a profile of its own that says `userns,` is let through; its label is then
    // not the plain `unconfined`. Whether the profile says so is only known by trying.
    let unconfined = match facts.sysctls.apparmor_label.as_deref() {
        None => true,
        Some(label) => label == "unconfined",
    };
    if matches!(facts.sysctls.apparmor_restrict, Some(1..)) && unconfined {
        return Some(Blocker {
            why: "AppArmor refuses capabilities in user namespaces of programs without a profile \
                  (kernel.apparmor_restrict_unprivileged_userns is 1)"
                .into(),
            remedy: apparmor_remedy(),
        });
    }
    None
}

/// Both ways round Ubuntu's rule, the narrow one first.
pub(crate) fn apparmor_remedy() -> String {
    "as root, for ironcage alone: printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\n\
     profile ironcage /**/ironcage flags=(unconfined) {\\n  userns,\\n}\\n' > /etc/apparmor.d/ironcage \
     && apparmor_parser -r /etc/apparmor.d/ironcage; or, for every program: \
     sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        .into()
}

fn user_namespace(facts: &Facts) -> Enforcement {
    match userns_blocker(facts) {
        Some(blocker) => Enforcement::Off(blocker.sentence()),
        None => Enforcement::Full,
    }
}

fn namespace(facts: &Facts, present: bool, option: &str) -> Enforcement {
    if !present {
        let since = if option == "TIME_NS" {
            " (Linux 5.6 or later)"
        } else {
            ""
        };
        return Enforcement::Off(format!(
            "the kernel was built without it; install one with CONFIG_{option}=y{since}"
        ));
    }
    match userns_blocker(facts) {
        Some(_) => Enforcement::Off("it needs the user namespace, which is off".into()),
        None => Enforcement::Full,
    }
}

fn seccomp(facts: &Facts) -> Enforcement {
    if !facts.seccomp {
        return Enforcement::Off(
            "the kernel was built without seccomp filters; install one with CONFIG_SECCOMP_FILTER=y".into(),
        );
    }
    if !facts.seccomp_notify {
        return Enforcement::Partial(
            "system calls are refused but the refusals are not recorded: no user notification"
                .into(),
        );
    }
    Enforcement::Full
}

/// What the versions of Landlock brought that a cage uses.
fn landlock(abi: u32) -> Enforcement {
    let missing = match abi {
        0 => {
            return Enforcement::Off(
                "the kernel has no Landlock or it is switched off; add `landlock` to the list in the boot parameter lsm= (see /sys/kernel/security/lsm)".into(),
            );
        }
        1 => {
            "no right for truncation, renames between directories always refused; signals and abstract sockets are held by their namespaces alone (Linux 6.12 has all)"
        }
        2 => {
            "no right for truncation, which the read-only mounts hold alone; signals and abstract sockets by their namespaces alone (Linux 6.12 has all)"
        }
        3..=5 => {
            "signals and abstract sockets are held by their namespaces alone (Linux 6.12 has scopes)"
        }
        _ => return Enforcement::Full,
    };
    Enforcement::Partial(format!("ABI {abi}: {missing}"))
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
        // The remedy after it is for `ironcage doctor`.
        CgroupHost::None { why } => why.split("; ").next().unwrap_or_default().to_owned(),
        _ => format!("the cgroup controller `{controller}` is not enabled for this process"),
    };
    Enforcement::Partial(format!("{otherwise} ({why})"))
}

#[cfg(test)]
#[path = "assess_tests.rs"]
pub(crate) mod tests;
