//! The states of a lease, and the steps between them.

use super::rules::{EndingRules, Expulsion, StillUsed};
use ironcage_model::{Holders, LeaseEnd, LeaseEndCause, Term};
use std::time::{Duration, Instant};

/// How long whatever holds a lease may take for an order. A helper that hangs is worse than none:
/// nothing is known of its leases.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon closing is tried again while somebody may still let go.
const AGAIN: Duration = Duration::from_millis(20);
/// And where holders are left alone for as long as they write.
const LATER: Duration = Duration::from_millis(500);

/// What happened to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// It is to be given.
    Decided,
    Denied,
    /// The audit log has it.
    Recorded,
    Opened,
    /// It could not be opened.
    NotOpened {
        cause: LeaseEndCause,
    },
    /// It is to end.
    TakenBack {
        cause: LeaseEndCause,
    },
    /// What came of an order to close it, leave it or expel its holders.
    Released(Release),
    /// Holders were looked for, and killed where the effect said so.
    Searched,
    /// Time has passed.
    Tick,
    /// What held it is gone, and what it held with it.
    MechanismEnded {
        cause: LeaseEndCause,
    },
    /// What held it is gone or does not answer, and nothing is known.
    MechanismLost,
    /// The cage ended, and everything in it.
    CageEnded,
    /// The cage was ended because the end of a lease could not be proved.
    CageKilled,
}

/// What came of an order to end a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Nobody has anything of it any more.
    Revoked,
    /// It cannot be opened any more, and nothing can be written through it.
    ClosedToNewOpens,
    /// Somebody still uses it.
    Busy,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEffect {
    /// Write the lease to the audit log, then report [`LeaseEvent::Recorded`].
    Record,
    Open,
    /// Tell whoever asked that it is open.
    ReportOpen,
    /// Have it closed where nobody uses it.
    Close {
        /// Whether holders have had their time.
        grace_over: bool,
    },
    /// Have it taken away from all who do not write through it.
    Leave,
    /// Look for holders in the cage, then report [`LeaseEvent::Searched`].
    Search {
        kill: bool,
    },
    /// Have the helper kill its holders.
    Expel,
    /// Stop every process of the cage, so that nobody hands on what others are killed for.
    Freeze,
    /// Let them go on.
    Resume,
    /// Whatever holds it did not answer in time: give it up.
    GiveUpMechanism,
    /// End the cage: only that is a proof.
    KillCage,
    /// Write the end to the audit log, and tell those who wait for it.
    End {
        end: LeaseEnd,
        cause: LeaseEndCause,
        /// How long it was open.
        open: Duration,
    },
}

/// How far a lease has come, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasePhase {
    /// It is asked for, or being opened.
    Opening,
    Open,
    /// Its end has begun, and is not proved.
    Ending,
    /// It is no more, or never was.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Requested,
    Denied,
    Decided,
    Ordered { by: Instant },
    Open { until: Option<Instant> },
    Closing { by: Instant, grace: Instant },
    Draining { next: Instant, grace: Instant },
    Leaving { by: Instant },
    Expelling { round: u32, step: ExpelStep },
    Proven,
    Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpelStep {
    /// The helper was told to kill them.
    Helper {
        by: Instant,
    },
    Searching {
        by: Instant,
    },
    Closing {
        by: Instant,
    },
    /// Those who were killed get a moment.
    Pausing {
        next: Instant,
    },
}

/// The life of one lease.
#[derive(Debug, Clone)]
pub struct LeaseLife {
    state: State,
    rules: EndingRules,
    term: Term,
    /// Since when it is open, or on record.
    born: Instant,
    cause: LeaseEndCause,
    /// Taken back before it was open: then it ends as soon as it is.
    taken_back: Option<LeaseEndCause>,
}

impl LeaseLife {
    /// A lease that somebody asks for.
    pub fn requested(rules: EndingRules, term: Term, now: Instant) -> Self {
        LeaseLife {
            state: State::Requested,
            rules,
            term,
            born: now,
            cause: LeaseEndCause::Unknown,
            taken_back: None,
        }
    }

    /// How far it has come.
    pub fn phase(&self) -> LeasePhase {
        match self.state {
            State::Requested | State::Decided | State::Ordered { .. } => LeasePhase::Opening,
            State::Open { .. } => LeasePhase::Open,
            State::Closing { .. }
            | State::Draining { .. }
            | State::Leaving { .. }
            | State::Expelling { .. } => LeasePhase::Ending,
            State::Denied | State::Proven | State::Held => LeasePhase::Over,
        }
    }

    /// Whether it is open, or will be and stay so.
    pub fn lasts(&self) -> bool {
        match self.phase() {
            LeasePhase::Opening => self.taken_back.is_none(),
            LeasePhase::Open => true,
            LeasePhase::Ending | LeasePhase::Over => false,
        }
    }

    /// When its time is up, where it is open for a time.
    pub fn until(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => until,
            _ => None,
        }
    }

    /// Whether the cage is stopped while its holders are expelled.
    pub fn is_expelling(&self) -> bool {
        matches!(self.state, State::Expelling { .. })
    }

    /// When [`LeaseEvent::Tick`] is due.
    pub fn next(&self) -> Option<Instant> {
        match self.state {
            State::Open { until } => until,
            State::Ordered { by } | State::Closing { by, .. } | State::Leaving { by } => Some(by),
            State::Draining { next, .. } => Some(next),
            State::Expelling { step, .. } => Some(match step {
                ExpelStep::Helper { by }
                | ExpelStep::Searching { by }
                | ExpelStep::Closing { by } => by,
                ExpelStep::Pausing { next } => next,
            }),
            State::Requested | State::Denied | State::Decided | State::Proven | State::Held => None,
        }
    }

    /// Takes an event. An event that does not belong to the state changes nothing: an answer may
    /// come late, and a person may take back what is ending already.
    pub fn handle(&mut self, event: LeaseEvent, now: Instant) -> Vec<LeaseEffect> {
        match (event, self.state) {
            (_, State::Denied | State::Proven | State::Held) => Vec::new(),
            (LeaseEvent::Denied, State::Requested) => {
                self.state = State::Denied;
                Vec::new()
            }
            (LeaseEvent::Decided, State::Requested) => {
                self.state = State::Decided;
                vec![LeaseEffect::Record]
            }
            (LeaseEvent::Recorded, State::Decided) => {
                self.born = now;
                self.state = State::Ordered { by: now + PATIENCE };
                vec![LeaseEffect::Open]
            }
            (LeaseEvent::Opened, State::Ordered { .. }) => self.open(now),
            (LeaseEvent::NotOpened { cause }, State::Ordered { .. }) => {
                self.cause = cause;
                self.end(LeaseEnd::NotOpened, now)
            }
            (LeaseEvent::TakenBack { cause }, State::Open { .. }) => self.close(cause, now),
            (LeaseEvent::TakenBack { cause }, State::Ordered { .. }) => {
                self.taken_back = Some(cause);
                Vec::new()
            }
            (LeaseEvent::Tick, _) => match self.next() {
                Some(at) if now >= at => self.due(now),
                _ => Vec::new(),
            },
            (LeaseEvent::Released(release), _) => self.released(release, now),
            (
                LeaseEvent::Searched,
                State::Expelling {
                    round,
                    step: ExpelStep::Searching { .. },
                },
            ) => {
                let step = ExpelStep::Closing { by: now + PATIENCE };
                self.state = State::Expelling { round, step };
                vec![LeaseEffect::Close { grace_over: true }]
            }
            // Without a trace in the audit log there is no lease to end.
            (
                LeaseEvent::MechanismEnded { .. }
                | LeaseEvent::MechanismLost
                | LeaseEvent::CageEnded
                | LeaseEvent::CageKilled,
                State::Requested | State::Decided,
            ) => {
                self.state = State::Denied;
                Vec::new()
            }
            (LeaseEvent::MechanismEnded { cause }, state) => {
                let end = match state {
                    State::Ordered { .. } => LeaseEnd::NotOpened,
                    _ => LeaseEnd::Revoked,
                };
                self.cause = cause;
                self.end(end, now)
            }
            (LeaseEvent::MechanismLost, _) => vec![LeaseEffect::KillCage],
            (LeaseEvent::CageEnded, _) => {
                self.cause = LeaseEndCause::CageEnded;
                self.end(LeaseEnd::CageEnded, now)
            }
            (LeaseEvent::CageKilled, _) => self.end(LeaseEnd::CageKilled, now),
            (
                LeaseEvent::Decided
                | LeaseEvent::Denied
                | LeaseEvent::Recorded
                | LeaseEvent::Opened
                | LeaseEvent::NotOpened { .. }
                | LeaseEvent::TakenBack { .. }
                | LeaseEvent::Searched,
                _,
            ) => Vec::new(),
        }
    }

    fn open(&mut self, now: Instant) -> Vec<LeaseEffect> {
        self.born = now;
        let until = match self.term {
            Term::Milliseconds(time) => now.checked_add(Duration::from_millis(time)),
            Term::UntilRevoked => None,
        };
        self.state = State::Open { until };
        let mut effects = vec![LeaseEffect::ReportOpen];
        if let Some(cause) = self.taken_back {
            effects.extend(self.close(cause, now));
        }
        effects
    }

    fn close(&mut self, cause: LeaseEndCause, now: Instant) -> Vec<LeaseEffect> {
        self.cause = cause;
        let far = now + Duration::from_secs(365 * 24 * 3600);
        let grace = now.checked_add(self.rules.grace).unwrap_or(far);
        self.close_again(grace, now)
    }

    fn close_again(&mut self, grace: Instant, now: Instant) -> Vec<LeaseEffect> {
        let by = now + PATIENCE;
        self.state = State::Closing { by, grace };
        let grace_over = now >= grace;
        vec![LeaseEffect::Close { grace_over }]
    }

    fn due(&mut self, now: Instant) -> Vec<LeaseEffect> {
        match self.state {
            State::Open { .. } => self.close(LeaseEndCause::TimeUp, now),
            State::Draining { grace, .. } => self.close_again(grace, now),
            State::Expelling {
                round,
                step: ExpelStep::Pausing { .. },
            } => self.search(round + 1, now),
            _ => vec![LeaseEffect::GiveUpMechanism],
        }
    }

    fn search(&mut self, round: u32, now: Instant) -> Vec<LeaseEffect> {
        let step = ExpelStep::Searching { by: now + PATIENCE };
        self.state = State::Expelling { round, step };
        vec![LeaseEffect::Search { kill: true }]
    }

    fn expel(&mut self, now: Instant) -> Vec<LeaseEffect> {
        let mut effects = vec![LeaseEffect::Freeze];
        match self.rules.expulsion {
            Expulsion::ByHelper => {
                let step = ExpelStep::Helper { by: now + PATIENCE };
                self.state = State::Expelling { round: 1, step };
                effects.push(LeaseEffect::Expel);
            }
            Expulsion::BySearch { .. } => effects.extend(self.search(1, now)),
        }
        effects
    }

    fn leave(&mut self, now: Instant) -> Vec<LeaseEffect> {
        self.state = State::Leaving { by: now + PATIENCE };
        match self.rules.expulsion {
            Expulsion::ByHelper => vec![LeaseEffect::Leave],
            // The helper does not see them: who they are is found out first.
            Expulsion::BySearch { .. } => {
                vec![LeaseEffect::Search { kill: false }, LeaseEffect::Leave]
            }
        }
    }

    fn released(&mut self, release: Release, now: Instant) -> Vec<LeaseEffect> {
        let end = match release {
            Release::Revoked => Some(LeaseEnd::Revoked),
            Release::ClosedToNewOpens => Some(LeaseEnd::ClosedToNewOpens),
            Release::Busy => None,
        };
        match (end, self.state) {
            (
                Some(end),
                State::Closing { .. } | State::Leaving { .. } | State::Expelling { .. },
            ) => self.end(end, now),
            (None, State::Closing { grace, .. }) if now < grace => {
                let next = grace.min(now + AGAIN);
                self.state = State::Draining { next, grace };
                Vec::new()
            }
            (None, State::Closing { .. }) => match self.rules.holders {
                Holders::Keep => self.leave(now),
                Holders::Kill => self.expel(now),
            },
            (None, State::Leaving { .. }) => match self.rules.still_used {
                StillUsed::Wait => {
                    let next = now + LATER;
                    self.state = State::Draining { next, grace: now };
                    Vec::new()
                }
                StillUsed::Expel => self.expel(now),
            },
            (
                None,
                State::Expelling {
                    round,
                    step: ExpelStep::Closing { .. },
                },
            ) => match self.rules.expulsion {
                Expulsion::BySearch { rounds, pause } if round < rounds => {
                    let next = now + pause;
                    let step = ExpelStep::Pausing { next };
                    self.state = State::Expelling { round, step };
                    Vec::new()
                }
                // Not found: it lies in a socket, or somebody beside the cage has it.
                _ => vec![LeaseEffect::Resume, LeaseEffect::KillCage],
            },
            // Killed, and still somebody has it.
            (
                None,
                State::Expelling {
                    step: ExpelStep::Helper { .. },
                    ..
                },
            ) => vec![LeaseEffect::Resume, LeaseEffect::KillCage],
            // An answer to an order that is not the last one any more.
            _ => Vec::new(),
        }
    }

    fn end(&mut self, end: LeaseEnd, now: Instant) -> Vec<LeaseEffect> {
        let mut effects = Vec::new();
        if self.is_expelling() && end != LeaseEnd::CageEnded {
            // Whatever came of it, the others go on.
            effects.push(LeaseEffect::Resume);
        }
        self.state = match end {
            LeaseEnd::CageKilled => State::Held,
            _ => State::Proven,
        };
        effects.push(LeaseEffect::End {
            end,
            cause: self.cause,
            open: now.saturating_duration_since(self.born),
        });
        effects
    }
}
