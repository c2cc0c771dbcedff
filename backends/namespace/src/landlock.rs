//! The isolation level landlock: for hosts that forbid user namespaces.
//!
//! No namespace at all. The agent sees the host's tree and can open of it what the plan allows:
//! Landlock is the first lock here, on reads too. The filter refuses sockets and what reaches
//! other processes, rlimits and a watchdog bound what is used, a subreaper ends what the command
//! leaves behind. Home and temporary files are a directory of the cage's own, removed at the
//! end.

use ironcage_backend::init::{self, Enclosed, Inheritance, failed};
use ironcage_backend::{
    Ability, Backend, StartError, StartingCage, StreamKind, Support, subreaper,
};
use ironcage_layers::identity::become_agent;
use ironcage_layers::{LayerError, privileges};
use ironcage_model::{CageId, Isolation, Layer};
use ironcage_plan::BoundPlan;
use ironcage_sys::clone::Namespaces;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::process::geteuid;
use std::io;

/// The backend of the isolation level landlock.
#[derive(Debug, Clone, Copy)]
pub struct Landlock;

impl Backend for Landlock {
    fn isolation(&self) -> Isolation {
        Isolation::Landlock
    }

    fn can(&self, ability: Ability) -> Support {
        match ability {
            Ability::Terminal => Support::Yes("a terminal on the host's devpts"),
            Ability::Exec => Support::Yes(
                "by the first process, under the same layers; no terminal: opening one would open the user's own",
            ),
            Ability::Limits => Support::Yes("cgroup if available, rlimits, watchdog"),
            ability => subreaper::can(ability),
        }
    }

    fn start(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        subreaper::start(plan, id, kind, Namespaces::NONE, |plan, inheritance| {
            init::run(plan, inheritance, enclose)
        })
    }
}

/// Becomes the agent. The locks come after, as with every backend.
fn enclose(plan: &BoundPlan<'_>, _: &Inheritance) -> Result<Enclosed, LayerError> {
    let scratch = plan.scratch.as_ref().ok_or_else(|| {
        let why = io::Error::other("the plan has none");
        failed(Layer::Landlock, "find the cage's own directory", why)
    })?;
    if plan.access_rules.is_empty() {
        let why = io::Error::other("the plan has no rules for it");
        return Err(failed(Layer::Landlock, "be the first lock", why));
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc", flags | OFlags::PATH, Mode::empty())
        .map_err(|error| failed(Layer::PidNs, "open /proc", error))?;
    if geteuid().is_root() {
        // While this process may: as the agent it may not.
        privileges::drop_bounding_set()?;
        become_agent(plan.identity.uid, plan.identity.gid, true)?;
    }
    let storage = open(&scratch.path, flags | OFlags::PATH, Mode::empty())
        .map_err(|error| failed(Layer::Landlock, "open the cage's own directory", error))?;
    Ok(Enclosed {
        proc,
        storage,
        outgrown: None,
        mount_context: None,
        overlays: Vec::new(),
        places: Vec::new(),
        resolver: None,
        init: None,
    })
}
