//! Limits as numbers: resolved shares of the host, rlimits, kernel counters.

use crate::make::has_controller;
use crate::plan::{Bound, Bounds, Counter, Item, Resource, Rlimit, TimeBound};
use ironcage_host::HostCaps;
use ironcage_policy::{Amount, Cpus, Limits, Sourced};
use std::time::Duration;

/// Resolves shares of what the host has.
pub(crate) fn make(limits: &Limits, host: &HostCaps) -> Bounds {
    let share = |amount: &Sourced<Amount>, of: u64| item(amount, |amount| bytes(*amount, of));
    let time = |limit: &Sourced<Option<Duration>>| Item {
        what: TimeBound { value: limit.value },
        origin: limit.origin.to_string(),
    };
    Bounds {
        memory: share(&limits.memory, host.memory),
        cpu: item(&limits.cpus, |cpus| milli_cpus(*cpus, host.cpus)),
        pids: item(&limits.pids, |pids| u64::from(*pids)),
        disk: share(&limits.disk, host.disk),
        inodes: item(&limits.inodes, |inodes| *inodes),
        files: item(&limits.files, |files| *files),
        time: time(&limits.time),
        idle: time(&limits.idle),
    }
}

fn item<T>(limit: &Sourced<T>, number: impl Fn(&T) -> u64) -> Item<Bound> {
    Item {
        what: Bound {
            value: number(&limit.value),
        },
        origin: limit.origin.to_string(),
    }
}

fn bytes(amount: Amount, of: u64) -> u64 {
    match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => of / 100 * u64::from(percent),
        Amount::Least {
            bytes: most,
            percent,
        } => most.min(bytes(Amount::Percent(percent), of)),
    }
}

pub(crate) fn milli_cpus(cpus: Cpus, of: u32) -> u64 {
    match cpus {
        Cpus::Milli(milli) => u64::from(milli),
        Cpus::Percent(percent) => (u64::from(of) * 10 * u64::from(percent)).max(1),
        Cpus::Least { milli, percent } => {
            u64::from(milli).min(milli_cpus(Cpus::Percent(percent), of))
        }
    }
}

/// Rlimits: hard bounds of their own, and the next best means where there is no cgroup.
pub(crate) fn rlimits(bounds: &Bounds, host: &HostCaps) -> Vec<Item<Rlimit>> {
    let mut rlimits = Vec::new();
    let mut push = |resource, value, origin: &str| {
        rlimits.push(Item {
            what: Rlimit { resource, value },
            origin: origin.to_owned(),
        });
    };
    let built_in = "built in";
    // One, not zero: the value at which the kernel also stops handing cores to a program.
    push(Resource::Core, 1, built_in);
    push(
        Resource::OpenFiles,
        bounds.files.what.value,
        &bounds.files.origin,
    );
    push(
        Resource::FileSize,
        bounds.disk.what.value,
        &bounds.disk.origin,
    );
    push(Resource::LockedMemory, 8 << 20, built_in);
    push(Resource::MessageQueues, 819_200, built_in);
    push(Resource::PendingSignals, 8192, built_in);
    push(Resource::Nice, 0, built_in);
    push(Resource::RealTimePriority, 0, built_in);
    if !has_controller(host, "pids") {
        push(
            Resource::Processes,
            bounds.pids.what.value,
            &bounds.pids.origin,
        );
    }
    if !has_controller(host, "memory") || host.swap_uncounted {
        // The watchdog holds the limit and says so; this stops what is faster than it. Not
        // lower, because programs reserve more than they use.
        let memory = bounds.memory.what.value;
        let data = memory.saturating_mul(8).max(memory.saturating_add(4 << 30));
        push(Resource::Data, data, &bounds.memory.origin);
    }
    rlimits
}

/// Without a cgroup, processor time is bounded by whole processors only; what that leaves
/// open is said.
pub(crate) fn processors(bounds: &Bounds, host: &HostCaps, notes: &mut Vec<String>) -> Option<u32> {
    let milli = bounds.cpu.what.value;
    if has_controller(host, "cpu") || milli >= u64::from(host.cpus) * 1000 {
        return None;
    }
    let whole = u32::try_from(milli.div_ceil(1000)).unwrap_or(u32::MAX);
    if !milli.is_multiple_of(1000) {
        notes.push(format!(
            "without a cgroup, the cpus limit of {} is enforced as {whole} whole CPU(s)",
            milli as f64 / 1000.0
        ));
    }
    Some(whole)
}

/// Of what all cages of a user have together, one gets a quarter, and never more than `most`: what
/// it uses up is then not all that its neighbours and the user have.
fn share(all: u64, most: u64) -> u64 {
    (all / 4).clamp(1, most)
}

/// Per-user counters of the kernel, which the cage would share with the host's user.
pub(crate) fn counters(host: &HostCaps) -> Vec<Item<Counter>> {
    let counters: [(&'static str, u64); 10] = [
        ("max_user_namespaces", 0),
        ("max_mnt_namespaces", 0),
        ("max_pid_namespaces", 0),
        ("max_net_namespaces", 0),
        ("max_ipc_namespaces", 0),
        ("max_uts_namespaces", 0),
        ("max_cgroup_namespaces", 0),
        ("max_time_namespaces", 0),
        ("max_inotify_instances", share(host.inotify.instances, 128)),
        ("max_inotify_watches", share(host.inotify.watches, 65_536)),
    ];
    counters
        .into_iter()
        .map(|(name, value)| Item {
            what: Counter { name, value },
            origin: "built in".into(),
        })
        .collect()
}

/// Limits as numbers of this host, to compare those that are shares with those that are not.
pub fn amounts(limits: &Limits, host: &HostCaps) -> ironcage_policy::Amounts {
    let bounds = make(limits, host);
    ironcage_policy::Amounts {
        memory: bounds.memory.what.value,
        cpu: bounds.cpu.what.value,
        disk: bounds.disk.what.value,
    }
}
