//! Actions that the model announces for its agent: leases that are there before it is done, and
//! gone after.
//!
//! The egress proxy reads the answers; what comes here is a short list of names. [`part`] owns what
//! follows from it; here the loop looks at files, asks for leases, and gives the answers back.

mod part;
mod removal;
mod trust;

pub(crate) use part::{CallNeeds, IntentEvent, Intents};

use crate::RunError;
use crate::needed::{Names, Need, Needed, Nesting};
use crate::supervise::Supervision;
use ironcage_model::{EventKind, Extent, HostRule, Intent, Mark, Overheard, SupervisorReason};
use ironcage_plan::Plan;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

/// A path as a call may name it.
fn plain(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let steps = path.components();
    let plain = path.is_absolute()
        && !steps
            .into_iter()
            .any(|step| matches!(step, Component::ParentDir | Component::CurDir));
    plain.then(|| path.to_owned())
}

/// Whether the cage reaches a host without a lease.
pub(crate) fn in_base(plan: &Plan, rule: &HostRule) -> bool {
    let wanted = Extent::Host(rule.clone());
    let network = plan.network.iter();
    let mut allowed = network.flat_map(|network| &network.allow);
    allowed.any(|item| wanted.lies_in(&Extent::Host(item.what.rule.clone())))
}

impl Supervision<'_> {
    /// Gives an event to the intents.
    pub(crate) fn intent_event(
        &mut self,
        event: IntentEvent,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.intents.handle(event, now);
        self.apply(effects, now)
    }

    /// The proxy has read something between the agent and its model.
    pub(crate) fn overheard(&mut self, overheard: Overheard, now: Instant) -> Result<(), RunError> {
        match overheard {
            Overheard::Call(intent) => {
                if self.plan.leases.is_none() || !self.requests.spend(now) {
                    return Ok(());
                }
                self.intent_event(IntentEvent::Announced(intent), now)
            }
            Overheard::Words(named) => self.intent_event(IntentEvent::Words(named), now),
            Overheard::Returned(ids) => self.intent_event(IntentEvent::Returned(ids), now),
            Overheard::NotRead { times, why } => match self.requests.spend(now) {
                true => {
                    let reason = SupervisorReason::IntentNotRead { error: why }.into();
                    let kind = EventKind::IntentUnread { times, reason };
                    self.audit.write(kind)
                }
                false => Ok(()),
            },
        }
    }

    /// Looks what a call needs, by the files that it names.
    pub(crate) fn look_up_needs(&mut self, intent: Intent, now: Instant) -> Result<(), RunError> {
        let plan = self.plan;
        let Some(leases) = &plan.leases else {
            return Ok(());
        };
        let mut opens_paths = leases.paths.iter();
        if opens_paths.any(|part| part.what.mark == Mark::Auto) {
            // It takes a moment to be there; what it would be missed for is told when it is.
            let _ = self.start_helper();
        }
        let paths = |texts: &[String]| texts.iter().filter_map(|text| plain(text)).collect();
        let names = Names {
            reads: paths(&intent.reads),
            writes: paths(&intent.writes),
            contacts: intent.contacts.clone(),
        };
        let mut needed = Needed::of(plan, &names, Nesting::Merged);
        let declared = |need: &Need| match need {
            Need::Host(rule) => Some(rule.clone()),
            Need::Path { .. } | Need::Name(_) => None,
        };
        let hosts = needed.needs.iter().filter_map(declared).collect();
        needed
            .needs
            .retain(|need| !matches!(need, Need::Host(rule) if in_base(plan, rule)));
        let needs = CallNeeds {
            hosts,
            needed,
            // Where the shell has scopes, its command asks for itself.
            asks_itself: intent.shell && plan.shares_storage(),
        };
        self.intent_event(IntentEvent::Needs { intent, needs }, now)
    }

    /// Puts on record what a call would take away, with what holds it.
    pub(crate) fn record_removal(
        &mut self,
        tool: String,
        call: Option<String>,
        path: String,
    ) -> Result<(), RunError> {
        let held = removal::held(self.plan, &path);
        let reason = SupervisorReason::IntentRemoves { held }.into();
        self.audit.write(EventKind::IntentRuin {
            tool,
            call,
            path,
            reason,
        })
    }

    /// Looks how what a call needs meets the leases that are there.
    pub(crate) fn meet_need(&mut self, call: u32, need: u32, now: Instant) -> Result<(), RunError> {
        let Some(resource) = self.intents.need(call, need) else {
            return Ok(());
        };
        let event = IntentEvent::Met {
            call,
            need,
            meeting: self.leases.meet(&resource),
        };
        self.intent_event(event, now)
    }

    /// Asks for what a call needs.
    pub(crate) fn request_need(
        &mut self,
        call: u32,
        need: u32,
        now: Instant,
    ) -> Result<(), RunError> {
        let Some(request) = self.intents.take_request(call, need, now) else {
            return Ok(());
        };
        let before = self.leases.last_number();
        self.request_lease(request, now)?;
        let lease = self.leases.last_number();
        match lease == before {
            true => Ok(()),
            // It is being opened: whoever needs it meanwhile shares it.
            false => self.intent_event(IntentEvent::Opening { call, lease }, now),
        }
    }

    /// Stops the cage for a person to look at.
    pub(crate) fn freeze_for_review(&mut self, now: Instant) -> Result<(), RunError> {
        match !self.is_frozen() && self.freeze() {
            true => self.tell_of_freeze(now),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_are_looked_at() {
        assert!(plain("/a/b").is_some());
        for text in ["a", "/a/../b", "", "../x", "/.."] {
            assert!(plain(text).is_none(), "{text}");
        }
    }
}
