//! Cages that are prepared before anybody asks for them, and adopted once.
//!
//! The same steps as in [`start`](crate::start), in the same order, with a wait between what
//! belongs to no tenant and the rest.

use crate::start::{PROXY_PATIENCE, outer_namespaces};
use crate::{enclose, network};
use ironcage_backend::faults::step;
use ironcage_backend::prepared::{self, AdoptedNetwork, Foundation, control_pair};
use ironcage_backend::{PreparedCage, StartError, StartingCage, StreamKind, end};
use ironcage_egress::{Proxy, ProxyIds};
use ironcage_layers::ablation::without;
use ironcage_model::{CageId, Layer};
use ironcage_plan::{BoundPlan, Plan, StaticPart};
use ironcage_sys::clone::{Forked, fork};
use ironcage_sys::rustix::process::Pid;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

/// Forks PID 1 of a cage, which carries out the static part and waits.
pub(crate) fn prepare(part: &Arc<StaticPart>, id: CageId) -> Result<PreparedCage, StartError> {
    let plan = part.plan();
    if without(Layer::MountNs) || without(Layer::PidNs) {
        // A test build without these has no view that could be prepared.
        return Err(StartError::NoPrepared);
    }
    let (control, inner) = control_pair()?;
    let foundation = Foundation::make(part, &id)?;
    let ranged = foundation.range.is_some();
    // Not into the cgroup: what the static part takes is the owner's, until somebody adopts it.
    match fork(outer_namespaces(plan, ranged), None).map_err(StartError::Fork)? {
        Forked::Child => {
            let agent = foundation.agent_outside;
            // The owner's: neither its cgroup nor its children are this process's to remove.
            std::mem::forget((foundation, control));
            prepared::wait(
                part,
                inner,
                agent,
                |control| enclose::prepare(plan, agent, control),
                enclose::adopt,
            )
        }
        Forked::Parent { pid, pidfd } => {
            drop(inner);
            step();
            let helper = match plan.network {
                // Its namespace is made when the proxy is there.
                Some(_) => Ok(None),
                None => {
                    network::start(user_namespace_of(pid, ranged), control.as_fd(), None).map(Some)
                }
            };
            match helper {
                Ok(helper) => Ok(PreparedCage::new(
                    id,
                    Arc::clone(part),
                    foundation,
                    control,
                    (pid, pidfd),
                    helper,
                )),
                Err(error) => {
                    end(&pidfd);
                    Err(error)
                }
            }
        }
    }
}

/// Sends a prepared cage the plan's own part.
pub(crate) fn adopt(
    prepared: PreparedCage,
    plan: &BoundPlan<'_>,
    kind: StreamKind,
) -> Result<StartingCage, StartError> {
    prepared.adopt(plan, kind, |foundation, pid, control| {
        start_network(plan, foundation, pid, control)
    })
}

fn start_network(
    plan: &Plan,
    foundation: &Foundation,
    pid: Pid,
    control: BorrowedFd<'_>,
) -> Result<AdoptedNetwork, StartError> {
    let Some(rules) = &plan.network else {
        return Ok(AdoptedNetwork::default());
    };
    let range = foundation.range.as_ref();
    let ids = range.map(|range| ProxyIds { id: range.last() });
    let proxy = Proxy::start(rules, ids).map_err(StartError::Proxy)?;
    let authority = match rules.opens_tls() {
        true => proxy.authority(PROXY_PATIENCE).map_err(StartError::Proxy)?,
        false => String::new(),
    };
    let init = user_namespace_of(pid, range.is_some());
    let helper = network::start(init, control, Some((rules, &proxy)))?;
    Ok(AdoptedNetwork {
        proxy: Some(proxy),
        helper: Some(helper),
        authority,
    })
}

/// PID 1, where it has a user namespace that the network namespace is to belong to.
fn user_namespace_of(pid: Pid, ranged: bool) -> Option<Pid> {
    (!ranged && !without(Layer::UserNs)).then_some(pid)
}
