//! Actions that the model announces for its agent: a part of the supervisor. It owns the calls that
//! are under way, the leases that are there for them, and how far the cage is trusted.
//!
//! It treats every announcement as if an attacker had written it. It opens what the ceiling gives
//! at once, raises a permission request for what it asks about, and nothing else.

use super::trust::{TrustRecord, differs};
use crate::effects::Effect;
use crate::leases::{LeaseMatch, LeaseRequest, Requester};
use crate::needed::{Need, Needed};
use ironcage_control::GrantRequest;
use ironcage_egress::OTHERS;
use ironcage_lease::Words;
use ironcage_model::{
    Announced, Approver, Contact, EventKind, GrantedLease, HostRule, Intent, IntentRecord,
    LeaseOrigin, NetworkVerdict, Resource, SupervisorReason, Term, ToolCall, Traffic, Trust,
    WordsMode,
};
use ironcage_model::{LeaseEndCause, RequestOutcome};
use ironcage_plan::Drift;
use std::time::{Duration, Instant};

/// Calls at once, whose results have not come.
const MOST_CALLS: usize = 64;
/// What waits for leases that are ending, of all calls: each is a descriptor of the supervisor's.
const MOST_LATER: usize = 32;
/// Longest name of the model's words that stands beside a permission request, in characters.
const ANNOUNCED: usize = 200;
/// How long a call is waited for where the policy has no bound.
const LONGEST: Duration = Duration::from_secs(8 * 3600);
/// Calls that the rules for tools deny, with lines of their own.
const MOST_DENIED: u32 = 64;
/// Removals that have lines of their own: who has the model repeat one fills no disk.
const MOST_REMOVALS: u32 = 64;

/// The method of a call that a model makes in its response.
const RESPONSE: &str = "model response";

/// What the policy says of announced calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntentPolicy<'a> {
    /// How long what a call opens may be open.
    pub(super) longest: Option<Duration>,
    /// When the cage is trusted less.
    pub(super) drift: Drift,
    /// What can be leased, where the model's words narrow what is given at once.
    pub(super) narrowed: Option<&'a ironcage_plan::Leases>,
}

/// What an announced call needs, after the files that it names were looked at.
#[derive(Debug, Default)]
pub(crate) struct CallNeeds {
    /// Where it said that it connects to.
    pub(crate) hosts: Vec<HostRule>,
    /// What the cage does not have of it.
    pub(crate) needed: Needed,
    /// Whether its command asks for itself, and alone has what it gets.
    pub(crate) asks_itself: bool,
}

/// Something that the intents have to know.
#[derive(Debug)]
pub(crate) enum IntentEvent {
    /// Places that the model's words name.
    Words(Announced),
    /// The model calls a tool.
    Announced(Intent),
    /// What such a call needs.
    Needs { intent: Intent, needs: CallNeeds },
    /// The results of these calls went to the model.
    Returned(Vec<String>),
    /// How a need of a call meets the leases that are there.
    Met {
        call: u32,
        need: u32,
        meeting: LeaseMatch,
    },
    /// A lease is being opened for a call.
    Opening { call: u32, lease: u32 },
    /// What came of a request in the name of a call.
    Answered { call: u32, outcome: RequestOutcome },
    /// The proxy reports traffic of a kind for the first time.
    Traffic(Traffic),
    /// Something was done that nobody announced.
    Differed(String),
    /// The cage's parent is trusted no further than this.
    ParentTrust(Trust),
    /// A person has looked at the cage that was frozen.
    Reviewed,
    /// Time has passed.
    Tick,
}

/// The calls of a cage's model that are under way.
#[derive(Debug)]
pub(crate) struct Intents<'a> {
    policy: Option<IntentPolicy<'a>>,
    calls: Vec<AnnouncedCall>,
    last_call: u32,
    last_need: u32,
    trust: TrustRecord,
    /// What the model's words named.
    words: Words,
    /// Calls on record that would take the home or the workspace away.
    removals: u32,
    /// Calls on record that the rules for tools deny.
    denied: u32,
}

#[derive(Debug)]
pub(super) struct AnnouncedCall {
    number: u32,
    /// By which its result is known.
    id: Option<String>,
    tool: String,
    /// Where it said that it connects to.
    pub(super) hosts: Vec<HostRule>,
    /// Whether it may do more than it said.
    pub(super) open: bool,
    /// Those of them that it names itself, and not by a bundle or a remote.
    spelled: Vec<HostRule>,
    /// Leases that are there for it.
    leases: Vec<u32>,
    /// What it needs and has not asked for yet.
    needs: Vec<CallNeed>,
    until: Instant,
}

/// Something that a call needs.
#[derive(Debug)]
struct CallNeed {
    number: u32,
    need: Need,
    /// Whether a lease that is ending stands in its way.
    later: bool,
}

impl<'a> Intents<'a> {
    pub(crate) fn new(leases: Option<&'a ironcage_plan::Leases>) -> Self {
        Intents::with(leases.map(|leases| IntentPolicy {
            longest: leases.call_longest,
            drift: leases.drift,
            narrowed: (leases.words == WordsMode::Narrow).then_some(leases),
        }))
    }

    pub(super) fn with(policy: Option<IntentPolicy<'a>>) -> Self {
        Intents {
            policy,
            calls: Vec::new(),
            last_call: 0,
            last_need: 0,
            trust: TrustRecord::default(),
            words: Words::default(),
            removals: 0,
            denied: 0,
        }
    }

    /// How far the cage is trusted.
    pub(crate) fn trust(&self) -> Trust {
        self.trust.level()
    }

    /// Whether nothing is to be given at once any more.
    pub(crate) fn is_distrusted(&self) -> bool {
        self.trust() >= Trust::Asked
    }

    /// Where the model's words named something, shortened.
    pub(crate) fn announced(&self, resource: &Resource, now: Instant) -> Option<String> {
        let named = self.words.naming(resource, now)?;
        Some(named.chars().take(ANNOUNCED).collect())
    }

    pub(crate) fn handle(&mut self, event: IntentEvent, now: Instant) -> Vec<Effect> {
        match event {
            // Kept for what is asked later. Words ask for nothing, so nothing is asked for here.
            IntentEvent::Words(named) => {
                let leases = self.policy.and_then(|policy| policy.narrowed);
                self.words.hear(&named, leases, now);
                Vec::new()
            }
            IntentEvent::Announced(intent) => self.look_up(intent, now),
            IntentEvent::Needs { intent, needs } => self.begin(&intent, needs, now),
            IntentEvent::Returned(ids) => self.returned(&ids),
            IntentEvent::Met {
                call,
                need,
                meeting,
            } => self.met(call, need, meeting),
            IntentEvent::Opening { call, lease } => {
                self.hold(call, lease);
                Vec::new()
            }
            IntentEvent::Answered { call, outcome } => self.answered(call, outcome),
            IntentEvent::Traffic(traffic) => self.compare(&traffic, now),
            IntentEvent::Differed(what) => self.count(what),
            IntentEvent::ParentTrust(trust) => self.trust_no_further(trust),
            IntentEvent::Reviewed => {
                self.trust.review();
                Vec::new()
            }
            IntentEvent::Tick => self.tick(),
        }
    }

    /// A tool is about to be called: what it would take away is on record, and what it names is
    /// looked up.
    fn look_up(&mut self, intent: Intent, now: Instant) -> Vec<Effect> {
        if self.policy.is_none() {
            return Vec::new();
        }
        let mut effects = Vec::new();
        for path in intent.removes.iter().filter(|path| path.starts_with('/')) {
            if self.removals >= MOST_REMOVALS {
                break;
            }
            self.removals += 1;
            effects.push(Effect::RecordRemoval {
                tool: intent.tool.clone(),
                call: intent.id.clone(),
                path: path.clone(),
            });
        }
        if let Some(denied) = intent.denied {
            if self.denied < MOST_DENIED {
                self.denied += 1;
                effects.push(Effect::Audit(EventKind::ToolCall(ToolCall::denied(
                    RESPONSE,
                    intent.tool,
                    *denied,
                ))));
            }
            return effects;
        }
        self.forget_late(now);
        effects.push(match self.calls.len() >= MOST_CALLS {
            true => Effect::Audit(EventKind::IntentUnread {
                times: 1,
                reason: SupervisorReason::IntentTooManyCalls {
                    limit: MOST_CALLS as u64,
                }
                .into(),
            }),
            false => Effect::LookUpNeeds(intent),
        });
        effects
    }

    /// What a call needs is asked for in its name.
    fn begin(&mut self, intent: &Intent, needs: CallNeeds, now: Instant) -> Vec<Effect> {
        let CallNeeds {
            mut hosts,
            needed,
            asks_itself,
        } = needs;
        let spelled = intent.contacts.iter().filter_map(|contact| match contact {
            Contact::Host(text) => text.parse().ok(),
            Contact::Bundle(_) | Contact::Remote(_) => None,
        });
        let spelled: Vec<HostRule> = spelled.collect();
        hosts.extend(spelled.iter().cloned());
        self.last_call = self.last_call.wrapping_add(1).max(1);
        let number = self.last_call;
        let term = self.term();
        let idle = asks_itself || (needed.needs.is_empty() && needed.refused.is_empty());
        let mut effects = Vec::new();
        let mut waiting = Vec::new();
        if !idle {
            let wanted = needed.needs.iter().map(Need::resource);
            let refused = needed.refused.iter().map(|refused| &refused.resource);
            effects.push(Effect::Audit(EventKind::Intent(IntentRecord {
                tool: intent.tool.clone(),
                call: intent.id.clone(),
                needs: wanted.chain(refused.cloned()).collect(),
                open: intent.open,
                shell: false,
            })));
            effects.extend(needed.refused.into_iter().map(|refused| Effect::LogDenial {
                resource: refused.resource,
                origin: LeaseOrigin::Answer,
                reason: refused.reason,
            }));
            for need in needed.needs {
                self.last_need = self.last_need.wrapping_add(1);
                effects.push(Effect::MeetNeed {
                    call: number,
                    need: self.last_need,
                });
                waiting.push(CallNeed {
                    number: self.last_need,
                    need,
                    later: false,
                });
            }
        }
        self.calls.push(AnnouncedCall {
            number,
            id: intent.id.clone(),
            tool: intent.tool.clone(),
            hosts,
            open: intent.open,
            spelled,
            leases: Vec::new(),
            needs: waiting,
            until: now.checked_add(term).unwrap_or(now),
        });
        effects
    }

    /// How long what a call opens may be open.
    fn term(&self) -> Duration {
        let longest = self.policy.and_then(|policy| policy.longest);
        self.trust.shorten(longest.unwrap_or(LONGEST))
    }

    /// What a need would be a lease about.
    pub(crate) fn need(&self, call: u32, need: u32) -> Option<Resource> {
        let mut calls = self.calls.iter();
        let call = calls.find(|known| known.number == call)?;
        let mut needs = call.needs.iter();
        let found = needs.find(|known| known.number == need)?;
        Some(found.need.resource())
    }

    /// What is open for another call is shared; what is ending is waited for; the rest is asked
    /// for.
    fn met(&mut self, call: u32, need: u32, meeting: LeaseMatch) -> Vec<Effect> {
        match meeting {
            LeaseMatch::Has { lease, origin } => {
                drop(self.take_need(call, need));
                if origin == LeaseOrigin::Answer {
                    self.hold(call, lease);
                }
                Vec::new()
            }
            LeaseMatch::Ending => {
                let all = self.calls.iter().flat_map(|call| &call.needs);
                let waiting = all.filter(|need| need.later).count();
                let mut needs = self.call(call).into_iter().flat_map(|call| &mut call.needs);
                match needs.find(|known| known.number == need) {
                    Some(known) if known.later => Vec::new(),
                    Some(known) if waiting < MOST_LATER => {
                        known.later = true;
                        Vec::new()
                    }
                    _ => {
                        let refused = self.take_need(call, need).map(|need| Effect::LogDenial {
                            resource: need.resource(),
                            origin: LeaseOrigin::Answer,
                            reason: SupervisorReason::Busy.into(),
                        });
                        refused.into_iter().collect()
                    }
                }
            }
            LeaseMatch::None => vec![Effect::RequestNeed { call, need }],
        }
    }

    fn take_need(&mut self, call: u32, need: u32) -> Option<Need> {
        let call = self.call(call)?;
        let index = call.needs.iter().position(|known| known.number == need)?;
        Some(call.needs.remove(index).need)
    }

    /// The request for what a call needs; its descriptor is handed over.
    pub(crate) fn take_request(
        &mut self,
        number: u32,
        need: u32,
        now: Instant,
    ) -> Option<LeaseRequest> {
        let need = self.take_need(number, need)?;
        let unannounced = self.strays(number, &need, now);
        let tool = self.call(number).map(|call| call.tool.clone());
        let (wanted, descriptor) = need.target();
        let term = self.term();
        Some(LeaseRequest {
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
        })
    }

    /// Whether what a call needs is asked for because the model's words name other places.
    fn strays(&self, number: u32, need: &Need, now: Instant) -> bool {
        let Some(leases) = self.policy.and_then(|policy| policy.narrowed) else {
            return false;
        };
        let spelled = |rule: &HostRule| {
            let mut calls = self.calls.iter();
            let call = calls.find(|call| call.number == number);
            call.is_some_and(|call| call.spelled.contains(rule))
        };
        // Of a bundle nobody writes the hosts.
        let told = match need {
            Need::Path { .. } | Need::Name(_) => true,
            Need::Host(rule) => spelled(rule),
        };
        told && self.words.stray(&need.resource(), leases, now)
    }

    fn call(&mut self, number: u32) -> Option<&mut AnnouncedCall> {
        self.calls.iter_mut().find(|call| call.number == number)
    }

    fn hold(&mut self, number: u32, lease: u32) {
        if let Some(call) = self.call(number)
            && !call.leases.contains(&lease)
        {
            call.leases.push(lease);
        }
    }

    /// What came of something that was asked for in the name of a call.
    fn answered(&mut self, number: u32, outcome: RequestOutcome) -> Vec<Effect> {
        // What is refused is on record; a pending request waits for its answer.
        let RequestOutcome::Granted(GrantedLease::Open(lease)) = outcome else {
            return Vec::new();
        };
        // What a person has said yes to is open for as long as they said.
        if lease.origin != LeaseOrigin::Answer || lease.approver != Approver::Policy {
            return Vec::new();
        }
        self.hold(number, lease.number);
        self.end_unused(vec![lease.number])
    }

    /// The results of calls went to the model: what was open for them is not needed any more.
    fn returned(&mut self, ids: &[String]) -> Vec<Effect> {
        let mut leases = Vec::new();
        self.calls.retain(|call| {
            let over = call.id.as_ref().is_some_and(|id| ids.contains(id));
            if over {
                leases.extend(&call.leases);
            }
            !over
        });
        self.end_unused(leases)
    }

    /// Ends those of these leases that no call needs.
    fn end_unused(&self, mut leases: Vec<u32>) -> Vec<Effect> {
        leases.sort_unstable();
        leases.dedup();
        let used = |lease: &u32| self.calls.iter().any(|call| call.leases.contains(lease));
        leases.retain(|lease| !used(lease));
        let ended = leases.into_iter().map(|number| Effect::EndLease {
            number,
            cause: LeaseEndCause::CallAnswered,
        });
        ended.collect()
    }

    /// Calls whose result does not come are forgotten; their leases end by their own time.
    fn forget_late(&mut self, now: Instant) {
        self.calls.retain(|call| now < call.until);
    }

    /// Looks again at what a lease that was ending stood in the way of.
    fn tick(&mut self) -> Vec<Effect> {
        let mut effects = self.freeze();
        for call in &self.calls {
            let later = call.needs.iter().filter(|need| need.later);
            effects.extend(later.map(|need| Effect::MeetNeed {
                call: call.number,
                need: need.number,
            }));
        }
        effects
    }

    /// Looks at what the proxy refused for the first time: the calls under way may have said
    /// something else. Of what comes again the proxy tells sums, which belong to no time.
    fn compare(&mut self, traffic: &Traffic, now: Instant) -> Vec<Effect> {
        if traffic.verdict != NetworkVerdict::Denied || self.calls.is_empty() {
            return Vec::new();
        }
        self.forget_late(now);
        // More hosts were tried than are told apart: which ones, nobody can say, but no call says
        // as many.
        let crowd = traffic.host == OTHERS;
        let unnamed = traffic.host.starts_with('(') && !crowd;
        // Of one host there are several kinds: its name, its ports.
        if unnamed || !differs(&self.calls, &traffic.host) || !self.trust.is_new(&traffic.host) {
            return Vec::new();
        }
        let tools: Vec<&str> = (self.calls.iter())
            .map(|call| call.tool.as_str())
            .take(4)
            .collect();
        let tools = tools.join(", ");
        self.count(match crowd {
            true => {
                format!("the model called {tools}, and too many hosts to tell apart were tried")
            }
            false => format!(
                "the model called {tools}, which says nothing of {}, and that was connected to",
                traffic.host
            ),
        })
    }

    /// Something was done that nobody announced: here, or in a child, whose deeds are this cage's
    /// too. A new child begins with what is counted.
    fn count(&mut self, what: String) -> Vec<Effect> {
        let Some(policy) = self.policy else {
            return Vec::new();
        };
        let before = self.trust();
        let number = self.trust.count(policy.drift);
        let trust = self.trust();
        let mut effects = vec![
            Effect::Audit(EventKind::Drift {
                what: what.clone(),
                number,
                trust,
            }),
            Effect::TellParentOfDrift(what),
        ];
        if trust != before {
            effects.push(Effect::TellChildrenOfTrust(trust));
        }
        effects.extend(self.freeze());
        effects
    }

    /// The parent is trusted no further than this, and so is its child.
    fn trust_no_further(&mut self, trust: Trust) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.trust.lower(trust) {
            effects.push(Effect::TellChildrenOfTrust(trust));
        }
        effects.extend(self.freeze());
        effects
    }

    /// A cage that is not trusted any more is stopped as soon as that can be done.
    fn freeze(&self) -> Vec<Effect> {
        match self.trust() == Trust::Frozen {
            true => vec![Effect::FreezeForReview],
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "part_tests.rs"]
mod tests;
