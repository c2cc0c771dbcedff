//! The part of a scope's plan that its leases add: what is not a path holds from the scope's start
//! to its end.

use super::leases::ScopeLease;
use ironcage_layers::cgroup;
use ironcage_model::{LeaseReason, LimitKind, NetworkReason, Reason, Resource, SupervisorReason};
use ironcage_plan::{Capability, Item, NetworkRule, Plan, RequestRule};

/// Puts into a scope's plan what is not a path: it holds from the scope's start to its end. `cage`
/// is the plan of its cage.
pub(super) fn plan_for(plan: &mut Plan, leases: &[ScopeLease], cage: &Plan) -> Result<(), Reason> {
    let none = NetworkReason::NoNetwork;
    let lacks = |what: &str| SupervisorReason::ScopeLacks { what: what.into() };
    for lease in leases {
        let lease = lease.lease();
        let origin = format!("lease {}", lease.number);
        match &lease.resource {
            Resource::Path { .. } => {}
            Resource::Host { rule } => {
                let network = plan.network.as_mut().ok_or_else(|| none.clone())?;
                let what = NetworkRule {
                    rule: rule.clone(),
                    bundle: None,
                };
                network.allow.push(Item { what, origin });
            }
            Resource::Key { .. } => return Err(LeaseReason::KeyNotLeased.into()),
            Resource::Syscalls { group } => {
                let filter = plan.seccomp.with_group(group);
                plan.seccomp =
                    filter.ok_or_else(|| lacks("there is no such group of system calls"))?;
            }
            Resource::Capability { name } => {
                let found = ironcage_catalog::capabilities::find(name);
                let found = found.filter(|found| found.allowed);
                let found = found.ok_or_else(|| lacks("no cage can have this capability"))?;
                let what = Capability {
                    name: found.name.to_owned(),
                    number: found.number.into(),
                };
                plan.capabilities.push(Item { what, origin });
            }
            Resource::Http { rule } => {
                let network = plan.network.as_mut().ok_or_else(|| none.clone())?;
                if !network.opens_tls() {
                    return Err(NetworkReason::NoInterception.into());
                }
                let what = RequestRule { rule: rule.clone() };
                network.http.push(Item { what, origin });
            }
            Resource::Secret { name } => {
                let network = plan.network.as_mut().ok_or_else(|| none.clone())?;
                let mut secrets = network.secrets.iter_mut();
                let known = secrets.find(|item| item.what.rule.name == *name);
                let known = known.ok_or_else(|| lacks("the cage has no such secret"))?;
                known.what.rule.leased = false;
            }
            Resource::Socket { path } => {
                let outer = cage.network.iter().flat_map(|network| &network.sockets);
                let mut outer = outer.filter(|item| item.what.path.as_os_str() == path.as_str());
                let mut socket = outer.next().ok_or(LeaseReason::SocketUnknown)?.clone();
                socket.what.leased = false;
                plan.network.as_ref().ok_or_else(|| none.clone())?;
                plan.add_socket(socket);
            }
            // By a listener of the scope's own proxy, when that is there.
            Resource::Port { .. } => {
                plan.network.as_ref().ok_or_else(|| none.clone())?;
            }
            Resource::Limit { limit, value } => {
                let bounds = &mut plan.bounds;
                let (bound, controller) = match limit {
                    LimitKind::Memory => (&mut bounds.memory, "memory"),
                    LimitKind::Cpus => (&mut bounds.cpu, "cpu"),
                    LimitKind::Pids => (&mut bounds.pids, "pids"),
                    _ => return Err(LeaseReason::LimitFixed.into()),
                };
                if !cgroup::has_controller(&cage.cgroup, controller) {
                    let limit = limit.to_string();
                    return Err(LeaseReason::LimitWithoutCgroup { limit }.into());
                }
                bound.what.value = *value;
                bound.origin = origin;
            }
        }
    }
    plan.update_machine();
    Ok(())
}
