//! The supervisor's side of a start: forks PID 1 into its namespaces.

use crate::enclose::enclose;
use crate::network;
use ironcage_backend::faults::step;
use ironcage_backend::ids::{self, Range};
use ironcage_backend::init::{self, Inheritance};
use ironcage_backend::{Birth, Ends, Helper, StartError, StreamKind, end, make_cgroup};
use ironcage_egress::{Door, DoorIds};
use ironcage_layers::cgroup::Cgroup;
use ironcage_layers::weakened::without;
use ironcage_model::{CageId, Layer};
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How long the door may take to make a certificate authority.
const DOOR_PATIENCE: Duration = Duration::from_secs(60);

/// Forks PID 1 of a cage, which builds it and starts the command. The caller goes on with
/// [`Birth::attend`]; what it does before is done while PID 1 works.
///
/// Preconditions: the calling process has one thread; its end is the cage's end.
pub(crate) fn start(plan: &Plan, id: &CageId, kind: StreamKind) -> Result<Birth, StartError> {
    let channel = |error: ironcage_sys::rustix::io::Errno| StartError::Channel(error.into());
    let ends = Ends::make(kind).map_err(StartError::Channel)?;
    let (control, control_inner) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(channel)?;
    // Root's helper needs nothing of the cage: it begins before ids and cgroup are seen to. With
    // a network it comes after the door, which needs its id.
    let helper = match plan.identity.map {
        IdMap::Range { .. } if plan.network.is_none() => {
            Some(network::start(None, control.as_fd(), None)?)
        }
        IdMap::Range { .. } | IdMap::Own { .. } => None,
    };
    step();
    match fork_init(plan, id, ends, (control, control_inner), helper.is_none()) {
        Ok(mut birth) => {
            birth.helper = birth.helper.or(helper);
            Ok(birth)
        }
        Err(error) => {
            // Waited for, so that no process is left; what it says no longer matters.
            let _ = helper.map(Helper::finish);
            Err(error)
        }
    }
}

/// Forks PID 1, and after it the helper that needs its user namespace, or the door.
fn fork_init(
    plan: &Plan,
    id: &CageId,
    ends: Ends,
    (control, control_inner): (OwnedFd, OwnedFd),
    with_helper: bool,
) -> Result<Birth, StartError> {
    let (range, agent_outside) = match plan.identity.map {
        IdMap::Own { uid, gid } => (None, (uid, gid)),
        IdMap::Range { .. } => {
            let range = Range::claim()?;
            let agent = (
                range.first + plan.identity.uid,
                range.first + plan.identity.gid,
            );
            (Some(range), agent)
        }
    };
    if range.is_some() {
        ends.give_to(agent_outside).map_err(StartError::Channel)?;
    }
    let (owner_maps, children) = match range {
        Some(_) => ids::owner_maps(&plan.view, agent_outside)?,
        None => Default::default(),
    };
    step();
    let cgroup = make_cgroup(plan, id)?;
    step();
    let cgroup_entries = match &cgroup {
        Some(cgroup) if cgroup.clone_fd().is_none() => cgroup.entries()?,
        _ => Vec::new(),
    };

    // Before anything else of the cage: it inherits nothing of it.
    let door = match &plan.network {
        Some(network) => {
            let ids = range.as_ref().map(|range| DoorIds { id: range.last() });
            Some(Door::start(network, ids).map_err(StartError::Door)?)
        }
        None => None,
    };
    let authority = match (&plan.network, &door) {
        (Some(network), Some(door)) if network.opens_tls() => {
            door.authority(DOOR_PATIENCE).map_err(StartError::Door)?
        }
        _ => String::new(),
    };
    step();

    let mut namespaces = Namespaces::MOUNT;
    if !without(Layer::PidNs) {
        namespaces = namespaces.with(Namespaces::PID);
    }
    if plan.time_namespace {
        namespaces = namespaces.with(Namespaces::TIME);
    }
    if range.is_none() && !without(Layer::UserNs) {
        namespaces = namespaces.with(Namespaces::USER);
    }
    let clone_fd = cgroup.as_ref().and_then(Cgroup::clone_fd);
    match fork(namespaces, clone_fd).map_err(StartError::Fork)? {
        Forked::Child => {
            drop((control, ends.outer));
            // The supervisor's children, not this process's: it must not wait for them.
            std::mem::forget(children);
            std::mem::forget(door);
            init::run(
                plan,
                Inheritance {
                    control: control_inner,
                    streams: ends.inner,
                    owner_maps,
                    authority,
                    agent_outside,
                    cgroup_entries,
                    permitted: false.into(),
                    guarded: without(Layer::PidNs),
                },
                enclose,
            )
        }
        Forked::Parent { pid, pidfd } => {
            drop((control_inner, ends.inner));
            drop((owner_maps, cgroup_entries));
            let helper = match with_helper {
                true => {
                    let door = plan.network.as_ref().zip(door.as_ref());
                    let same = range.is_some() || without(Layer::UserNs);
                    let init = (!same).then_some(pid);
                    network::start(init, control.as_fd(), door).map(Some)
                }
                false => Ok(None),
            };
            let helper = match helper {
                Ok(helper) => helper,
                Err(error) => {
                    end(&pidfd);
                    return Err(error);
                }
            };
            Ok(Birth {
                helper,
                door,
                children,
                control,
                pid,
                pidfd,
                guard: None,
                cgroup,
                range,
                streams: ends.outer,
            })
        }
    }
}
