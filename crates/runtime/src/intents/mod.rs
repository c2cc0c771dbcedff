//! What the model says that the agent is about to do: leases that are there before it is done, and
//! gone after.
//!
//! The network door reads the answers; what comes here is a short list of names, and is taken as
//! if an attacker had written it, since whoever the model listens to may have. It opens what the
//! ceiling gives at once, raises a question for what it asks about, and nothing else.

mod ruin;
mod trust;

use crate::RunError;
use crate::leases::{LeaseOutcome, LeaseRequest, Meeting, Requester};
use crate::needed::{Names, Need, Needed};
use crate::supervise::Supervision;
use ironcage_control::{GrantRequest, Wanted};
use ironcage_lease::Words;
use ironcage_model::{
    Approver, Contact, EventKind, Extent, HostRule, Intent, IntentRecord, LeaseOrigin, Mark,
    Overheard, Resource, Term, Trust, WordsMode,
};
use ironcage_plan::Plan;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use trust::Trusted;

/// Calls at once, whose results have not come.
const MOST: usize = 64;
/// What waits for leases that are ending, of all calls: each is a descriptor of the supervisor's.
const MOST_LATER: usize = 32;
/// Longest name of the model's words that stands beside a question, in characters.
const ANNOUNCED: usize = 200;
/// How long a call is waited for where the policy has no bound.
const LONGEST: Duration = Duration::from_secs(8 * 3600);

/// The calls of a cage's model that are under way.
#[derive(Debug, Default)]
pub(crate) struct Intents {
    calls: Vec<Call>,
    last: u32,
    trusted: Trusted,
    /// What the model's words named.
    words: Words,
    /// Calls on record that would take the home or the workspace away.
    ruins: u32,
}

/// One call.
#[derive(Debug)]
struct Call {
    number: u32,
    /// By which its result is known.
    id: Option<String>,
    tool: String,
    /// Where it said that it connects to.
    hosts: Vec<HostRule>,
    /// Whether it may do more than it said.
    open: bool,
    /// Those of them that it names itself, and not by a bundle or a remote.
    spelled: Vec<HostRule>,
    /// Leases that are there for it.
    leases: Vec<u32>,
    /// What it needs that a lease which is ending stands in the way of.
    later: Vec<Need>,
    until: Instant,
}

impl Intents {
    /// How far the cage is trusted.
    pub(crate) fn trust(&self) -> Trust {
        self.trusted.trust()
    }

    /// Whether nothing is to be given at once any more.
    pub(crate) fn is_distrusted(&self) -> bool {
        self.trusted.trust() >= Trust::Asked
    }

    /// Where the model's words named something, shortened.
    pub(crate) fn announced(&self, resource: &Resource, now: Instant) -> Option<String> {
        let named = self.words.naming(resource, now)?;
        Some(named.chars().take(ANNOUNCED).collect())
    }
}

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
    /// The door has read something between the agent and its model.
    pub(crate) fn overheard(&mut self, overheard: Overheard, now: Instant) -> Result<(), RunError> {
        match overheard {
            Overheard::Call(intent) => self.intend(&intent, now),
            // Kept for what is asked later. Words ask for nothing, so nothing is asked for here.
            Overheard::Words(named) => {
                self.intents.words.hear(&named, now);
                Ok(())
            }
            Overheard::Returned(ids) => self.returned(&ids, now),
            Overheard::NotRead { times, why } => match self.leases.pace.spend(now) {
                true => {
                    let kind = EventKind::IntentUnread { times, reason: why };
                    self.recorder.write(kind)
                }
                false => Ok(()),
            },
        }
    }

    /// A tool is about to be called: what it needs is asked for in its name.
    fn intend(&mut self, intent: &Intent, now: Instant) -> Result<(), RunError> {
        let Some(leases) = &self.plan.leases else {
            return Ok(());
        };
        if !self.leases.pace.spend(now) {
            return Ok(());
        }
        self.record_ruin(intent)?;
        self.forget_late_calls(now);
        if self.intents.calls.len() >= MOST {
            return self.recorder.write(EventKind::IntentUnread {
                times: 1,
                reason: format!("{MOST} calls are under way"),
            });
        }
        let mut opens_paths = leases.paths.iter();
        if opens_paths.any(|part| part.what.mark == Mark::Auto) {
            // It takes a moment to be there; what it would be missed for is told when it is.
            let _ = self.start_keeper();
        }
        let paths = |texts: &[String]| texts.iter().filter_map(|text| plain(text)).collect();
        let names = Names {
            reads: paths(&intent.reads),
            writes: paths(&intent.writes),
            contacts: intent.contacts.clone(),
        };
        let mut needed = Needed::of(self.plan, &names);
        let declared = |need: &Need| match need {
            Need::Host(rule) => Some(rule.clone()),
            Need::Path { .. } => None,
        };
        let mut hosts: Vec<HostRule> = needed.needs.iter().filter_map(declared).collect();
        let spelled = intent.contacts.iter().filter_map(|contact| match contact {
            Contact::Host(text) => text.parse().ok(),
            Contact::Bundle(_) | Contact::Remote(_) => None,
        });
        let spelled: Vec<HostRule> = spelled.collect();
        hosts.extend(spelled.iter().cloned());
        let plan = self.plan;
        needed
            .needs
            .retain(|need| !matches!(need, Need::Host(rule) if in_base(plan, rule)));
        self.intents.last = self.intents.last.wrapping_add(1).max(1);
        let number = self.intents.last;
        let term = self.term_of_calls();
        self.intents.calls.push(Call {
            number,
            id: intent.id.clone(),
            tool: intent.tool.clone(),
            hosts,
            open: intent.open,
            spelled,
            leases: Vec::new(),
            later: Vec::new(),
            until: now.checked_add(term).unwrap_or(now),
        });
        // Where the shell has scopes, its command asks for itself, and alone has what it gets.
        let asks_itself = intent.shell && plan.shares_storage();
        if asks_itself || (needed.needs.is_empty() && needed.refused.is_empty()) {
            return Ok(());
        }
        let wanted = needed.needs.iter().map(Need::resource);
        let refused = needed
            .refused
            .iter()
            .map(|refused| refused.resource.clone());
        self.recorder.write(EventKind::Intent(IntentRecord {
            tool: intent.tool.clone(),
            call: intent.id.clone(),
            needs: wanted.chain(refused).collect(),
            open: intent.open,
            shell: false,
        }))?;
        for refused in needed.refused {
            let origin = LeaseOrigin::Answer;
            self.record_refusal(refused.resource, origin, refused.reason, now)?;
        }
        for need in needed.needs {
            self.ask_for_call(number, need, now)?;
        }
        Ok(())
    }

    /// How long what a call opens may be open.
    fn term_of_calls(&self) -> Duration {
        let leases = self.plan.leases.as_ref();
        let longest = leases.and_then(|leases| leases.call_longest);
        self.intents.trusted.shorten(longest.unwrap_or(LONGEST))
    }

    /// Asks for something in the name of a call. What is open for another call is shared with it.
    fn ask_for_call(&mut self, number: u32, need: Need, now: Instant) -> Result<(), RunError> {
        match self.leases.meet(&need.resource()) {
            Meeting::Has { lease, origin } => {
                if origin == LeaseOrigin::Answer {
                    self.hold_for_call(number, lease);
                }
                return Ok(());
            }
            Meeting::Ending => {
                let waiting: usize = self.intents.calls.iter().map(|call| call.later.len()).sum();
                if waiting >= MOST_LATER {
                    let reason = "too much else waits for leases that are ending".to_owned();
                    let origin = LeaseOrigin::Answer;
                    return self.record_refusal(need.resource(), origin, reason, now);
                }
                if let Some(call) = self.call(number) {
                    call.later.push(need);
                }
                return Ok(());
            }
            Meeting::None => {}
        }
        let unannounced = self.strays(number, &need, now);
        let tool = self.call(number).map(|call| call.tool.clone());
        let (wanted, descriptor) = match need {
            Need::Path { right, handle, .. } => (Wanted::Path { right }, Some(handle)),
            Need::Host(rule) => (Wanted::Other(Resource::Host { rule }), None),
        };
        let term = self.term_of_calls();
        let request = LeaseRequest {
            by: Requester::Call(number),
            origin: LeaseOrigin::Answer,
            grant: GrantRequest {
                wanted,
                term: Term::Milliseconds(u64::try_from(term.as_millis()).unwrap_or(u64::MAX)),
                uses: None,
                reason: format!("the model calls {}", tool.unwrap_or_default()),
            },
            descriptor,
            unannounced,
        };
        let before = self.leases.last_number();
        self.request_lease(request, now)?;
        let after = self.leases.last_number();
        if after != before {
            // It is being opened: whoever needs it meanwhile shares it.
            self.hold_for_call(number, after);
        }
        Ok(())
    }

    /// Whether what a call needs is asked for because the model's words name other places.
    fn strays(&self, number: u32, need: &Need, now: Instant) -> bool {
        let Some(leases) = &self.plan.leases else {
            return false;
        };
        if leases.words != WordsMode::Narrow {
            return false;
        }
        let spelled = |rule: &HostRule| {
            let mut calls = self.intents.calls.iter();
            let call = calls.find(|call| call.number == number);
            call.is_some_and(|call| call.spelled.contains(rule))
        };
        // Of a bundle nobody writes the hosts.
        let told = match need {
            Need::Path { .. } => true,
            Need::Host(rule) => spelled(rule),
        };
        told && self.intents.words.stray(&need.resource(), leases, now)
    }

    fn call(&mut self, number: u32) -> Option<&mut Call> {
        let mut calls = self.intents.calls.iter_mut();
        calls.find(|call| call.number == number)
    }

    fn hold_for_call(&mut self, number: u32, lease: u32) {
        if let Some(call) = self.call(number)
            && !call.leases.contains(&lease)
        {
            call.leases.push(lease);
        }
    }

    /// What came of something that was asked for in the name of a call.
    pub(crate) fn call_answered(
        &mut self,
        number: u32,
        outcome: LeaseOutcome,
        now: Instant,
    ) -> Result<(), RunError> {
        // What is refused is on record; a question waits for its answer.
        let LeaseOutcome::Open(lease) = outcome else {
            return Ok(());
        };
        // What a person has said yes to is open for as long as they said.
        if lease.origin != LeaseOrigin::Answer || lease.approver != Approver::Policy {
            return Ok(());
        }
        self.hold_for_call(number, lease.number);
        self.end_unused(vec![lease.number], now)
    }

    /// The results of calls went to the model: what was open for them is not needed any more.
    fn returned(&mut self, ids: &[String], now: Instant) -> Result<(), RunError> {
        let over = |call: &Call| call.id.as_ref().is_some_and(|id| ids.contains(id));
        let mut leases = Vec::new();
        self.intents.calls.retain(|call| {
            let over = over(call);
            if over {
                leases.extend(&call.leases);
            }
            !over
        });
        self.end_unused(leases, now)
    }

    /// Ends those of these leases that no call needs.
    fn end_unused(&mut self, mut leases: Vec<u32>, now: Instant) -> Result<(), RunError> {
        leases.sort_unstable();
        leases.dedup();
        let used = |lease: &u32| {
            let mut calls = self.intents.calls.iter();
            calls.any(|call| call.leases.contains(lease))
        };
        leases.retain(|lease| !used(lease));
        for lease in leases {
            self.end_lease(lease, "the call's result went to the model", now)?;
        }
        Ok(())
    }

    /// Calls whose result does not come are forgotten; their leases end by their own time.
    fn forget_late_calls(&mut self, now: Instant) {
        self.intents.calls.retain(|call| now < call.until);
    }

    /// Asks for what a lease that was ending stood in the way of.
    pub(crate) fn look_at_intents(&mut self, now: Instant) -> Result<(), RunError> {
        self.freeze_if_distrusted();
        let mut again = Vec::new();
        for call in &mut self.intents.calls {
            let leases = &self.leases;
            let (free, later) = std::mem::take(&mut call.later)
                .into_iter()
                .partition(|need| leases.meet(&need.resource()) != Meeting::Ending);
            call.later = later;
            let free: Vec<Need> = free;
            again.extend(free.into_iter().map(|need| (call.number, need)));
        }
        for (number, need) in again {
            self.ask_for_call(number, need, now)?;
        }
        Ok(())
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
