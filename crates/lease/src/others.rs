//! Leases on anything but files: hosts, requests, secrets, sockets, ports, limits, and for one
//! command system calls and capabilities.

use crate::decide::{Asked, NotGiven, Part};
use ironcage_model::{Extent, LimitKind, Mark, Printable, Resource, Scope};
use ironcage_plan::{Item, LeasePart, Leases, Plan};

/// What is given of a resource, and by which part of the ceiling; or why nothing is.
pub(crate) fn find(
    plan: &Plan,
    leases: &Leases,
    wanted: &Resource,
    asked: &Asked<'_>,
) -> Result<(Resource, Part), NotGiven> {
    if let Resource::Path { .. } = wanted {
        return Err(NotGiven::refused("a path comes with a descriptor of it"));
    }
    check_uses(wanted, asked)?;
    check_scope(wanted, asked)?;
    by_base(plan, wanted)?;
    let part = strictest(leases, wanted).map_err(NotGiven::Refused)?;
    let part = Part {
        mark: part.what.mark,
        origin: part.origin.clone(),
    };
    Ok((wanted.clone(), part))
}

fn check_uses(wanted: &Resource, asked: &Asked<'_>) -> Result<(), NotGiven> {
    match (asked.uses, wanted) {
        (Some(0), _) => Err(NotGiven::refused("a lease for no use at all is none")),
        (Some(_), _) if matches!(asked.scope, Scope::Exec { .. }) => Err(NotGiven::refused(
            "nobody counts the uses of one command: its leases end with it",
        )),
        (
            Some(_),
            Resource::Limit { .. } | Resource::Syscalls { .. } | Resource::Capability { .. },
        ) => Err(NotGiven::refused(format!(
            "nobody counts the uses of a {}: name a time instead",
            wanted.kind()
        ))),
        _ => Ok(()),
    }
}

fn check_scope(wanted: &Resource, asked: &Asked<'_>) -> Result<(), NotGiven> {
    match (wanted, asked.scope) {
        (Resource::Syscalls { .. } | Resource::Capability { .. }, Scope::Cage) => {
            Err(NotGiven::refused(format!(
                "a {} is given to one command, not to a running cage: its filters only ever tighten; use `ironcage exec --lease`",
                wanted.kind()
            )))
        }
        _ => Ok(()),
    }
}

/// What the cage has without any lease, and what stands against any.
fn by_base(plan: &Plan, wanted: &Resource) -> Result<(), NotGiven> {
    let has = |by: &str| {
        Err(NotGiven::Base(format!(
            "the cage has it anyway ({})",
            Printable::new(by)
        )))
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
                return Err(NotGiven::refused(format!(
                    "the policy denies {} to this cage ({})",
                    rule.what.rule,
                    Printable::new(&rule.origin)
                )));
            }
            let listed = network.http.iter();
            let mut listed = listed.filter(|item| {
                let host = Extent::Host(item.what.rule.host.clone());
                host.meets(wanted)
            });
            if let Resource::Host { .. } = wanted
                && let Some(rule) = listed.next()
            {
                return Err(NotGiven::refused(format!(
                    "the policy lists the requests that this host gets ({}, {}), and a lease on the host would give it no others; ask for requests with --http",
                    rule.what.rule,
                    Printable::new(&rule.origin)
                )));
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
                _ => {
                    return Err(NotGiven::refused(
                        "only memory, cpus and pids can be given while a cage runs",
                    ));
                }
            };
            match *value <= bound.what.value {
                true => has(&bound.origin),
                false => Ok(()),
            }
        }
        Resource::Path { .. }
        | Resource::Port { .. }
        | Resource::Syscalls { .. }
        | Resource::Capability { .. } => Ok(()),
    }
}

/// The part of the ceiling that decides: denying wins wherever it meets what is wanted, asking
/// over giving at once.
fn strictest<'a>(leases: &'a Leases, wanted: &Resource) -> Result<&'a Item<LeasePart>, String> {
    let marked = |mark: Mark| {
        let parts = leases.others.iter();
        parts.filter(move |part| part.what.mark == mark)
    };
    if let Some(part) = marked(Mark::Deny).find(|part| part.what.extent.meets(wanted)) {
        return Err(format!(
            "the ceiling denies {} ({})",
            part.what.extent,
            Printable::new(&part.origin)
        ));
    }
    let gives = |part: &&Item<LeasePart>| part.what.extent.covers(wanted);
    let kept_back = marked(Mark::Ask).find(|part| part.what.extent.meets(wanted));
    let found = match (marked(Mark::Auto).find(gives), kept_back) {
        (Some(auto), None) => Some(auto),
        (Some(_), Some(ask)) => Some(ask),
        (None, _) => marked(Mark::Ask).find(gives),
    };
    // What a person has approved for good is asked for no more.
    let asks = found.is_some_and(|part| part.what.mark == Mark::Ask);
    let found = marked(Mark::Always).find(gives).filter(|_| asks).or(found);
    found.ok_or_else(|| {
        let section = match wanted {
            Resource::Limit { .. } => "limits",
            Resource::Syscalls { .. } => "syscalls",
            Resource::Capability { .. } => "process",
            _ => "network",
        };
        format!(
            "{wanted} is outside of the cage's ceiling; its policy would have to name it in [ceiling.ask.{section}]"
        )
    })
}
