//! Compares the user's task with what is asked for. The task was given before anything that an
//! attacker could have written was read, so nothing said later explains what it does not name.

use crate::announced::Place;
use ironcage_model::{HostName, Printable, Resource};
use ironcage_plan::Leases;

/// Names of the task that a reason tells.
const MOST_TOLD: usize = 3;

/// Whether the task names places of this kind that can be leased, and this is none of them nor
/// around or in one: then the names that it has.
pub(crate) fn outside(leases: &Leases, resource: &Resource) -> Option<String> {
    let task = leases.task.as_ref()?;
    let places: Vec<Place> = match resource {
        Resource::Path { .. } => task.paths.iter().cloned().map(Place::Path).collect(),
        Resource::Host { .. } => {
            let names = task.hosts.iter();
            let names = names.filter_map(|name| HostName::from_ascii(name.as_bytes()).ok());
            names.map(Place::Host).collect()
        }
        _ => return None,
    };
    let narrows = places.iter().any(|place| place.is_leasable(leases));
    if !narrows || places.iter().any(|place| place.names(resource)) {
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
