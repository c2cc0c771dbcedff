//! Calls that would take the home or the workspace away: each is on record with what holds it.

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_model::{EventKind, Intent};
use ironcage_plan::{Plan, Standing, locate};
use std::path::Path;

/// Calls of this kind that have lines of their own: who has the model repeat one fills no disk.
const MOST: u32 = 64;

/// What becomes of something that is removed in a cage with this plan.
fn held(plan: &Plan, path: &Path) -> String {
    match locate(plan, path).standing {
        Standing::Ephemeral | Standing::Made => {
            "that is the cage's own and goes with it; the host's is not in the cage".to_owned()
        }
        Standing::CopyOnWrite(_) => "the change is kept aside until you apply it".to_owned(),
        Standing::Writable(place) if place == path => {
            "nothing holds it: the cage writes to the host's own files there".to_owned()
        }
        Standing::Writable(_) => {
            "that is what is kept for such cages; the host's is not in the cage".to_owned()
        }
        Standing::ReadOnly(_) | Standing::Locked(_) | Standing::Protected => {
            "it is read-only in the cage".to_owned()
        }
        Standing::Absent | Standing::Leads | Standing::Hidden => {
            "nothing of it is in the cage but what leads deeper".to_owned()
        }
        Standing::Device | Standing::Kernel => "it is the kernel's".to_owned(),
    }
}

/// What holds a removal, with the workspace where that is taken along.
fn reason(plan: &Plan, removed: &str) -> String {
    let place = Path::new(removed.strip_suffix("/*").unwrap_or(removed));
    let workspace = &plan.workspace;
    let mut reason = held(plan, place);
    if workspace != place && workspace.starts_with(place) {
        reason = format!("{reason}; the workspace: {}", held(plan, workspace));
    }
    reason
}

impl Supervision<'_> {
    /// Puts on record what a call would take away.
    pub(super) fn record_ruin(&mut self, intent: &Intent) -> Result<(), RunError> {
        for path in intent.removes.iter().filter(|path| path.starts_with('/')) {
            if self.intents.ruins >= MOST {
                break;
            }
            self.intents.ruins += 1;
            self.recorder.write(EventKind::IntentRuin {
                tool: intent.tool.clone(),
                call: intent.id.clone(),
                path: path.clone(),
                reason: reason(self.plan, path),
            })?;
        }
        Ok(())
    }
}
