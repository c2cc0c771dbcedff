//! Writes the events of one cage.

use crate::RunError;
use crate::scope::Link;
use crate::supervise::failed;
use ironcage_audit::Log;
use ironcage_model::{CageId, Event, EventKind};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The record of one cage, being written.
#[derive(Debug)]
pub(crate) struct Recorder(Writer);

#[derive(Debug)]
enum Writer {
    /// The one who writes.
    Own { log: Log, cage: CageId },
    /// In a scope: the cage's supervisor writes.
    Cages(Rc<Link>),
}

impl Recorder {
    /// Opens the record. Nothing is started without one.
    pub(crate) fn new(cage: CageId) -> Result<Self, RunError> {
        let log = Log::create(&ironcage_audit::audit_dir()?, &cage)?;
        Ok(Recorder(Writer::Own { log, cage }))
    }

    /// The record of the cage, written by its supervisor for a scope.
    pub(crate) fn of_scope(link: Rc<Link>) -> Self {
        Recorder(Writer::Cages(link))
    }

    /// Writes one event.
    pub(crate) fn write(&mut self, kind: EventKind) -> Result<(), RunError> {
        match &mut self.0 {
            Writer::Own { log, cage } => Ok(log.append(&Event {
                time: microseconds_since_the_epoch(),
                cage: cage.clone(),
                kind,
            })?),
            Writer::Cages(link) => link
                .record(kind)
                .map_err(failed("put something on record by the cage's supervisor")),
        }
    }
}

/// The time now, as records have it.
pub(crate) fn microseconds_since_the_epoch() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}
