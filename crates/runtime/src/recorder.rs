//! Writes the events of one cage.

use crate::RunError;
use ironcage_audit::Log;
use ironcage_model::{CageId, Event, EventKind};
use std::time::{SystemTime, UNIX_EPOCH};

/// The record of one cage, being written.
#[derive(Debug)]
pub(crate) struct Recorder {
    log: Log,
    cage: CageId,
}

impl Recorder {
    /// Opens the record. Nothing is started without one.
    pub(crate) fn new(cage: CageId) -> Result<Self, RunError> {
        let log = Log::create(&ironcage_audit::audit_dir()?, &cage)?;
        Ok(Recorder { log, cage })
    }

    /// Writes one event.
    pub(crate) fn write(&mut self, kind: EventKind) -> Result<(), RunError> {
        let time = microseconds_since_the_epoch();
        self.log.append(&Event {
            time,
            cage: self.cage.clone(),
            kind,
        })?;
        Ok(())
    }
}

/// The time now, as records have it.
pub(crate) fn microseconds_since_the_epoch() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}
