//! How fast others than the operator may ask for something.

use ironcage_lease::MOST_ASKED;
use std::time::{Duration, Instant};

/// Requests of others than the operator that are looked at and put on record in one go; then one for
/// each second that has passed. The record is on a disk of the user's that no limit of the cage's holds.
const MOST_IN_ONE_GO: u32 = 600;

/// How many requests came within this second, and how many can still come.
#[derive(Debug)]
pub(crate) struct RequestPace {
    since: Option<Instant>,
    asked: u32,
    /// Requests that have no line of their own on record.
    unrecorded: u64,
    left: u32,
    filled: Option<Instant>,
}

impl Default for RequestPace {
    fn default() -> Self {
        RequestPace {
            since: None,
            asked: 0,
            unrecorded: 0,
            left: MOST_IN_ONE_GO,
            filled: None,
        }
    }
}

impl RequestPace {
    /// Counts a request; how many came before it within the second.
    pub(crate) fn count(&mut self, now: Instant) -> u32 {
        let over = |since: Instant| now.duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(over) {
            self.since = Some(now);
            self.asked = 0;
        }
        let before = self.asked;
        self.asked = before.saturating_add(1);
        before
    }

    /// Requests without a line on record that no later line has counted.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.unrecorded
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

    /// Takes the number of requests that no line counts yet, for one that is written now. `None`
    /// where so many came within the second that it gets no line: a log that nobody can read
    /// through tells nothing.
    pub(crate) fn take_unrecorded(&mut self) -> Option<u64> {
        if self.asked > MOST_ASKED {
            self.unrecorded = self.unrecorded.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut self.unrecorded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_without_end_is_counted_and_not_written_down() {
        let mut pace = RequestPace::default();
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
