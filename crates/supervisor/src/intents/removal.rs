//! Finds what stops a call that would remove the home or the workspace.

use ironcage_plan::{PathStatus, Plan, locate};
use std::path::Path;

/// What becomes of something that is removed in a cage with this plan.
fn held_at(plan: &Plan, path: &Path) -> String {
    match locate(plan, path).standing {
        PathStatus::Ephemeral | PathStatus::Made => {
            "that is the cage's own and goes with it; the host's is not in the cage".to_owned()
        }
        PathStatus::CopyOnWrite(_) => "the change is kept aside until you apply it".to_owned(),
        PathStatus::Writable(place) if place == path => {
            "nothing holds it: the cage writes to the host's own files there".to_owned()
        }
        PathStatus::Writable(_) => {
            "that is what is kept for such cages; the host's is not in the cage".to_owned()
        }
        PathStatus::ReadOnly(_) | PathStatus::Locked(_) | PathStatus::Protected => {
            "it is read-only in the cage".to_owned()
        }
        PathStatus::Absent | PathStatus::Leads | PathStatus::Hidden => {
            "nothing of it is in the cage but what leads deeper".to_owned()
        }
        PathStatus::Device | PathStatus::Kernel => "it is the kernel's".to_owned(),
    }
}

/// What holds a removal, with the workspace where that is taken along.
pub(super) fn held(plan: &Plan, removed: &str) -> String {
    let place = Path::new(removed.strip_suffix("/*").unwrap_or(removed));
    let workspace = &plan.workspace;
    let mut held = held_at(plan, place);
    if workspace != place && workspace.starts_with(place) {
        held = format!("{held}; the workspace: {}", held_at(plan, workspace));
    }
    held
}
