//! What PID 1 of a cage does first: identity, file view, namespaces. The order is the point.

use ironcage_backend::MountContext;
use ironcage_backend::boot::WaitingInit;
use ironcage_backend::faults::step;
use ironcage_backend::ids::{await_maps, map_own};
use ironcage_backend::init::{Enclosed, Inheritance, failed};
use ironcage_backend::root::{self, Root, UnfinishedRoot};
use ironcage_backend::wire;
use ironcage_layers::ablation::without;
use ironcage_layers::identity::become_agent;
use ironcage_layers::view::Processes;
use ironcage_layers::{LayerError, live, network, privileges};
use ironcage_model::Layer;
use ironcage_plan::{BoundPlan, IdMap, Item, Plan, ViewOp};
use ironcage_sys::clone::{Namespaces, exit_now, unshare};
use ironcage_sys::rustix::fs::{Mode, OFlags, openat};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use ironcage_sys::steps::mark;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Builds the file view and enters the cage's namespaces.
pub(crate) fn enclose(
    plan: &BoundPlan<'_>,
    inheritance: &Inheritance,
) -> Result<Enclosed, LayerError> {
    map_outer(plan, inheritance.agent_outside)?;
    let (init, shown) = match plan.boot {
        Some(_) => {
            let (init, proc) = WaitingInit::fork(plan)?;
            (Some(init), Some(proc))
        }
        None => (None, None),
    };
    let processes = match without(Layer::PidNs) {
        true => Processes::Hosts { shown: true },
        false => Processes::Own,
    };
    let root = match without(Layer::MountNs) {
        true => root::leave(!without(Layer::PidNs))?,
        false => root::make(plan, inheritance, processes, shown)?,
    };
    enter_network(inheritance.control.as_fd())?;
    inhabit(plan, inheritance, root, init)
}

/// Carries out the static part of a cage that is prepared: what [`enclose`] does, up to the first
/// operation that belongs to a tenant.
pub(crate) fn prepare(
    plan: &Plan,
    agent_outside: (u32, u32),
    control: BorrowedFd<'_>,
) -> Result<UnfinishedRoot<'static>, LayerError> {
    map_outer(plan, agent_outside)?;
    let root = UnfinishedRoot::prepare(plan, agent_outside)?;
    if plan.network.is_none() {
        enter_network(control)?;
    }
    Ok(root)
}

/// Does the rest of [`enclose`] in a cage that is adopted.
pub(crate) fn adopt(
    root: UnfinishedRoot<'static>,
    own: &[Item<ViewOp>],
    plan: &BoundPlan<'_>,
    inheritance: &Inheritance,
) -> Result<Enclosed, LayerError> {
    let root = root.adopt(inheritance, own)?.enter()?;
    if plan.network.is_some() {
        enter_network(inheritance.control.as_fd())?;
    }
    inhabit(plan, inheritance, root, None)
}

/// Where an ordinary user starts the cage: in the outer namespace the caller keeps its id; only
/// there may it mount.
fn map_outer(plan: &Plan, (uid, gid): (u32, u32)) -> Result<(), LayerError> {
    let own = matches!(plan.identity.map, IdMap::Own { .. });
    if own && !without(Layer::UserNs) {
        map_own(None, (uid, uid), (gid, gid))?;
        step();
    }
    Ok(())
}

/// Enters the cage's own namespaces, once its root and its network are there. They come after its
/// mounts: copied into a user namespace further down, every mount is locked there, so not even
/// root of the cage could take one off.
fn inhabit(
    plan: &BoundPlan<'_>,
    inheritance: &Inheritance,
    root: Root,
    init: Option<WaitingInit>,
) -> Result<Enclosed, LayerError> {
    let Root {
        proc,
        storage,
        counters,
        open_storage,
        overlays,
        places,
    } = root;
    let hosts = without(Layer::UserNs);
    let own = matches!(plan.identity.map, IdMap::Own { .. });
    let (uid, gid) = inheritance.agent_outside;
    let resolver = resolver(plan);
    mark("PID 1: network namespace entered");
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
        // The /proc of a booted cage shows another PID namespace.
        (false, true) => map_own(
            init.as_ref().map(|_| proc.as_fd()),
            (plan.identity.uid, uid),
            (plan.identity.gid, gid),
        )?,
        (false, false) => await_maps(inheritance)?,
    }
    step();
    mark("PID 1: own namespaces, id maps");
    if !without(Layer::MountNs) {
        live::lock(plan.locked_places())?;
    }
    // Before this process can no longer be looked into.
    if let Some(init) = &init {
        init.join()?;
    }
    if !without(Layer::UtsNs) {
        network::set_hostname(&plan.hostname.what.name)?;
    }
    step();
    privileges::set_counters(counters.as_fd(), &plan.counters)?;
    // PID 1 closes all that it has not named in a few calls.
    std::mem::forget(counters);
    become_agent(plan.identity.uid, plan.identity.gid, !own)?;
    let mount_context = MountContext {
        mounts: own_mounts(proc.as_fd())?,
        storage: open_storage,
        built: None,
        beside: None,
    };
    Ok(Enclosed {
        proc,
        storage,
        outgrown: Some(outgrown),
        mount_context: Some(mount_context),
        overlays,
        places,
        resolver,
        init,
    })
}

/// Without a network: the socket at which the supervisor hears which names were looked up in vain.
/// Where it cannot be made, as without IPv6 in the kernel, names fail as they do on a host without
/// a resolver: it tells of denials and denies nothing itself.
fn resolver(plan: &Plan) -> Option<OwnedFd> {
    if plan.network.is_some() || without(Layer::NetNs) {
        return None;
    }
    network::denying_resolver().ok()
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
        .map_err(|error| failed(Layer::NetNs, "enter the network namespace", error))?;
    // PID 1 closes all that it has not named in a few calls.
    std::mem::forget(namespace);
    Ok(())
}
