//! The table of a cage's leases: what is open, until when, and how far the end of each has come.
//!
//! A lease is on record before it is opened, and its end only when that is proved. In between
//! stands the keeper, who does what is ordered and answers later; nothing here waits for it.

mod ends;
mod facts;
mod means;
mod requests;

pub(crate) use facts::{Seen, look};
pub(crate) use requests::{LeaseOutcome, LeaseRequest, Requester};

use crate::RunError;
use crate::backends::backend;
use crate::supervise::Supervision;
use ironcage_backend::{Keeper, Kept, LeaseOrder};
use ironcage_control::{LeaseDescription, LeaseState, Reply};
use ironcage_model::{Holder, Lease, LeaseOrigin, Lent, Resource, Term};
use ironcage_sys::faults::lease_step as step;
use means::Means;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the keeper may take for an order. One that hangs is worse than none: nothing is
/// known of its leases.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest reason that is put on record.
pub(crate) const REASON: usize = 500;

/// The leases of one cage.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    keeper: Option<Keeper>,
    held: Vec<Held>,
    last: u32,
    /// When the cage was last stopped for the end of a lease.
    stopped: Option<Instant>,
    pub(crate) pace: Pace,
    /// What the model's answers opened, of that which is over.
    pub(crate) lent: Lent,
}

/// Requests of others than the operator that are looked at and put on record in one go; then one for
/// each second that has passed. The record is on a disk of the user's that no limit of the cage's holds.
const MOST_IN_ONE_GO: u32 = 600;

/// How many requests came within this second, and how many can still come.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Option<Instant>,
    asked: u32,
    /// Requests that have no line of their own on record.
    unrecorded: u64,
    left: u32,
    filled: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            since: None,
            asked: 0,
            unrecorded: 0,
            left: MOST_IN_ONE_GO,
            filled: None,
        }
    }
}

impl Pace {
    /// Counts a request; how many came before it within the second.
    fn count(&mut self, now: Instant) -> u32 {
        let over = |since: Instant| now.duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(over) {
            self.since = Some(now);
            self.asked = 0;
        }
        let before = self.asked;
        self.asked = before.saturating_add(1);
        before
    }

    /// Takes one of the requests that can still come. `false` where there is none: then it is only
    /// counted.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        let filled = *self.filled.get_or_insert(now);
        let seconds = now.saturating_duration_since(filled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(MOST_IN_ONE_GO);
            self.filled = Some(filled + Duration::from_secs(seconds));
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.unrecorded = self.unrecorded.saturating_add(1);
                false
            }
        }
    }
}

/// One lease.
#[derive(Debug)]
struct Held {
    lease: Lease,
    born: Instant,
    /// When its time is up.
    until: Option<Instant>,
    stage: Stage,
    /// What holds it.
    means: Means,
    /// How often it can still be used, where the supervisor counts that.
    left: Option<u32>,
    /// Who is told how it ended.
    waiting: Vec<u64>,
    /// Why it ends.
    cause: &'static str,
    holders: Vec<Holder>,
}

/// How something that is wanted meets the leases that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// A lease gives it, or is about to.
    Has {
        /// Its number.
        lease: u32,
        /// Who asked for it.
        origin: LeaseOrigin,
    },
    /// A lease that is ending stands in its way.
    Ending,
    /// None of them.
    None,
}

/// How far a lease has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is being opened, for whoever asked.
    Opening {
        asked: Requester,
        by: Instant,
    },
    Open,
    /// The keeper is closing it, once.
    Closing {
        by: Instant,
        /// When those who use it have had time enough.
        grace: Instant,
    },
    /// Somebody uses it, and may still let go.
    Draining {
        next: Instant,
        grace: Instant,
    },
    /// The cage is stopped, and the keeper is killing who uses it.
    Expelling {
        by: Instant,
    },
    /// The keeper is taking it off for who has nothing of it yet.
    Leaving {
        by: Instant,
    },
}

impl Leases {
    /// Where the keeper answers.
    pub(crate) fn keeper(&self) -> Option<BorrowedFd<'_>> {
        self.keeper.as_ref().map(AsFd::as_fd)
    }

    /// Whether there is any.
    pub(crate) fn is_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// When something is to be done next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let of = |held: &Held| match held.stage {
            Stage::Open => held.until,
            Stage::Draining { next, .. } => Some(next),
            Stage::Opening { by, .. }
            | Stage::Closing { by, .. }
            | Stage::Expelling { by }
            | Stage::Leaving { by } => Some(by),
        };
        self.held.iter().filter_map(of).min()
    }

    fn describe(&self, now: Instant) -> Vec<LeaseDescription> {
        let of = |held: &Held| LeaseDescription {
            lease: held.lease.clone(),
            state: match held.stage {
                Stage::Opening { .. } => LeaseState::Opening,
                Stage::Open => LeaseState::Open,
                _ => LeaseState::Ending,
            },
            milliseconds_left: held
                .until
                .map(|until| until.saturating_duration_since(now).as_millis() as u64),
            uses_left: held.left,
        };
        self.held.iter().map(of).collect()
    }

    /// Takes so many numbers for leases that others keep. Returns the first.
    pub(crate) fn reserve(&mut self, count: usize) -> u32 {
        let first = self.last.wrapping_add(1).max(1);
        self.last = first.wrapping_add(count as u32).wrapping_sub(1);
        first
    }

    /// A lease on a path in one of these places.
    pub(crate) fn in_places(&self, places: &[&Path]) -> Option<&Lease> {
        let mut leases = self.held.iter().map(|held| &held.lease);
        leases.find(|lease| match &lease.resource {
            Resource::Path { path, .. } => places
                .iter()
                .any(|place| Path::new(path).starts_with(place)),
            _ => false,
        })
    }

    /// Every lease, however far its end has come.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Lease> {
        self.held.iter().map(|held| &held.lease)
    }

    /// The number that was given last.
    pub(crate) fn last_number(&self) -> u32 {
        self.last
    }

    /// How something that is wanted meets what is there.
    pub(crate) fn meet(&self, wanted: &Resource) -> Meeting {
        let mut ending = false;
        for held in &self.held {
            let lasts = match held.stage {
                Stage::Opening { .. } => held.until.is_none(),
                Stage::Open => true,
                _ => false,
            };
            if lasts && requests::covers(&held.lease.resource, wanted) {
                return Meeting::Has {
                    lease: held.lease.number,
                    origin: held.lease.origin,
                };
            }
            ending |= !lasts && ironcage_lease::overlaps(&held.lease.resource, wanted);
        }
        match ending {
            true => Meeting::Ending,
            false => Meeting::None,
        }
    }

    fn position(&self, number: u32) -> Option<usize> {
        let mut held = self.held.iter();
        held.position(|held| held.lease.number == number)
    }
}

impl Supervision<'_> {
    /// Every lease that is open, or whose end is not proved.
    pub(crate) fn list_leases(&mut self, key: u64, now: Instant) {
        let mut list = self.leases.describe(now);
        list.extend(self.scopes.describe_leases());
        self.control.reply(key, &Reply::Leases(list), &[]);
    }

    pub(crate) fn start_keeper(&mut self) -> Result<(), String> {
        if self.leases.keeper.is_some() {
            return Ok(());
        }
        let backend = backend(self.plan.rung.what.isolation);
        let keeper = backend.keeper(self.plan, &self.cage).map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or(error.to_string(), |source| format!("{error}: {source}"))
        })?;
        self.leases.keeper = Some(keeper);
        Ok(())
    }

    /// Gives an order to the keeper. Where it takes none, the leases are ended with the cage.
    fn order(&mut self, order: &LeaseOrder) -> Result<(), RunError> {
        step();
        let taken = match &self.leases.keeper {
            Some(keeper) => keeper.order(order).is_ok(),
            None => false,
        };
        match taken {
            true => Ok(()),
            false => self.lose_keeper(),
        }
    }

    /// Takes what the keeper answers.
    pub(crate) fn hear_keeper(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(keeper) = &self.leases.keeper else {
            return Ok(());
        };
        match keeper.hear() {
            Ok(None) => Ok(()),
            Ok(Some(Kept::Opened { number, failed })) => self.opened(number, failed, now),
            Ok(Some(Kept::Ended {
                number,
                progress,
                holders,
                ..
            })) => self.came(number, progress, holders, now),
            Err(_) => self.lose_keeper(),
        }
    }

    fn opened(
        &mut self,
        number: u32,
        failed: Option<String>,
        now: Instant,
    ) -> Result<(), RunError> {
        step();
        let Some(index) = self.leases.position(number) else {
            return Ok(());
        };
        let Some(held) = self.leases.held.get_mut(index) else {
            return Ok(());
        };
        let Stage::Opening { asked, .. } = held.stage else {
            return Ok(());
        };
        if let Some(reason) = failed {
            self.not_opened(index)?;
            return self.tell_requester(asked, LeaseOutcome::Refused { reason });
        }
        held.stage = Stage::Open;
        held.cause = "nothing more is known of it";
        held.born = now;
        // Taken back before it was open: then it ends at once.
        held.until = held.until.or(match held.lease.term {
            Term::Milliseconds(time) => now.checked_add(Duration::from_millis(time)),
            Term::UntilRevoked => None,
        });
        let lease = held.lease.clone();
        self.tell_requester(asked, LeaseOutcome::Open(lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_without_end_is_counted_and_not_written_down() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let spent = (0..10_000).filter(|_| pace.spend(start)).count();
        assert_eq!(spent, MOST_IN_ONE_GO as usize);
        assert_eq!(pace.unrecorded, 10_000 - u64::from(MOST_IN_ONE_GO));
        let later = start + Duration::from_secs(5);
        assert_eq!((0..100).filter(|_| pace.spend(later)).count(), 5);
        let next_day = start + Duration::from_secs(86_400);
        let spent = (0..10_000).filter(|_| pace.spend(next_day)).count();
        assert_eq!(spent, MOST_IN_ONE_GO as usize);
    }
}
