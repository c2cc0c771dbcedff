//! The network door, heard by the supervisor: what it carried goes to the record.
//!
//! The door handles what strangers send, so it is believed no further than its messages are
//! well-formed, and heard no more often than a record can bear.

use crate::RunError;
use crate::supervise::Supervision;
use ironcage_egress::FromDoor;
use ironcage_model::EventKind;
use std::time::{Duration, Instant};

/// Records of traffic a second, in the long run, and how many may come at once.
const PER_SECOND: u64 = 50;
const AT_ONCE: u64 = 2000;

/// How many records may still be written: a bucket that fills with time.
#[derive(Debug)]
pub(crate) struct Pace {
    left: u64,
    since: Instant,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Pace {
            left: AT_ONCE,
            since: now,
        }
    }

    /// When the next record may be written, if not now.
    pub(crate) fn pause(&self, now: Instant) -> Option<Instant> {
        let again = self.since + Duration::from_secs(1);
        (self.left == 0 && now < again).then_some(again)
    }

    /// Counts one that is written.
    pub(crate) fn count(&mut self, now: Instant) {
        let seconds = now.duration_since(self.since).as_secs();
        if seconds > 0 {
            self.left = AT_ONCE.min(self.left + seconds.saturating_mul(PER_SECOND));
            self.since = now;
        }
        self.left = self.left.saturating_sub(1);
    }
}

impl Supervision<'_> {
    /// Takes one message of the door.
    pub(crate) fn hear_door(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(door) = self.cage.door() else {
            return Ok(());
        };
        self.traffic.count(now);
        let ended = match door.hear() {
            Ok(Some(FromDoor::Traffic(traffic))) => {
                self.recorder.write(EventKind::Network(traffic.clone()))?;
                return self.compare(&traffic, now);
            }
            Ok(Some(FromDoor::Changed { serial, closed })) => {
                return self.network_changed(serial, closed);
            }
            Ok(Some(FromDoor::Dial { ticket, port, six })) => {
                self.dial(ticket, port, six);
                return Ok(());
            }
            Ok(Some(FromDoor::Sum(traffic))) => {
                return self.recorder.write(EventKind::Network(traffic));
            }
            Ok(Some(FromDoor::Overheard(overheard))) => return self.overheard(overheard, now),
            Ok(None | Some(FromDoor::Ready { .. } | FromDoor::Authority(_))) => return Ok(()),
            Ok(Some(FromDoor::Failed(reason))) => reason,
            Ok(Some(FromDoor::Closed)) => "its process ended".to_owned(),
            // Not to be believed any more, and so not to be used.
            Err(error) => error.to_string(),
        };
        self.lose_door(ended)
    }

    /// The door has ended, or is to: nothing goes out any more.
    pub(crate) fn lose_door(&mut self, reason: String) -> Result<(), RunError> {
        drop(self.cage.take_door());
        self.recorder.write(EventKind::DoorEnded { reason })?;
        self.network_gone()
    }

    /// Ends the door and records what it has not told yet.
    pub(crate) fn close_door(&mut self) -> Result<(), RunError> {
        self.record_awaited_changes()?;
        let Some(door) = self.cage.take_door() else {
            return Ok(());
        };
        for traffic in door.close().into_iter().take(AT_ONCE as usize) {
            self.recorder.write(EventKind::Network(traffic))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_paused_and_goes_on_later() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
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
