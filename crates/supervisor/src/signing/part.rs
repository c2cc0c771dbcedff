//! Uses of keys: a part of the supervisor. It owns what waits for a person, one use at a time: an
//! approval is for the use that was asked about, and for no other that waits behind it.

use super::FromFilter;
use crate::effects::Effect;
use crate::log_budget::LogBudget;
use ironcage_model::{
    EventKind, KeyAgent, KeyPurpose, KeyUse, NetworkVerdict, Reason, RequestOutcome, Resource,
};
use std::collections::VecDeque;
use std::time::Instant;

/// Uses that wait for a person, or behind one that does.
const MOST_WAITING: usize = 16;
/// Denials that are logged in a burst.
const MOST_RECORDED: u32 = 256;

/// Something that the part has to know.
#[derive(Debug)]
pub(crate) enum SigningEvent {
    Message(FromFilter),
    /// A person has answered about a use, or nobody did.
    Answered {
        ticket: u64,
        outcome: RequestOutcome,
    },
    /// The key filter ended, and with it everybody who waits.
    FilterGone,
}

#[derive(Debug)]
struct WaitingUse {
    ticket: u64,
    agent: KeyAgent,
    key: String,
    purpose: KeyPurpose,
    /// Whether who asked is gone: its answer is for nobody.
    left: bool,
}

impl WaitingUse {
    fn used(&self, verdict: NetworkVerdict, reason: Option<Reason>) -> Effect {
        Effect::Audit(EventKind::KeyUse(KeyUse {
            agent: self.agent,
            key: Some(self.key.clone()),
            purpose: Some(self.purpose.clone()),
            verdict,
            reason,
        }))
    }

    /// On record first, then it takes place.
    fn allow(&self) -> [Effect; 2] {
        let (ticket, agent) = (self.ticket, self.agent);
        [
            self.used(NetworkVerdict::Allowed, None),
            Effect::AllowKeyUse { ticket, agent },
        ]
    }

    fn ask(&self) -> Effect {
        Effect::AskForKey {
            ticket: self.ticket,
            resource: Resource::Key {
                key: self.key.clone(),
                purpose: self.purpose.clone(),
            },
        }
    }
}

/// Uses of keys in one cage.
#[derive(Debug)]
pub(crate) struct KeyUses {
    confirm: bool,
    /// The first is what a person is asked about.
    waiting: VecDeque<WaitingUse>,
    /// Denials that may be logged. Uses that take place are always logged.
    denied: LogBudget,
}

impl KeyUses {
    pub(crate) fn new(confirm: bool) -> Self {
        KeyUses {
            confirm,
            waiting: VecDeque::new(),
            denied: LogBudget::new(MOST_RECORDED),
        }
    }

    /// Denials that have no line in the audit log.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.denied.unrecorded()
    }

    pub(crate) fn handle(&mut self, event: SigningEvent, now: Instant) -> Vec<Effect> {
        match event {
            SigningEvent::Message(FromFilter::Asks {
                ticket,
                agent,
                key,
                purpose,
            }) => {
                let new = WaitingUse {
                    ticket,
                    agent,
                    key,
                    purpose,
                    left: false,
                };
                self.asks(new, now)
            }
            SigningEvent::Message(FromFilter::Denied(used)) => {
                let logged = self.denied.spend(now);
                let audit = logged.then_some(Effect::Audit(EventKind::KeyUse(used)));
                audit.into_iter().collect()
            }
            SigningEvent::Message(FromFilter::Left { ticket }) => {
                for (index, waiting) in self.waiting.iter_mut().enumerate() {
                    waiting.left |= index == 0 && waiting.ticket == ticket;
                }
                // Whoever is asked about stays, so that the answer finds its question.
                self.waiting
                    .retain(|use_| use_.left || use_.ticket != ticket);
                Vec::new()
            }
            SigningEvent::Answered { ticket, outcome } => self.answered(ticket, outcome, now),
            SigningEvent::FilterGone => {
                for waiting in &mut self.waiting {
                    waiting.left = true;
                }
                self.waiting.truncate(1);
                Vec::new()
            }
        }
    }

    fn asks(&mut self, new: WaitingUse, now: Instant) -> Vec<Effect> {
        if !self.confirm {
            return new.allow().into();
        }
        if self.waiting.len() >= MOST_WAITING {
            let because = ironcage_model::SigningReason::KeyConfirm.to_string();
            let limit = MOST_WAITING as u64;
            let reason = ironcage_model::LeaseReason::TooManyPending { because, limit };
            return self.deny(&new, reason.into(), now);
        }
        let ask = self.waiting.is_empty().then(|| new.ask());
        self.waiting.push_back(new);
        ask.into_iter().collect()
    }

    fn deny(&mut self, denied: &WaitingUse, reason: Reason, now: Instant) -> Vec<Effect> {
        let logged = self.denied.spend(now);
        let audit = logged.then(|| denied.used(NetworkVerdict::Denied, Some(reason)));
        let ticket = denied.ticket;
        let tell = Effect::DenyKeyUse { ticket };
        audit.into_iter().chain([tell]).collect()
    }

    fn answered(&mut self, ticket: u64, outcome: RequestOutcome, now: Instant) -> Vec<Effect> {
        if matches!(outcome, RequestOutcome::Pending { .. }) {
            return Vec::new();
        }
        let is_it = |waiting: &WaitingUse| waiting.ticket == ticket;
        if !self.waiting.front().is_some_and(is_it) {
            return Vec::new();
        }
        let Some(decided) = self.waiting.pop_front() else {
            return Vec::new();
        };
        let mut effects: Vec<Effect> = match outcome {
            _ if decided.left => Vec::new(),
            RequestOutcome::Granted(_) => decided.allow().into(),
            RequestOutcome::Denied { reason } | RequestOutcome::InBase { reason } => {
                self.deny(&decided, reason, now)
            }
            RequestOutcome::Pending { .. } => Vec::new(),
        };
        effects.extend(self.waiting.front().map(WaitingUse::ask));
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_model::{GrantedLease, LeaseReason, Term};

    fn asks(ticket: u64) -> SigningEvent {
        SigningEvent::Message(FromFilter::Asks {
            ticket,
            agent: KeyAgent::Ssh,
            key: "key".into(),
            purpose: KeyPurpose::Git,
        })
    }

    fn now() -> Instant {
        Instant::now()
    }

    fn granted(ticket: u64) -> SigningEvent {
        let (term, uses) = (Term::UntilRevoked, None);
        SigningEvent::Answered {
            ticket,
            outcome: RequestOutcome::Granted(GrantedLease::ForScope { term, uses }),
        }
    }

    fn told(effects: &[Effect]) -> Vec<(u64, bool)> {
        let told = effects.iter().filter_map(|effect| match effect {
            Effect::AllowKeyUse { ticket, .. } => Some((*ticket, true)),
            Effect::DenyKeyUse { ticket } => Some((*ticket, false)),
            _ => None,
        });
        told.collect()
    }

    #[test]
    fn a_use_is_on_record_before_it_takes_place() {
        let mut uses = KeyUses::new(false);
        let effects = uses.handle(asks(1), now());
        assert!(matches!(effects[0], Effect::Audit(EventKind::KeyUse(_))));
        assert_eq!(told(&effects), [(1, true)]);
    }

    #[test]
    fn an_approval_is_for_one_use_and_the_next_is_asked_about() {
        let mut uses = KeyUses::new(true);
        let first = uses.handle(asks(1), now());
        assert!(matches!(first[..], [Effect::AskForKey { ticket: 1, .. }]));
        assert!(uses.handle(asks(2), now()).is_empty(), "one at a time");
        let effects = uses.handle(granted(1), now());
        assert_eq!(told(&effects), [(1, true)]);
        assert!(matches!(
            effects.last(),
            Some(Effect::AskForKey { ticket: 2, .. })
        ));
        let outcome = RequestOutcome::denied(LeaseReason::DeniedByOperator { said: "no".into() });
        let effects = uses.handle(SigningEvent::Answered { ticket: 2, outcome }, now());
        assert_eq!(told(&effects), [(2, false)]);
        let Effect::Audit(EventKind::KeyUse(used)) = &effects[0] else {
            panic!("not on record: {effects:?}");
        };
        assert_eq!(used.verdict, NetworkVerdict::Denied);
    }

    #[test]
    fn an_answer_for_somebody_who_left_signs_nothing() {
        let mut uses = KeyUses::new(true);
        uses.handle(asks(1), now());
        uses.handle(asks(2), now());
        uses.handle(SigningEvent::Message(FromFilter::Left { ticket: 1 }), now());
        let effects = uses.handle(granted(1), now());
        assert_eq!(told(&effects), []);
        assert!(matches!(effects[..], [Effect::AskForKey { ticket: 2, .. }]));
        uses.handle(SigningEvent::FilterGone, now());
        assert_eq!(told(&uses.handle(granted(2), now())), []);
        assert!(uses.handle(granted(2), now()).is_empty());
    }

    #[test]
    fn no_more_wait_than_a_person_could_answer() {
        let mut uses = KeyUses::new(true);
        for ticket in 0..16 {
            uses.handle(asks(ticket), now());
        }
        assert_eq!(told(&uses.handle(asks(16), now())), [(16, false)]);
    }

    #[test]
    fn a_flood_of_denials_is_counted_and_leaves_uses_their_lines() {
        let mut uses = KeyUses::new(false);
        let denied = || {
            SigningEvent::Message(FromFilter::Denied(KeyUse {
                agent: KeyAgent::Ssh,
                key: None,
                purpose: None,
                verdict: NetworkVerdict::Denied,
                reason: None,
            }))
        };
        let at = now();
        let logged = (0..1000).filter(|_| !uses.handle(denied(), at).is_empty());
        assert_eq!(logged.count(), 256);
        assert_eq!(uses.unrecorded(), 744);
        let effects = uses.handle(asks(1), at);
        assert!(matches!(effects[0], Effect::Audit(EventKind::KeyUse(_))));
        assert_eq!(told(&effects), [(1, true)]);
    }
}
