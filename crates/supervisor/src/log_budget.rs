//! How many events of one kind a cage may log: a burst, then one a minute.
//!
//! Each kind has a budget of its own, so that junk of one kind leaves the others theirs; and each
//! fills again, so that an agent that has spent one is not unseen from then on. The number left out
//! is counted and told at the cage's end.

use std::time::{Duration, Instant};

const REFILL: Duration = Duration::from_secs(60);

/// The budget of one kind of event.
#[derive(Debug)]
pub(crate) struct LogBudget {
    most: u32,
    left: u32,
    filled: Option<Instant>,
    unrecorded: u64,
}

impl LogBudget {
    pub(crate) fn new(most: u32) -> Self {
        LogBudget {
            most,
            left: most,
            filled: None,
            unrecorded: 0,
        }
    }

    /// Whether an event may be written. One that may not is counted.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        let filled = *self.filled.get_or_insert(now);
        let minutes = now.saturating_duration_since(filled).as_secs() / REFILL.as_secs();
        if let Ok(minutes @ 1..) = u32::try_from(minutes) {
            self.left = self.left.saturating_add(minutes).min(self.most);
            self.filled = Some(filled + REFILL * minutes);
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => {
                self.unrecorded = self.unrecorded.saturating_add(1);
                return false;
            }
        }
        true
    }

    /// How many were left out so far.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.unrecorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_counts_what_it_leaves_out_and_fills_again() {
        let start = Instant::now();
        let mut budget = LogBudget::new(2);
        assert!(budget.spend(start) && budget.spend(start));
        for _ in 0..100 {
            assert!(!budget.spend(start + REFILL / 2));
        }
        assert_eq!(budget.unrecorded(), 100);
        assert!(budget.spend(start + REFILL));
        assert!(!budget.spend(start + REFILL));
        // Never more than at the beginning.
        let later = start + REFILL * 100;
        assert!(budget.spend(later) && budget.spend(later) && !budget.spend(later));
        assert_eq!(budget.unrecorded(), 102);
    }
}
