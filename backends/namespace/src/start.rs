//! The supervisor's side of a start: forks PID 1 into its namespaces.

use crate::enclose::enclose;
use crate::{network, share};
use ironcage_backend::faults::step;
use ironcage_backend::host_resources::{Channels, HostResources};
use ironcage_backend::{Helper, Sibling, StartError, StartingCage, StreamKind, end, init};
use ironcage_egress::{Proxy, ProxyIds};
use ironcage_layers::ablation::without;
use ironcage_model::{CageId, Layer};
use ironcage_plan::{BoundPlan, IdMap, Plan};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::steps::mark;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long the proxy may take to make a certificate authority.
pub(crate) const PROXY_PATIENCE: Duration = Duration::from_secs(60);

/// Forks PID 1 of a cage, which builds it and starts the command. The caller goes on with
/// [`StartingCage::await_ready`]; what it does before is done while PID 1 works.
///
/// Preconditions: the calling process has one thread; its end is the cage's end.
pub(crate) fn start(
    plan: &BoundPlan<'_>,
    id: &CageId,
    kind: StreamKind,
) -> Result<StartingCage, StartError> {
    let channels = Channels::make(kind)?;
    // Root's helper needs nothing of the cage: it begins before ids and cgroup are seen to. With
    // a network it comes after the proxy, which needs its id.
    let helper = match plan.identity.map {
        IdMap::Range { .. } if plan.network.is_none() => {
            Some(network::start(None, channels.control.as_fd(), None)?)
        }
        IdMap::Range { .. } | IdMap::Own { .. } => None,
    };
    step();
    mark("channels, network helper forked");
    let resources = HostResources::prepare(plan, id, channels);
    mark("ids, owner map, cgroup");
    begin(plan, resources, helper)
}

/// Forks PID 1 of a scope beside a cage.
///
/// Preconditions: as for [`start`].
pub(crate) fn scope(
    plan: &BoundPlan<'_>,
    id: &CageId,
    sibling: &Sibling,
) -> Result<StartingCage, StartError> {
    let (shared, process) = share::trees(plan, sibling)?;
    let channels = Channels::make(StreamKind::Pipes)?;
    let resources = HostResources::beside(plan, id, sibling, shared, channels);
    let mut starting = begin(plan, resources, None)?;
    starting.children.push(process);
    Ok(starting)
}

fn begin(
    plan: &BoundPlan<'_>,
    resources: Result<HostResources, StartError>,
    helper: Option<Helper>,
) -> Result<StartingCage, StartError> {
    let forked = resources.and_then(|resources| fork_init(plan, resources, helper.is_none()));
    match forked {
        Ok(mut starting) => {
            starting.helper = starting.helper.or(helper);
            Ok(starting)
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
    plan: &BoundPlan<'_>,
    resources: HostResources,
    with_helper: bool,
) -> Result<StartingCage, StartError> {
    let ranged = resources.range.is_some();
    // Before anything else of the cage: it inherits nothing of it.
    let proxy = match &plan.network {
        Some(network) => {
            let range = resources.range.as_ref();
            let ids = range.map(|range| ProxyIds { id: range.last() });
            Some(Proxy::start(network, ids).map_err(StartError::Proxy)?)
        }
        None => None,
    };
    let authority = match (&plan.network, &proxy) {
        (Some(network), Some(proxy)) if network.opens_tls() => {
            proxy.authority(PROXY_PATIENCE).map_err(StartError::Proxy)?
        }
        _ => String::new(),
    };
    step();

    match fork(outer_namespaces(plan, ranged), resources.clone_fd()).map_err(StartError::Fork)? {
        Forked::Child => {
            std::mem::forget(proxy);
            let (inheritance, _group) = resources.inherit(without(Layer::PidNs), authority);
            init::run(plan, inheritance, enclose)
        }
        Forked::Parent { pid, pidfd } => {
            let kept = match resources.keep() {
                Ok(kept) => kept,
                Err(error) => {
                    end(&pidfd);
                    return Err(error);
                }
            };
            let helper = match with_helper {
                true => {
                    let proxy = plan.network.as_ref().zip(proxy.as_ref());
                    let same = ranged || without(Layer::UserNs);
                    let init = (!same).then_some(pid);
                    network::start(init, kept.control.as_fd(), proxy).map(Some)
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
            Ok(StartingCage {
                helper,
                proxy,
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

/// The namespaces into which PID 1 is forked; it makes the rest itself.
pub(crate) fn outer_namespaces(plan: &Plan, ranged: bool) -> Namespaces {
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
    namespaces
}
