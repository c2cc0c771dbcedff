//! Connections of cages and their bytes, summed up from their audit logs.

use crate::engine::Engine;
use ironcage_audit::{LogPlace, Tail};
use ironcage_model::{EventKind, NetworkVerdict, Traffic};
use serde::Serialize;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of a cage and their bytes, as its audit log has them: the proxy sums up for some seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TrafficSums {
    connections: u64,
    denied: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl TrafficSums {
    fn add(&mut self, traffic: &Traffic) {
        let count = match traffic.verdict {
            NetworkVerdict::Allowed => &mut self.connections,
            NetworkVerdict::Denied => &mut self.denied,
        };
        *count = count.saturating_add(traffic.connections);
        self.sent = self.sent.saturating_add(traffic.sent);
        self.received = self.received.saturating_add(traffic.received);
    }
}

/// Lines of a log that are held at once.
const BATCH: usize = 64;

/// The sums of cages, as far as their logs were read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traffics(Arc<Mutex<HashMap<String, (LogPlace, TrafficSums)>>>);

impl Traffics {
    /// The sums of one cage. Its log is read on from where the last look ended.
    pub(crate) fn of(&self, id: &str, log: &Path) -> TrafficSums {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a log, or one that cannot be read, nothing is known to have gone out; the page of the
        // cage, which reads the log too, says why.
        let (place, sums) = lock().get(id).copied().unwrap_or_default();
        let (place, sums) = add_lines(log, place, sums);
        lock().insert(id.to_owned(), (place, sums));
        sums
    }

    /// Forgets cages that the service has forgotten.
    pub(crate) fn forget(&self, engine: &Engine) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|id, _| engine.any_cage(id).is_some());
    }
}

/// Adds the lines of a log after a place.
fn add_lines(log: &Path, place: LogPlace, mut sums: TrafficSums) -> (LogPlace, TrafficSums) {
    let Ok(mut tail) = Tail::open_at(log, place) else {
        return (place, sums);
    };
    while let Ok(lines) = tail.next_lines(BATCH)
        && !lines.is_empty()
    {
        for line in lines.iter().flatten() {
            if let EventKind::Network(traffic) = &line.event.kind {
                sums.add(traffic);
            }
        }
    }
    (tail.place(), sums)
}
