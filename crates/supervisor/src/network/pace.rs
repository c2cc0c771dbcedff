//! How many lines of traffic go to the audit log.

use std::time::{Duration, Instant};

/// Lines a second, in the long run.
const PER_SECOND: u64 = 50;
/// Lines that may come at once.
pub(super) const AT_ONCE: u64 = 2000;

/// How many lines may still be written: a bucket that fills with time. The proxy handles what
/// strangers send, so it is read no faster than the log can bear.
#[derive(Debug)]
pub(super) struct TrafficPace {
    left: u64,
    since: Instant,
}

impl TrafficPace {
    pub(super) fn new(now: Instant) -> Self {
        TrafficPace {
            left: AT_ONCE,
            since: now,
        }
    }

    /// When the next record may be written, if not now.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        let again = self.since + Duration::from_secs(1);
        (self.left == 0 && now < again).then_some(again)
    }

    /// Counts one that is written.
    pub(super) fn count(&mut self, now: Instant) {
        let seconds = now.duration_since(self.since).as_secs();
        if seconds > 0 {
            self.left = AT_ONCE.min(self.left + seconds.saturating_mul(PER_SECOND));
            self.since = now;
        }
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_paused_and_goes_on_later() {
        let start = Instant::now();
        let mut pace = TrafficPace::new(start);
        for _ in 0..AT_ONCE {
            assert_eq!(pace.pause(start), None);
            pace.count(start);
        }
        let again = pace.pause(start).unwrap();
        assert_eq!(pace.pause(again), None);
        pace.count(again);
        assert_eq!(pace.pause(again), None);
        assert_eq!(pace.left, PER_SECOND - 1);
    }
}
