//! Leases on everything except files: hosts, requests, secrets, sockets, ports and limits, and for
//! one command also system calls and capabilities.

use crate::decide::{NotGranted, Part, RequestedLease};
use ironcage_model::{Extent, LeaseReason, LimitKind, Mark, Resource, Scope};
use ironcage_plan::{Item, LeasePart, Leases, Plan};

/// Returns the resource to grant and the part of the ceiling that allows it, or why it is denied.
pub(crate) fn find(
    plan: &Plan,
    leases: &Leases,
    wanted: &Resource,
    asked: &RequestedLease<'_>,
) -> Result<(Resource, Part), NotGranted> {
    if let Resource::Path { .. } = wanted {
        return Err(LeaseReason::NoDescriptor.into());
    }
    check_uses(wanted, asked)?;
    check_scope(wanted, asked)?;
    by_base(plan, wanted)?;
    let part = strictest(leases, wanted)?;
    let part = Part {
        mark: part.what.mark,
        origin: part.origin.clone(),
    };
    Ok((wanted.clone(), part))
}

fn check_uses(wanted: &Resource, asked: &RequestedLease<'_>) -> Result<(), NotGranted> {
    match (asked.uses, wanted) {
        (Some(0), _) => Err(LeaseReason::NoUses.into()),
        (Some(_), _) if matches!(asked.scope, Scope::Exec { .. }) => {
            Err(LeaseReason::UsesOfCommand.into())
        }
        (
            Some(_),
            Resource::Limit { .. } | Resource::Syscalls { .. } | Resource::Capability { .. },
        ) => Err(LeaseReason::UsesNotCounted {
            kind: wanted.kind().to_string(),
        }
        .into()),
        _ => Ok(()),
    }
}

fn check_scope(wanted: &Resource, asked: &RequestedLease<'_>) -> Result<(), NotGranted> {
    match (wanted, asked.scope) {
        (Resource::Syscalls { .. } | Resource::Capability { .. }, Scope::Cage) => {
            Err(LeaseReason::FiltersOnlyTighten {
                kind: wanted.kind().to_string(),
            }
            .into())
        }
        (Resource::Key { .. }, _) => Err(LeaseReason::KeyNotLeased.into()),
        _ => Ok(()),
    }
}

/// Checks what the cage has without a lease, and what rules out any lease.
fn by_base(plan: &Plan, wanted: &Resource) -> Result<(), NotGranted> {
    let has = |by: &str| {
        let origin = by.to_owned();
        Err(NotGranted::Base(LeaseReason::InBase { origin }))
    };
    let network = plan.network.as_ref();
    match wanted {
        Resource::Host { .. } | Resource::Http { .. } => {
            let Some(network) = network else {
                return Ok(());
            };
            let mut denied = network.deny.iter();
            if let Some(rule) =
                denied.find(|item| Extent::Host(item.what.rule.clone()).covers(wanted))
            {
                return Err(LeaseReason::DeniedByPolicy {
                    rule: rule.what.rule.to_string(),
                    origin: rule.origin.clone(),
                }
                .into());
            }
            let listed = network.http.iter();
            let mut listed = listed.filter(|item| {
                let host = Extent::Host(item.what.rule.host.clone());
                host.meets(wanted)
            });
            if let Resource::Host { .. } = wanted
                && let Some(rule) = listed.next()
            {
                return Err(LeaseReason::RequestsOnly {
                    rule: rule.what.rule.to_string(),
                    origin: rule.origin.clone(),
                }
                .into());
            }
            if let Some(rule) =
                listed.find(|item| Extent::Http(item.what.rule.clone()).covers(wanted))
            {
                return has(&rule.origin);
            }
            let mut allowed = network.allow.iter();
            match allowed.find(|item| Extent::Host(item.what.rule.clone()).covers(wanted)) {
                Some(rule) => has(&rule.origin),
                None => Ok(()),
            }
        }
        Resource::Secret { name } => {
            let mut known = network.iter().flat_map(|network| &network.secrets);
            match known.find(|item| item.what.rule.name == *name && !item.what.rule.leased) {
                Some(item) => has(&item.origin),
                None => Ok(()),
            }
        }
        Resource::Socket { path } => {
            let mut known = network.iter().flat_map(|network| &network.sockets);
            match known
                .find(|item| item.what.path.as_os_str() == path.as_str() && !item.what.leased)
            {
                Some(item) => has(&item.origin),
                None => Ok(()),
            }
        }
        Resource::Limit { limit, value } => {
            let bound = match limit {
                LimitKind::Memory => &plan.bounds.memory,
                LimitKind::Cpus => &plan.bounds.cpu,
                LimitKind::Pids => &plan.bounds.pids,
                _ => return Err(LeaseReason::LimitFixed.into()),
            };
            match *value <= bound.what.value {
                true => has(&bound.origin),
                false => Ok(()),
            }
        }
        Resource::Path { .. }
        | Resource::Port { .. }
        | Resource::Syscalls { .. }
        | Resource::Capability { .. }
        | Resource::Key { .. } => Ok(()),
    }
}

/// Returns the part of the ceiling that decides: `deny` wins wherever it overlaps the request, and
/// `ask` wins over `auto`.
fn strictest<'a>(
    leases: &'a Leases,
    wanted: &Resource,
) -> Result<&'a Item<LeasePart>, LeaseReason> {
    let marked = |mark: Mark| {
        let parts = leases.others.iter();
        parts.filter(move |part| part.what.mark == mark)
    };
    if let Some(part) = marked(Mark::Deny).find(|part| part.what.extent.meets(wanted)) {
        return Err(LeaseReason::DeniedByCeiling {
            resource: part.what.extent.to_string(),
            origin: part.origin.clone(),
        });
    }
    let gives = |part: &&Item<LeasePart>| part.what.extent.covers(wanted);
    let kept_back = marked(Mark::Ask).find(|part| part.what.extent.meets(wanted));
    let found = match (marked(Mark::Auto).find(gives), kept_back) {
        (Some(auto), None) => Some(auto),
        (Some(_), Some(ask)) => Some(ask),
        (None, _) => marked(Mark::Ask).find(gives),
    };
    // A standing approval replaces asking.
    let asks = found.is_some_and(|part| part.what.mark == Mark::Ask);
    let found = marked(Mark::Always).find(gives).filter(|_| asks).or(found);
    found.ok_or_else(|| {
        let section = match wanted {
            Resource::Limit { .. } => "limits",
            Resource::Syscalls { .. } => "syscalls",
            Resource::Capability { .. } => "process",
            _ => "network",
        };
        LeaseReason::AboveCeiling {
            resource: wanted.to_string(),
            section: section.into(),
        }
    })
}
