//! Uses of keys: a part of the supervisor. It owns what waits for a person, one use at a time: an
//! approval is for the use that was asked about, and for no other that waits behind it.

use super::FromFilter;
use crate::effects::Effect;
use ironcage_model::{
    EventKind, KeyAgent, KeyPurpose, KeyUse, NetworkVerdict, Reason, RequestOutcome, Resource,
};
use std::collections::VecDeque;

/// Uses that wait for a person, or behind one that does.
const MOST_WAITING: usize = 16;

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
        let ticket = self.ticket;
        let allowed = true;
        [
            self.used(NetworkVerdict::Allowed, None),
            Effect::TellKeyFilter { ticket, allowed },
        ]
    }

    fn deny(&self, reason: Reason) -> [Effect; 2] {
        let ticket = self.ticket;
        let allowed = false;
        [
            self.used(NetworkVerdict::Denied, Some(reason)),
            Effect::TellKeyFilter { ticket, allowed },
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
#[derive(Debug, Default)]
pub(crate) struct KeyUses {
    confirm: bool,
    /// The first is what a person is asked about.
    waiting: VecDeque<WaitingUse>,
}

impl KeyUses {
    pub(crate) fn new(confirm: bool) -> Self {
        KeyUses {
            confirm,
            waiting: VecDeque::new(),
        }
    }

    pub(crate) fn handle(&mut self, event: SigningEvent) -> Vec<Effect> {
        match event {
            SigningEvent::Message(FromFilter::Asks {
                ticket,
                agent,
                key,
                purpose,
            }) => self.asks(WaitingUse {
                ticket,
                agent,
                key,
                purpose,
                left: false,
            }),
            SigningEvent::Message(FromFilter::Denied(used)) => {
                vec![Effect::Audit(EventKind::KeyUse(used))]
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
            SigningEvent::Answered { ticket, outcome } => self.answered(ticket, outcome),
            SigningEvent::FilterGone => {
                for waiting in &mut self.waiting {
                    waiting.left = true;
                }
                self.waiting.truncate(1);
                Vec::new()
            }
        }
    }

    fn asks(&mut self, new: WaitingUse) -> Vec<Effect> {
        if !self.confirm {
            return new.allow().into();
        }
        if self.waiting.len() >= MOST_WAITING {
            let because = ironcage_model::SigningReason::KeyConfirm.to_string();
            let limit = MOST_WAITING as u64;
            let reason = ironcage_model::LeaseReason::TooManyPending { because, limit };
            return new.deny(reason.into()).into();
        }
        let ask = self.waiting.is_empty().then(|| new.ask());
        self.waiting.push_back(new);
        ask.into_iter().collect()
    }

    fn answered(&mut self, ticket: u64, outcome: RequestOutcome) -> Vec<Effect> {
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
                decided.deny(reason).into()
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

    fn granted(ticket: u64) -> SigningEvent {
        let (term, uses) = (Term::UntilRevoked, None);
        SigningEvent::Answered {
            ticket,
            outcome: RequestOutcome::Granted(GrantedLease::ForScope { term, uses }),
        }
    }

    fn told(effects: &[Effect]) -> Vec<(u64, bool)> {
        let told = effects.iter().filter_map(|effect| match effect {
            Effect::TellKeyFilter { ticket, allowed } => Some((*ticket, *allowed)),
            _ => None,
        });
        told.collect()
    }

    #[test]
    fn a_use_is_on_record_before_it_takes_place() {
        let mut uses = KeyUses::new(false);
        let effects = uses.handle(asks(1));
        assert!(matches!(effects[0], Effect::Audit(EventKind::KeyUse(_))));
        assert_eq!(told(&effects), [(1, true)]);
    }

    #[test]
    fn an_approval_is_for_one_use_and_the_next_is_asked_about() {
        let mut uses = KeyUses::new(true);
        let first = uses.handle(asks(1));
        assert!(matches!(first[..], [Effect::AskForKey { ticket: 1, .. }]));
        assert!(uses.handle(asks(2)).is_empty(), "one at a time");
        let effects = uses.handle(granted(1));
        assert_eq!(told(&effects), [(1, true)]);
        assert!(matches!(
            effects.last(),
            Some(Effect::AskForKey { ticket: 2, .. })
        ));
        let outcome = RequestOutcome::denied(LeaseReason::DeniedByOperator { said: "no".into() });
        let effects = uses.handle(SigningEvent::Answered { ticket: 2, outcome });
        assert_eq!(told(&effects), [(2, false)]);
        let Effect::Audit(EventKind::KeyUse(used)) = &effects[0] else {
            panic!("not on record: {effects:?}");
        };
        assert_eq!(used.verdict, NetworkVerdict::Denied);
    }

    #[test]
    fn an_answer_for_somebody_who_left_signs_nothing() {
        let mut uses = KeyUses::new(true);
        uses.handle(asks(1));
        uses.handle(asks(2));
        uses.handle(SigningEvent::Message(FromFilter::Left { ticket: 1 }));
        let effects = uses.handle(granted(1));
        assert_eq!(told(&effects), []);
        assert!(matches!(effects[..], [Effect::AskForKey { ticket: 2, .. }]));
        uses.handle(SigningEvent::FilterGone);
        assert_eq!(told(&uses.handle(granted(2))), []);
        assert!(uses.handle(granted(2)).is_empty());
    }

    #[test]
    fn no_more_wait_than_a_person_could_answer() {
        let mut uses = KeyUses::new(true);
        for ticket in 0..16 {
            uses.handle(asks(ticket));
        }
        assert_eq!(told(&uses.handle(asks(16))), [(16, false)]);
    }
}
