//! The isolation level chroot: a root of its own, and nothing else apart.
//!
//! The root is built from the plan as the namespace backend builds it, in a mount namespace
//! (and, without root, in the user namespace that this takes), and entered by `pivot_root`,
//! after which the host's tree is not only out of sight but gone. A second user and mount
//! namespace locks the mounts and gives the agent its id. Processes, network, IPC and host name
//! are the host's: the filter refuses what would reach through them, and a subreaper ends what
//! the command leaves behind. The way out of a plain chroot (another chroot below an open
//! directory) has nothing to go to, no capability to do it with and no descriptor to do it from.

use ironcage_backend::faults::step;
use ironcage_backend::ids::{await_maps, map_own};
use ironcage_backend::init::{self, Enclosed, Inheritance, failed};
use ironcage_backend::root::{self, Root};
use ironcage_backend::{
    Ability, Backend, StartError, StartingCage, StreamKind, Support, subreaper,
};
use ironcage_layers::identity::become_agent;
use ironcage_layers::view::Processes;
use ironcage_layers::{LayerError, privileges};
use ironcage_model::{CageId, Isolation, Layer};
use ironcage_plan::{BoundPlan, IdMap};
use ironcage_sys::clone::{Namespaces, unshare};
use std::os::fd::AsFd;

/// The backend of the isolation level chroot.
#[derive(Debug, Clone, Copy)]
pub struct Chroot;

impl Backend for Chroot {
    fn isolation(&self) -> Isolation {
        Isolation::Chroot
    }

    fn can(&self, ability: Ability) -> Support {
        match ability {
            Ability::Terminal => Support::Yes("the cage's own devpts"),
            ability => subreaper::can(ability),
        }
    }

    fn start(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        let namespaces = match plan.identity.map {
            IdMap::Own { .. } => Namespaces::MOUNT.with(Namespaces::USER),
            IdMap::Range { .. } => Namespaces::MOUNT,
        };
        subreaper::start(plan, id, kind, namespaces, |plan, inheritance| {
            init::run(plan, inheritance, enclose)
        })
    }
}

/// Builds the root, enters it, and becomes the agent.
fn enclose(plan: &BoundPlan<'_>, inheritance: &Inheritance) -> Result<Enclosed, LayerError> {
    let own = matches!(plan.identity.map, IdMap::Own { .. });
    let (uid, gid) = inheritance.agent_outside;
    if own {
        // In the outer namespace the caller keeps its id; only there may it mount.
        map_own(None, (uid, uid), (gid, gid))?;
        step();
    }
    let Root {
        proc,
        storage,
        counters,
        open_storage: _,
        overlays,
        places,
    } = root::make(plan, inheritance, Processes::Hosts { shown: false }, None)?;
    // Copied into a user namespace further down, every mount is locked there.
    unshare(Namespaces::USER.with(Namespaces::MOUNT))
        .map_err(|error| failed(Layer::UserNs, "unshare namespaces", error))?;
    step();
    if own {
        let (uid, gid) = ((plan.identity.uid, uid), (plan.identity.gid, gid));
        map_own(Some(proc.as_fd()), uid, gid)?;
    } else {
        await_maps(inheritance)?;
    }
    step();
    privileges::set_counters(counters.as_fd(), &plan.counters)?;
    drop(counters);
    become_agent(plan.identity.uid, plan.identity.gid, !own)?;
    Ok(Enclosed {
        proc,
        storage,
        outgrown: None,
        mount_context: None,
        overlays,
        places,
        resolver: None,
        init: None,
    })
}
