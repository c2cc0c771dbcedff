//! A root of the cage's own, built from the plan.

use crate::faults::step;
use crate::init::{Inheritance, failed};
use ironcage_layers::LayerError;
use ironcage_layers::view::{Entered, Processes, Setting, View};
use ironcage_model::Layer;
use ironcage_plan::Plan;
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use std::os::fd::OwnedFd;

/// Handles of a root that was built.
#[derive(Debug)]
pub struct Root {
    /// The process file system.
    pub proc: OwnedFd,
    /// The ephemeral storage.
    pub storage: OwnedFd,
    /// The kernel's counters for each user, from before they became read-only.
    pub counters: OwnedFd,
    /// The same storage, writable for who holds this, where the plan has leases.
    pub open_storage: Option<OwnedFd>,
    /// The copy-on-write views.
    pub overlays: Vec<OwnedFd>,
}

/// Builds the plan's file view and makes it the root of the calling process, which is in a new
/// mount namespace, and in a new pid namespace where the processes are its own.
pub fn make(
    plan: &Plan,
    inheritance: &Inheritance,
    processes: Processes,
) -> Result<Root, LayerError> {
    let view = begin(plan, inheritance, inheritance.agent_outside, processes)?;
    step();
    let open_storage = match plan.leases {
        Some(_) => Some(view.open_storage()?),
        None => None,
    };
    // Opened now, because later /proc/sys is read-only.
    let counters = openat(
        view.proc(),
        "sys/user",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| failed(Layer::Counters, "open /proc/sys/user", error))?;
    view.lay_out(&plan.view)?;
    step();
    for item in &plan.view {
        view.mount(&item.what)?;
        step();
    }
    let Entered {
        proc,
        storage,
        overlays,
    } = view.enter()?;
    step();
    Ok(Root {
        proc,
        storage,
        counters,
        open_storage,
        overlays,
    })
}

/// The plan's view before anything is in it. `agent` has the agent's ids in the caller's user
/// namespace.
pub fn begin<'a>(
    plan: &Plan,
    inheritance: &'a Inheritance,
    agent: (u32, u32),
    processes: Processes,
) -> Result<View<'a>, LayerError> {
    let (bytes, inodes) = (plan.bounds.disk.what.value, plan.bounds.inodes.what.value);
    let setting = Setting {
        // Ephemeral storage is memory, and so never more than that.
        bytes: bytes.min(plan.bounds.memory.what.value),
        inodes,
        agent,
        authority: &inheritance.authority,
        owner_maps: &inheritance.owner_maps,
        shared: &inheritance.shared,
    };
    View::new(setting, processes)
}

/// Leaves the root as it is, for a test build that goes without a view. With processes of its
/// own the cage still has a process file system that shows them.
pub fn leave(own_processes: bool) -> Result<Root, LayerError> {
    ironcage_layers::weakened::stay(own_processes)?;
    let open = |path: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty())
            .map_err(|error| failed(Layer::MountNs, "open the host's root", error))
    };
    Ok(Root {
        proc: open("/proc")?,
        storage: open("/")?,
        counters: open("/proc/sys/user")?,
        open_storage: None,
        overlays: Vec::new(),
    })
}
