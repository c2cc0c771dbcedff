//! Compares the user's task with what is asked for. The task was given before anything that an
//! attacker could have written was read, so nothing said later explains what it does not name.

use crate::announced::Place;
use ironcage_model::{Destination, Extent, HostName, HostRule, Mark, Printable, Resource};
use ironcage_plan::{Leases, Plan};
use std::path::Path;

/// Names of the task that a reason tells.
const MOST_TOLD: usize = 3;

/// Whether the task names places of this kind that can be leased, and this is none of them nor in
/// one: then the names that it has. What is around a named place is more than was named, except in a
/// view that is written by leases: there a lease on a file is one on its directory.
pub(crate) fn outside(plan: &Plan, leases: &Leases, resource: &Resource) -> Option<String> {
    let task = leases.task.as_ref()?;
    let places: Vec<Place> = match resource {
        Resource::Path { .. } => task.paths.iter().cloned().map(Place::Path).collect(),
        Resource::Host { .. } | Resource::Http { .. } => {
            let names = task.hosts.iter();
            let names = names.filter_map(|name| HostName::from_ascii(name.as_bytes()).ok());
            names.map(Place::Host).collect()
        }
        _ => return None,
    };
    let narrows = places.iter().any(|place| is_leasable(place, leases));
    if !narrows || places.iter().any(|place| names(plan, place, resource)) {
        return None;
    }
    let told = places.iter().take(MOST_TOLD);
    let told: Vec<String> = told
        .map(|place| Printable::new(&place.text()).to_string())
        .collect();
    let more = places.len().saturating_sub(MOST_TOLD);
    Some(match more {
        0 => told.join(", "),
        more => format!("{} and {more} more", told.join(", ")),
    })
}

/// Whether the place is this, or this lies in it.
fn names(plan: &Plan, place: &Place, resource: &Resource) -> bool {
    let host = |name: &HostName, rule: &HostRule| matches!(&rule.to, Destination::Name(own) if own == name);
    match (place, resource) {
        (Place::Path(path), Resource::Path { path: wanted, .. }) => {
            let wanted = Path::new(wanted);
            // What lies right below the root holds too much to say anything.
            wanted == path
                || (path.components().count() > 2 && wanted.starts_with(path))
                || (path.parent() == Some(wanted) && plan.is_locked(wanted))
        }
        (Place::Host(name), Resource::Host { rule }) => host(name, rule),
        (Place::Host(name), Resource::Http { rule }) => host(name, &rule.host),
        _ => false,
    }
}

/// Whether it could be leased: a host by its requests alone, too.
fn is_leasable(place: &Place, leases: &Leases) -> bool {
    let by_requests = |name: &HostName| {
        let mut parts = leases.others.iter();
        parts.any(|part| match &part.what.extent {
            Extent::Http(rule) if rule.host.to != Destination::Any => {
                part.what.mark != Mark::Deny && rule.host.knows(name)
            }
            _ => false,
        })
    };
    place.is_leasable(leases) || matches!(place, Place::Host(name) if by_requests(name))
}
