//! A booted system: what its init system gets that a command does not have.
//!
//! The init is PID 1 of a PID namespace of its own. It mounts file systems for its services, changes
//! to their users and tracks them by cgroup, so it gets back the capabilities that take that, in the
//! cage's user namespace. The cage's own mounts stay locked, and Landlock, which forbids mounts, is
//! off.

use crate::plan::{Access, Boot, Capability, Counter, Item, Variable, ViewOp};
use crate::view::ViewPlan;
use crate::{PlanError, Request};
use ironcage_model::{Enforcement, Isolation, Layer, LayerReport};
use ironcage_policy::{Origin, Policy, Sourced, capabilities};

const FLAG: &str = "--boot";
/// The group of system calls that an init needs.
const GROUP: &str = "boot";
/// How many namespaces of each kind its services may have.
const NAMESPACES: u64 = 128;
const FOR_SERVICES: [&str; 4] = [
    "max_mnt_namespaces",
    "max_ipc_namespaces",
    "max_uts_namespaces",
    "max_cgroup_namespaces",
];

fn origin() -> Origin {
    Origin::Flag { flag: FLAG.into() }
}

fn refused<T>(why: impl Into<String>) -> Result<T, PlanError> {
    Err(PlanError::Boot {
        origin: FLAG.into(),
        why: why.into(),
    })
}

/// The policy with what every booted system has.
pub(crate) fn policy(policy: &Policy) -> Policy {
    let mut policy = policy.clone();
    policy.root_inside = Sourced::new(true, origin());
    policy
        .syscall_groups
        .push(Sourced::new(GROUP.to_owned(), origin()));
    policy
}

/// What is booted, or why nothing can be.
pub(crate) fn make(policy: &Policy, request: &Request) -> Result<Option<Item<Boot>>, PlanError> {
    let Some(boot) = &request.boot else {
        return Ok(None);
    };
    if policy.isolation.value != Isolation::Namespace {
        return refused(format!(
            "an init system needs namespaces; use --isolation namespace instead of {}",
            policy.isolation.value
        ));
    }
    if policy.syscalls.value != "standard" {
        return refused(format!(
            "an init system needs the system call list `standard`, not `{}` ({})",
            policy.syscalls.value, policy.syscalls.origin
        ));
    }
    if request
        .image
        .as_ref()
        .is_none_or(|image| image.layers.is_none())
    {
        return refused("the cage has the host's system; name one with --image or --root");
    }
    if request.observed {
        return refused("the system calls of an init are not reported; run it without --observe");
    }
    let group = match &boot.group {
        Ok(group) => group.clone(),
        Err(why) => return refused(format!("its init needs its own cgroup: {why}")),
    };
    Ok(Some(Item {
        what: Boot {
            group,
            stop_signal: boot.stop_signal,
        },
        origin: FLAG.into(),
    }))
}

/// The layers as they are in a booted cage.
pub(crate) fn weaken(layers: &mut [LayerReport]) {
    for report in layers {
        if matches!(report.enforcement, Enforcement::Off(_)) {
            continue;
        }
        report.enforcement = match report.layer {
            Layer::Landlock => Enforcement::Off(
                "an init system mounts file systems, which Landlock forbids (--boot)".into(),
            ),
            Layer::Capabilities => Enforcement::Partial(
                "--boot restores those that an init system needs, in the cage's user namespace"
                    .into(),
            ),
            Layer::Counters => Enforcement::Partial(
                "--boot allows mount, IPC, UTS and cgroup namespaces for services".into(),
            ),
            _ => continue,
        };
    }
}

/// The capabilities that are given back.
pub(crate) fn capabilities() -> Vec<Item<Capability>> {
    let entries = capabilities::ENTRIES.iter();
    entries
        .filter_map(|entry| {
            let why = entry.boot?;
            Some(Item {
                what: Capability {
                    name: entry.name.into(),
                    number: u32::from(entry.number),
                },
                origin: format!("{FLAG}: {why}"),
            })
        })
        .collect()
}

/// Raises the counters of namespaces that services may have.
pub(crate) fn raise(counters: &mut [Item<Counter>]) {
    for counter in counters {
        if FOR_SERVICES.contains(&counter.what.name) {
            counter.what.value = NAMESPACES;
            counter.origin = FLAG.into();
        }
    }
}

/// Directories that an init expects to be mounts, and its own cgroup, before what stands in them. It
/// has the rest as root of a system that it can write.
pub(crate) fn places(view: &mut ViewPlan) {
    let directory = |target: &str, agents| ViewOp::Directory {
        target: target.into(),
        mode: 0o755,
        agents,
    };
    let writable = |target: &str| ViewOp::Ephemeral {
        target: target.into(),
        executable: false,
    };
    let pin = ViewOp::Pin {
        target: "/sys".into(),
        access: Access::Read,
    };
    let ops = [
        directory("/dev", true),
        directory("/sys/fs/cgroup", false),
        writable("/dev"),
        pin,
        ViewOp::Cgroup,
        directory("/run/systemd", true),
        directory("/run/systemd/system", true),
        // It ends where it cannot listen to the host's device events, and is started again.
        ViewOp::Symlink {
            target: "/run/systemd/system/systemd-logind.service".into(),
            to: "/dev/null".into(),
        },
    ];
    let ops = ops.map(|what| Item {
        what,
        origin: FLAG.into(),
    });
    view.ops.splice(0..0, ops);
    // By this an init knows that it has no machine of its own.
    view.variables.push(Item {
        what: Variable {
            name: "container".into(),
            value: "ironcage".into(),
        },
        origin: FLAG.into(),
    });
    view.notes.push(
        "a booted system has more power inside: `ironcage plan` lists the capabilities that --boot restores, and Landlock is off; its denied system calls are not reported"
            .into(),
    );
}
