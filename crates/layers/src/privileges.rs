//! Capabilities, no_new_privs, session, rlimits and counters: what a process may still become.

use crate::error::{Doing, LayerError};
use ironcage_model::Layer;
use ironcage_plan::seccomp::Instruction;
use ironcage_plan::{Capability, Counter, Item, Resource, Rlimit};
use ironcage_sys::rustix::fs::{Mode, OFlags, openat};
use ironcage_sys::rustix::io::write;
use ironcage_sys::rustix::process::{self, DumpableBehavior};
use ironcage_sys::rustix::{self, thread};
use std::os::fd::BorrowedFd;

/// Drops every capability but those of the plan, for good.
pub fn drop_capabilities(keep: &[Item<Capability>]) -> Result<(), LayerError> {
    let mask = keep
        .iter()
        .fold(0, |mask, item| mask | 1_u64 << item.what.number);
    ironcage_sys::process::set_capabilities(mask)
        .doing(Layer::Capabilities, || "drop capabilities".into())
}

/// Drops every capability but those of the plan, for good, and leaves user 0 inside as a user that
/// has them.
pub fn keep_root_capabilities(keep: &[Item<Capability>]) -> Result<(), LayerError> {
    let mask = keep
        .iter()
        .fold(0, |mask, item| mask | 1_u64 << item.what.number);
    ironcage_sys::process::set_root_capabilities(mask)
        .doing(Layer::Capabilities, || "drop capabilities".into())
}

/// Empties the bounding set, for good: for a process that is about to give up being root.
pub fn drop_bounding_set() -> Result<(), LayerError> {
    ironcage_sys::process::drop_bounding_set(0)
        .doing(Layer::Capabilities, || "empty the bounding set".into())
}

/// Gives up every capability that is held, for good under no_new_privs. A user without a user
/// namespace cannot empty the bounding set.
pub fn give_up_capabilities() -> Result<(), LayerError> {
    ironcage_sys::process::give_up_capabilities()
        .doing(Layer::Capabilities, || "give up capabilities".into())
}

/// Sets no_new_privs: set-user-id programs and file capabilities mean nothing from here on.
pub fn no_new_privileges() -> Result<(), LayerError> {
    thread::set_no_new_privs(true).doing(Layer::NoNewPrivs, || "set no_new_privs".into())
}

/// Starts a session of its own, away from the caller's terminal.
pub fn new_session() -> Result<(), LayerError> {
    process::setsid()
        .map(drop)
        .doing(Layer::Session, || "start a session".into())
}

/// Makes the process unreadable for others of its user: no ptrace, no `/proc/PID/mem`, no
/// `/proc/PID/exe`, no core.
pub fn not_dumpable() -> Result<(), LayerError> {
    process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .doing(Layer::PidNs, || "become unreadable for the agent".into())
}

/// Makes the process readable for others of its user, as a test build wants it.
pub fn dumpable() -> Result<(), LayerError> {
    process::set_dumpable_behavior(DumpableBehavior::Dumpable)
        .doing(Layer::PidNs, || "become readable for the agent".into())
}

/// Confines a process of Ironcage's own that reads what an agent writes: no capabilities and no way
/// to new ones, nothing that others can look into, no processes, files or cores, and the system
/// calls of `program` alone. It keeps its memory and the descriptors that it has.
pub fn confine_reader(program: &[Instruction]) -> Result<(), LayerError> {
    no_new_privileges()?;
    give_up_capabilities()?;
    not_dumpable()?;
    for resource in [
        process::Resource::Core,
        process::Resource::Nproc,
        process::Resource::Fsize,
    ] {
        let none = process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        process::setrlimit(resource, none).doing(Layer::Pids, || "set limits".into())?;
    }
    crate::filter::install_own(program)
}

/// Sets the rlimits, soft and hard alike.
pub fn set_rlimits(rlimits: &[Item<Rlimit>]) -> Result<(), LayerError> {
    for item in rlimits {
        let Rlimit { resource, value } = item.what;
        let (kernel, layer) = known_as(resource);
        let set = |value| {
            let limit = process::Rlimit {
                current: Some(value),
                maximum: Some(value),
            };
            process::setrlimit(kernel, limit)
        };
        // Most are at or below the caller's own hard limit: asking for that first would be a call
        // more for each.
        match set(value) {
            Err(rustix::io::Errno::PERM) => set(attainable(Rlimit { resource, value })),
            other => other,
        }
        .doing(layer, || format!("set the rlimit {resource:?} to {value}"))?;
    }
    Ok(())
}

/// What of an rlimit can be had: the caller's own hard limit may be lower, and cannot be raised,
/// and need not be.
pub fn attainable(limit: Rlimit) -> u64 {
    let (kernel, _) = known_as(limit.resource);
    let hard = process::getrlimit(kernel).maximum;
    hard.map_or(limit.value, |hard| hard.min(limit.value))
}

/// What the kernel calls a resource, and the layer that its limit belongs to.
fn known_as(resource: Resource) -> (process::Resource, Layer) {
    match resource {
        Resource::Core => (process::Resource::Core, Layer::Disk),
        Resource::Data => (process::Resource::Data, Layer::Memory),
        Resource::FileSize => (process::Resource::Fsize, Layer::Disk),
        Resource::LockedMemory => (process::Resource::Memlock, Layer::Memory),
        Resource::MessageQueues => (process::Resource::Msgqueue, Layer::Memory),
        Resource::Nice => (process::Resource::Nice, Layer::Cpu),
        Resource::OpenFiles => (process::Resource::Nofile, Layer::Files),
        Resource::Processes => (process::Resource::Nproc, Layer::Pids),
        Resource::RealTimePriority => (process::Resource::Rtprio, Layer::Cpu),
        Resource::PendingSignals => (process::Resource::Sigpending, Layer::Memory),
    }
}

/// Keeps this process and its children on the first so many of the processors it may use.
pub fn keep_to_processors(count: u32) -> Result<(), LayerError> {
    let doing = || format!("pin to {count} CPUs");
    let allowed = thread::sched_getaffinity(None).doing(Layer::Cpu, doing)?;
    let mut kept = thread::CpuSet::new();
    (0..thread::CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .take(count as usize)
        .for_each(|cpu| kept.set(cpu));
    thread::sched_setaffinity(None, &kept).doing(Layer::Cpu, doing)
}

/// Writes the counters through a handle of `/proc/sys/user` opened before that became
/// read-only. They hold for the caller's user namespace.
pub fn set_counters(
    directory: BorrowedFd<'_>,
    counters: &[Item<Counter>],
) -> Result<(), LayerError> {
    for item in counters {
        let Counter { name, value } = &item.what;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match openat(directory, *name, flags, Mode::empty()) {
            Ok(file) => file,
            // A kernel without that counter has no such thing to count.
            Err(rustix::io::Errno::NOENT) => continue,
            other => other.doing(Layer::Counters, || format!("open /proc/sys/user/{name}"))?,
        };
        write(&file, value.to_string().as_bytes())
            .map(drop)
            .doing(Layer::Counters, || {
                format!("write {value} to /proc/sys/user/{name}")
            })?;
        // The first process of a cage closes all but its own in one call.
        std::mem::forget(file);
    }
    Ok(())
}
