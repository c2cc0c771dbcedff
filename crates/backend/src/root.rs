//! A root of the cage's own, built from the plan.

use crate::faults::step;
use crate::init::{Inheritance, failed};
use ironcage_layers::LayerError;
use ironcage_layers::view::{Entered, Processes, Setting, View};
use ironcage_model::Layer;
use ironcage_plan::{Item, Plan, ViewOp};
use ironcage_sys::rustix::fs::{CWD, Mode, OFlags, openat};
use ironcage_sys::steps::mark;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Handles of a root that was built.
#[derive(Debug)]
pub struct Root {
    /// The process file system.
    pub proc: OwnedFd,
    pub storage: OwnedFd,
    /// The kernel's counters for each user, from before they became read-only.
    pub counters: OwnedFd,
    /// The same storage, writable for who holds this, where the plan has leases.
    pub open_storage: Option<OwnedFd>,
    pub overlays: Vec<OwnedFd>,
    /// Roots of mounts in it, by their places.
    pub places: Vec<(PathBuf, OwnedFd)>,
}

/// Builds the plan's file view and makes it the root of the calling process, which is in a new
/// mount namespace, and in a new pid namespace where the processes are its own. `shown` is the
/// process file system that the view shows, where it is another one.
pub fn make(
    plan: &Plan,
    inheritance: &Inheritance,
    processes: Processes,
    shown: Option<OwnedFd>,
) -> Result<Root, LayerError> {
    let mut view = begin(plan, inheritance, inheritance.agent_outside, processes)?;
    if let Some(proc) = shown {
        view.show_processes(proc);
    }
    let root = UnfinishedRoot::new(view, plan)?;
    root.carry_out(&plan.view)?;
    root.enter()
}

/// A root that is not the calling process's yet: more operations can be carried out in it.
#[derive(Debug)]
pub struct UnfinishedRoot<'a> {
    view: View<'a>,
    counters: OwnedFd,
    open_storage: Option<OwnedFd>,
}

impl<'a> UnfinishedRoot<'a> {
    /// Takes a view before anything is in it.
    fn new(view: View<'a>, plan: &Plan) -> Result<Self, LayerError> {
        mark("PID 1: cgroup, new root");
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
        Ok(UnfinishedRoot {
            view,
            counters,
            open_storage,
        })
    }

    /// Begins the root of a cage that is prepared, and carries out the static part of its view.
    pub fn prepare(plan: &Plan, agent: (u32, u32)) -> Result<UnfinishedRoot<'static>, LayerError> {
        let setting = setting(plan, agent);
        let mut view = View::new(setting, Processes::Own)?;
        view.keep_bare_storage()?;
        let root = UnfinishedRoot::new(view, plan)?;
        root.carry_out(&plan.view)?;
        Ok(root)
    }

    /// Carries out the rest of the view of a cage that is adopted.
    pub fn adopt<'b>(
        self,
        inheritance: &'b Inheritance,
        own: &[Item<ViewOp>],
    ) -> Result<UnfinishedRoot<'b>, LayerError> {
        let view = (self.view).with_setting(&inheritance.authority, &inheritance.owner_maps);
        let root = UnfinishedRoot {
            view,
            counters: self.counters,
            open_storage: self.open_storage,
        };
        root.carry_out(own)?;
        Ok(root)
    }

    fn carry_out(&self, ops: &[Item<ViewOp>]) -> Result<(), LayerError> {
        self.view.lay_out(ops)?;
        mark("PID 1: nodes, files, overlay");
        step();
        for item in ops {
            self.view.mount(&item.what)?;
            step();
        }
        mark("PID 1: mounts");
        Ok(())
    }

    /// Makes it the root of the calling process.
    pub fn enter(self) -> Result<Root, LayerError> {
        let Entered {
            proc,
            storage,
            overlays,
            places,
        } = self.view.enter()?;
        mark("PID 1: old root gone");
        step();
        Ok(Root {
            proc,
            storage,
            counters: self.counters,
            open_storage: self.open_storage,
            overlays,
            places,
        })
    }
}

/// The plan's view before anything is in it. `agent` has the agent's ids in the caller's user
/// namespace.
pub fn begin<'a>(
    plan: &Plan,
    inheritance: &'a Inheritance,
    agent: (u32, u32),
    processes: Processes,
) -> Result<View<'a>, LayerError> {
    let setting = Setting {
        authority: &inheritance.authority,
        owner_maps: &inheritance.owner_maps,
        shared: &inheritance.shared,
        ..setting(plan, agent)
    };
    View::new(setting, processes)
}

fn setting(plan: &Plan, agent: (u32, u32)) -> Setting<'static> {
    let (bytes, inodes) = (plan.bounds.disk.what.value, plan.bounds.inodes.what.value);
    Setting {
        // Ephemeral storage is memory, and so never more than that.
        bytes: bytes.min(plan.bounds.memory.what.value),
        inodes,
        agent,
        authority: "",
        owner_maps: &[],
        shared: &[],
    }
}

/// Leaves the root as it is, for a test build that goes without a view. With processes of its
/// own the cage still has a process file system that shows them.
pub fn leave(own_processes: bool) -> Result<Root, LayerError> {
    ironcage_layers::ablation::stay(own_processes)?;
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
        places: Vec::new(),
    })
}
