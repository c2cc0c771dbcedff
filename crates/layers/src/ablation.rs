//! Cages with parts left out, for the test that something rests on each of them.
//!
//! `IRONCAGE_LAYERS_OFF=net-ns,seccomp` names what a debug build leaves out. Release builds have
//! none of this: there [`off`] is `false`, decided when it is compiled. `--version` tells which
//! kind a build is, and a weakened run says so on standard error, whatever it was told.

use crate::error::{Doing, LayerError};
use crate::view::{make_filesystem, stop_propagation};
use ironcage_model::{Layer, Switch};
use ironcage_plan::Plan;
use ironcage_sys::rustix::fs::CWD;
use ironcage_sys::rustix::mount::{MountAttrFlags, MoveMountFlags, move_mount};

/// Whether this build can leave parts out at all.
pub const POSSIBLE: bool = cfg!(debug_assertions);

/// Whether a part is left out; never in release builds.
#[cfg(not(debug_assertions))]
pub const fn off(_: Switch) -> bool {
    false
}

/// The plan, without what is left out; in release builds the plan. It is a part of planning, so
/// that `ironcage plan` and the digest show what is left out.
#[cfg(not(debug_assertions))]
pub fn weaken(plan: Plan) -> Plan {
    plan
}

#[cfg(debug_assertions)]
pub use enabled::{off, weaken};

/// Keeps the host's root, in a mount namespace that tells it nothing. With processes of its own
/// the caller gets a process file system that shows them.
pub fn stay(own_processes: bool) -> Result<(), LayerError> {
    stop_propagation()?;
    if !own_processes {
        return Ok(());
    }
    let proc = make_filesystem("proc", MountAttrFlags::empty())?;
    move_mount(
        &proc,
        "",
        CWD,
        "/proc",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .doing(Layer::MountNs, || "attach /proc".into())
}

/// Whether a layer is left out.
pub fn without(layer: Layer) -> bool {
    off(Switch::Layer(layer))
}

#[cfg(debug_assertions)]
mod enabled {
    use super::{Layer, Plan, Switch};
    use ironcage_host::{CgroupHost, NoCgroup};
    use ironcage_plan::seccomp::DefaultAction;
    use ironcage_plan::{Capability, IdMap, Identity, Item, Resource, Variable};
    use ironcage_sys::rustix::process::geteuid;
    use ironcage_sys::rustix::thread::capabilities;
    use std::sync::OnceLock;

    const VARIABLE: &str = "IRONCAGE_LAYERS_OFF";
    /// More than any probe takes, and less than overflows what is computed from it.
    const MUCH: u64 = 1 << 40;
    /// Those that every kernel with user namespaces of today knows.
    const CAPABILITIES: u32 = 41;

    fn named() -> &'static [Switch] {
        static NAMED: OnceLock<Vec<Switch>> = OnceLock::new();
        NAMED.get_or_init(|| {
            let Some(text) = std::env::var_os(VARIABLE) else {
                return Vec::new();
            };
            let text = text.to_string_lossy();
            let names = text.split(',').filter(|name| !name.is_empty());
            names
                .map(str::parse)
                .collect::<Result<_, _>>()
                .unwrap_or_else(|error| {
                    eprintln!("ironcage: {VARIABLE}: {error}");
                    std::process::exit(125)
                })
        })
    }

    /// Whether a part is left out.
    pub fn off(switch: Switch) -> bool {
        let named = named();
        match switch {
            // An ordinary user has no other namespace without that one. For root the agent's ids
            // and the view, in which its files are its own, go together.
            Switch::Layer(Layer::UserNs) => {
                (named.contains(&switch) || named.contains(&Switch::Layer(Layer::MountNs)))
                    && geteuid().is_root()
            }
            // Without no_new_privs the kernel takes neither a filter nor a Landlock domain.
            Switch::Layer(Layer::Seccomp | Layer::Landlock) => {
                named.contains(&switch) || named.contains(&Switch::Layer(Layer::NoNewPrivs))
            }
            _ => named.contains(&switch),
        }
    }

    /// The plan, without what is left out.
    pub fn weaken(mut plan: Plan) -> Plan {
        if named().is_empty() {
            return plan;
        }
        let names: Vec<&str> = named().iter().map(|switch| switch.name()).collect();
        eprintln!(
            "ironcage: a test build: WEAKENED, without {}",
            names.join(", ")
        );
        files(&mut plan);
        bounds(&mut plan);
        if off(Switch::Environment) {
            plan.command.env = std::env::vars_os()
                .filter(|(name, _)| name != VARIABLE)
                .map(|(name, value)| item(Variable { name, value }))
                .collect();
        }
        if off(Switch::Layer(Layer::Capabilities)) {
            // In a user namespace of its own the cage has every one, else those of the caller.
            let held = match off(Switch::Layer(Layer::UserNs)) {
                true => capabilities(None).map_or(0, |sets| sets.permitted.bits()),
                false => u64::MAX,
            };
            plan.capabilities = (0..CAPABILITIES)
                .filter(|number| held & 1 << number != 0)
                .map(|number| {
                    item(Capability {
                        name: number.to_string(),
                        number,
                    })
                })
                .collect();
        }
        if off(Switch::Layer(Layer::Seccomp)) {
            plan.seccomp.refusal = DefaultAction::Errno;
        }
        if off(Switch::Layer(Layer::Counters)) {
            plan.counters.clear();
        }
        plan.time_namespace &= !off(Switch::Layer(Layer::TimeNs));
        plan
    }

    fn files(plan: &mut Plan) {
        if off(Switch::Layer(Layer::UserNs)) {
            // The agent is root, and without a namespace of its own the counters are the host's.
            plan.identity = Identity {
                uid: 0,
                gid: 0,
                map: IdMap::Own { uid: 0, gid: 0 },
            };
            plan.counters.clear();
        }
        plan.landlock &= !off(Switch::Layer(Layer::Landlock));
        if off(Switch::Layer(Layer::MountNs)) {
            // Some of the paths are the view's own.
            plan.write_rules.retain(|rule| rule.what.path.exists());
        }
    }

    fn bounds(plan: &mut Plan) {
        let lost = |layer: Layer| off(Switch::Layer(layer));
        let bounds = &mut plan.bounds;
        let numbers = [
            (Layer::Memory, &mut bounds.memory),
            (Layer::Pids, &mut bounds.pids),
            (Layer::Disk, &mut bounds.disk),
            (Layer::Inodes, &mut bounds.inodes),
            (Layer::Files, &mut bounds.files),
        ];
        for (layer, bound) in numbers {
            if lost(layer) {
                bound.what.value = MUCH;
            }
        }
        if lost(Layer::Cpu) {
            bounds.cpu.what.value = 1_000_000;
            plan.processors = None;
        }
        if lost(Layer::Memory) || lost(Layer::Cpu) || lost(Layer::Pids) {
            // One group holds all three; the next best means hold the others.
            plan.cgroup = CgroupHost::None {
                why: NoCgroup::LeftOut,
            };
        }
        if off(Switch::Deadline) {
            plan.bounds.time.what.value = None;
        }
        plan.rlimits.retain(|item| {
            !lost(match item.what.resource {
                Resource::Data
                | Resource::LockedMemory
                | Resource::MessageQueues
                | Resource::PendingSignals => Layer::Memory,
                Resource::Core | Resource::FileSize => Layer::Disk,
                Resource::Nice | Resource::RealTimePriority => Layer::Cpu,
                Resource::OpenFiles => Layer::Files,
                Resource::Processes => Layer::Pids,
            })
        });
    }

    fn item<T>(what: T) -> Item<T> {
        Item {
            what,
            origin: VARIABLE.into(),
        }
    }
}
