//! Where lines of audit logs are, so that a client that asks again and again has only new ones read.

use crate::engine::Engine;
use ironcage_audit::{Error, LogEntry, LogPlace, Tail};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A place is kept at each interval of this number of lines.
const STEP: u64 = 1000;
/// Lines that are held at once.
const BATCH: u64 = 64;

/// Places in the logs of cages, by their IDs.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogPlaces(Arc<Mutex<HashMap<String, Vec<LogPlace>>>>);

impl LogPlaces {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<LogPlace>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets cages that the service has forgotten.
    pub(crate) fn forget(&self, engine: &Engine) {
        self.lock().retain(|id, _| engine.any_cage(id).is_some());
    }

    /// The last known place before a line.
    fn before(&self, id: &str, line: u64) -> LogPlace {
        let all = self.lock();
        let places = all.get(id).map_or(&[][..], Vec::as_slice);
        let until = places.partition_point(|place| place.lines() < line);
        let last = until.checked_sub(1).and_then(|last| places.get(last));
        last.copied().unwrap_or_default()
    }

    fn keep(&self, id: &str, place: LogPlace) {
        let mut all = self.lock();
        let places = all.entry(id.to_owned()).or_default();
        if places
            .last()
            .is_none_or(|last| last.lines() < place.lines())
        {
            places.push(place);
        }
    }

    /// Reads a log from a line on, until there is no more or `more` says that it is enough. Lines
    /// before that are read only as far as no place is known.
    pub(crate) fn read(
        &self,
        id: &str,
        log: &Path,
        from: u64,
        mut more: impl FnMut(LogEntry) -> bool,
    ) -> Result<(), Error> {
        let mut tail = Tail::open_at(log, self.before(id, from))?;
        loop {
            let lines = tail.place().lines();
            let most = BATCH.min(STEP - lines % STEP);
            let found = tail.next_lines(usize::try_from(most).unwrap_or(usize::MAX))?;
            if found.is_empty() {
                return Ok(());
            }
            let place = tail.place();
            if place.lines().is_multiple_of(STEP) {
                self.keep(id, place);
            }
            for entry in found {
                let entry = entry?;
                if entry.seq >= from && !more(entry) {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_audit::{Log, log_path};
    use ironcage_model::{Event, EventKind};

    #[test]
    fn a_line_is_found_from_the_place_before_it_and_not_from_the_first() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let id: ironcage_model::CageId = "c0123456789ab".parse().unwrap();
        let mut log = Log::create(&dir, &id).unwrap();
        let mut add = |count: u64| {
            for _ in 0..count {
                let event = Event {
                    time: 1,
                    cage: id.clone(),
                    kind: EventKind::Paused,
                };
                log.append(&event).unwrap();
            }
        };
        let path = log_path(&dir, &id);
        let places = LogPlaces::default();
        let seen = |from: u64, most: usize| {
            let mut seen = Vec::new();
            let read = places.read(id.as_str(), &path, from, |entry| {
                seen.push(entry.seq);
                seen.len() < most
            });
            read.unwrap();
            seen
        };
        add(2500);
        assert_eq!(seen(1, 3), [1, 2, 3]);
        assert_eq!(seen(2400, 2), [2400, 2401]);
        assert_eq!(seen(2501, 2), [0_u64; 0]);
        let known = |line: u64| places.before(id.as_str(), line).lines();
        assert_eq!(
            (known(1), known(1000), known(1001), known(9999)),
            (0, 0, 1000, 2000)
        );
        // What was read is not read again: it may be anything now.
        let text = std::fs::read(&path).unwrap();
        let changed: Vec<u8> = (text.iter().enumerate())
            .map(|(at, byte)| if at < 100 { b'x' } else { *byte })
            .collect();
        std::fs::write(&path, &changed).unwrap();
        assert_eq!(seen(2499, 9), [2499, 2500]);
        assert!(places.read(id.as_str(), &path, 1, |_| true).is_err());
        std::fs::write(&path, &text).unwrap();
        assert_eq!(seen(1, usize::MAX).len(), 2500);
    }
}
