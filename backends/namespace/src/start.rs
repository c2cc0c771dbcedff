//! The supervisor's side of a start: forks PID 1 into its namespaces.

use crate::enclose::enclose;
use crate::{network, share};
use ironcage_backend::faults::step;
use ironcage_backend::ground::{Channels, Ground};
use ironcage_backend::{Birth, Helper, Sibling, StartError, StreamKind, end, init};
use ironcage_egress::{Door, DoorIds};
use ironcage_layers::weakened::without;
use ironcage_model::{CageId, Layer};
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use std::os::fd::AsFd;
use std::time::Duration;

/// How long the door may take to make a certificate authority.
const DOOR_PATIENCE: Duration = Duration::from_secs(60);

/// Forks PID 1 of a cage, which builds it and starts the command. The caller goes on with
/// [`Birth::attend`]; what it does before is done while PID 1 works.
///
/// Preconditions: the calling process has one thread; its end is the cage's end.
pub(crate) fn start(plan: &Plan, id: &CageId, kind: StreamKind) -> Result<Birth, StartError> {
    let channels = Channels::make(kind)?;
    // Root's helper needs nothing of the cage: it begins before ids and cgroup are seen to. With
    // a network it comes after the door, which needs its id.
    let helper = match plan.identity.map {
        IdMap::Range { .. } if plan.network.is_none() => {
            Some(network::start(None, channels.control.as_fd(), None)?)
        }
        IdMap::Range { .. } | IdMap::Own { .. } => None,
    };
    step();
    let ground = Ground::prepare(plan, id, channels);
    begin(plan, ground, helper)
}

/// Forks PID 1 of a scope beside a cage.
///
/// Preconditions: as for [`start`].
pub(crate) fn scope(plan: &Plan, id: &CageId, sibling: &Sibling) -> Result<Birth, StartError> {
    let (shared, process) = share::trees(plan, sibling)?;
    let channels = Channels::make(StreamKind::Pipes)?;
    let ground = Ground::beside(plan, id, sibling, shared, channels);
    let mut birth = begin(plan, ground, None)?;
    birth.children.push(process);
    Ok(birth)
}

fn begin(
    plan: &Plan,
    ground: Result<Ground, StartError>,
    helper: Option<Helper>,
) -> Result<Birth, StartError> {
    let forked = ground.and_then(|ground| fork_init(plan, ground, helper.is_none()));
    match forked {
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
fn fork_init(plan: &Plan, ground: Ground, with_helper: bool) -> Result<Birth, StartError> {
    let ranged = ground.range.is_some();
    // Before anything else of the cage: it inherits nothing of it.
    let door = match &plan.network {
        Some(network) => {
            let range = ground.range.as_ref();
            let ids = range.map(|range| DoorIds { id: range.last() });
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
    if !ranged && !without(Layer::UserNs) {
        namespaces = namespaces.with(Namespaces::USER);
    }
    match fork(namespaces, ground.clone_fd()).map_err(StartError::Fork)? {
        Forked::Child => {
            std::mem::forget(door);
            let (inheritance, _group) = ground.inherit(without(Layer::PidNs), authority);
            init::run(plan, inheritance, enclose)
        }
        Forked::Parent { pid, pidfd } => {
            let kept = ground.keep();
            let helper = match with_helper {
                true => {
                    let door = plan.network.as_ref().zip(door.as_ref());
                    let same = ranged || without(Layer::UserNs);
                    let init = (!same).then_some(pid);
                    network::start(init, kept.control.as_fd(), door).map(Some)
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
                children: kept.children,
                control: kept.control,
                pid,
                pidfd,
                guard: None,
                cgroup: kept.cgroup,
                range: kept.range,
                streams: kept.streams,
            })
        }
    }
}
