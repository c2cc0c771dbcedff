//! What PID 1 of a cage does first: identity, file view, namespaces. The order is the point.

use ironcage_backend::Grounds;
use ironcage_backend::faults::step;
use ironcage_backend::ids::{await_maps, map_own};
use ironcage_backend::init::{Enclosed, Inheritance, failed};
use ironcage_backend::root::{self, Root};
use ironcage_backend::wire;
use ironcage_layers::identity::become_agent;
use ironcage_layers::view::Processes;
use ironcage_layers::weakened::without;
use ironcage_layers::{LayerError, live, network, privileges};
use ironcage_model::Layer;
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::clone::{Namespaces, exit_now, unshare};
use ironcage_sys::rustix::fs::{Mode, OFlags, openat};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Builds the file view and enters the cage's namespaces.
pub(crate) fn enclose(plan: &Plan, inheritance: &Inheritance) -> Result<Enclosed, LayerError> {
    let control = inheritance.control.as_fd();
    let hosts = without(Layer::UserNs);
    let own = matches!(plan.identity.map, IdMap::Own { .. });
    let (uid, gid) = inheritance.agent_outside;
    if own && !hosts {
        // In the outer namespace the caller keeps its id; only there may it mount.
        map_own(None, (uid, uid), (gid, gid))?;
        step();
    }
    let processes = match without(Layer::PidNs) {
        true => Processes::Hosts { shown: true },
        false => Processes::Own,
    };
    let Root {
        proc,
        storage,
        counters,
        open_storage,
        overlays,
    } = match without(Layer::MountNs) {
        true => root::leave(!without(Layer::PidNs))?,
        false => root::make(plan, inheritance, processes)?,
    };

    // The cage's own namespaces come after its mounts: copied into a user namespace further
    // down, every mount is locked there, so not even root of the cage could take one off.
    enter_network(control)?;
    step();
    let outgrown = openat(
        &proc,
        "self/ns/mnt",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| failed(Layer::MountNs, "open the outer mount namespace", error))?;
    let mut namespaces = Namespaces::MOUNT;
    let others = [
        (Layer::UserNs, Namespaces::USER),
        (Layer::IpcNs, Namespaces::IPC),
        (Layer::UtsNs, Namespaces::UTS),
        (Layer::CgroupNs, Namespaces::CGROUP),
    ];
    for (_, other) in others.into_iter().filter(|(layer, _)| !without(*layer)) {
        namespaces = namespaces.with(other);
    }
    unshare(namespaces).map_err(|error| failed(Layer::UserNs, "unshare namespaces", error))?;
    step();
    match (hosts, own) {
        // There is no namespace whose ids could be mapped.
        (true, _) => {}
        (false, true) => map_own(None, (plan.identity.uid, uid), (plan.identity.gid, gid))?,
        (false, false) => await_maps(inheritance)?,
    }
    step();
    if !without(Layer::MountNs) {
        live::lock(plan.locked_places())?;
    }
    if !without(Layer::UtsNs) {
        network::set_hostname(&plan.hostname.what.name)?;
    }
    step();
    privileges::set_counters(counters.as_fd(), &plan.counters)?;
    drop(counters);
    become_agent(plan.identity.uid, plan.identity.gid, !own)?;
    let grounds = Grounds {
        mounts: own_mounts(proc.as_fd())?,
        storage: open_storage,
        built: None,
        beside: None,
    };
    Ok(Enclosed {
        proc,
        storage,
        outgrown: Some(outgrown),
        grounds: Some(grounds),
        overlays,
    })
}

/// The mount namespace of this process. Opened by itself: soon nobody else may look at it.
fn own_mounts(proc: BorrowedFd<'_>) -> Result<OwnedFd, LayerError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(proc, "self/ns/mnt", flags, Mode::empty())
        .map_err(|error| failed(Layer::MountNs, "open the mount namespace", error))
}

/// Enters the network namespace that was made meanwhile.
fn enter_network(control: BorrowedFd<'_>) -> Result<(), LayerError> {
    let namespace = wire::take_network(control)
        .map_err(|error| failed(Layer::NetNs, "wait for the network namespace", error))?;
    let Some(namespace) = namespace else {
        // The supervisor is gone or has given up: so does the cage.
        exit_now(125)
    };
    if without(Layer::NetNs) {
        return Ok(());
    }
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| failed(Layer::NetNs, "enter the network namespace", error))
}
