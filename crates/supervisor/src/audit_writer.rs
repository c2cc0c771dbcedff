//! Writes the events of one cage.

use crate::RunError;
use crate::network::NetworkDenials;
use crate::scope::ScopeLink;
use crate::supervise::failed;
use ironcage_audit::Log;
use ironcage_model::{CageId, Event, EventKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The record of one cage, being written.
#[derive(Debug)]
pub(crate) struct AuditWriter {
    writer: Writer,
    /// Network denials among what was written, those of scopes too.
    pub(crate) denials: NetworkDenials,
}

#[derive(Debug)]
enum Writer {
    /// The one who writes.
    Own { log: Log, cage: CageId },
    /// In a scope: the cage's supervisor writes.
    Cages(Rc<ScopeLink>),
}

impl AuditWriter {
    /// Opens the record. Nothing is started without one.
    pub(crate) fn new(cage: CageId) -> Result<Self, RunError> {
        let log = Log::create(&ironcage_audit::audit_dir()?, &cage)?;
        Ok(AuditWriter::by(Writer::Own { log, cage }))
    }

    /// The record of the cage, written by its supervisor for a scope.
    pub(crate) fn of_scope(link: Rc<ScopeLink>) -> Self {
        AuditWriter::by(Writer::Cages(link))
    }

    fn by(writer: Writer) -> Self {
        AuditWriter {
            writer,
            denials: NetworkDenials::default(),
        }
    }

    /// What was denied, and the descriptors of the log: closing them says that the cage is no longer
    /// being recorded.
    pub(crate) fn close(self) -> (NetworkDenials, Vec<OwnedFd>) {
        let descriptors = match self.writer {
            Writer::Own { log, .. } => log.into_descriptors().into(),
            Writer::Cages(_) => Vec::new(),
        };
        (self.denials, descriptors)
    }

    /// Writes one event.
    pub(crate) fn write(&mut self, kind: EventKind) -> Result<(), RunError> {
        if let EventKind::Network(traffic) = &kind {
            self.denials.note(traffic, Instant::now());
        }
        match &mut self.writer {
            Writer::Own { log, cage } => Ok(log.append(&Event {
                time: microseconds_since_the_epoch(),
                cage: cage.clone(),
                kind,
            })?),
            Writer::Cages(link) => link.record(kind).map_err(failed(
                "write to the audit log through the cage's supervisor",
            )),
        }
    }
}

/// How much of an agent's words is put on record, in characters.
const MOST_WORDS: usize = 1024;

/// A command of the agent's, as far as it is put on record: it can say as much as it likes, as often
/// as it may, and the record is on a disk of the user's.
pub(crate) fn in_short(words: Vec<String>) -> Vec<String> {
    let mut left = MOST_WORDS;
    let mut short = Vec::new();
    for word in words {
        if left == 0 {
            short.push("...".into());
            break;
        }
        let length = word.chars().count();
        short.push(match word.char_indices().nth(left) {
            Some((end, _)) => format!("{}...", word.get(..end).unwrap_or_default()),
            None => word,
        });
        // An empty word takes room too.
        left = left.saturating_sub(length.max(1));
    }
    short
}

/// The time now, as records have it.
pub(crate) fn microseconds_since_the_epoch() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_as_they_are_until_they_are_too_many_or_too_long() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let few: Vec<String> = words(&["sh", "-c", "", "echo \u{e4}"]);
        assert_eq!(in_short(few.clone()), few);
        let long = in_short(words(&["a", &"\u{e4}".repeat(5000), "b"]));
        assert_eq!(long.len(), 3);
        assert_eq!(long[1].chars().count(), MOST_WORDS - 1 + 3);
        assert_eq!(long[2], "...");
        let many = in_short(vec![String::new(); 100_000]);
        assert_eq!(many.len(), MOST_WORDS + 1);
    }
}
