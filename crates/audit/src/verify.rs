//! Verifies a log against itself and against its head file.
//!
//! The hash chain reveals changes inside a log; the head file reveals lines that were cut from
//! its end or added to it. Without the head file, or without the exit event of a cage that no
//! longer runs, nothing proves that the log is complete: its tail is then unproven, not intact.

use crate::chain::{self, Digest};
use crate::containers::is_kept;
use crate::error::{Error, Fault, Finding};
use crate::head::{self, Head};
use crate::place::log_path;
use crate::reader::{Lines, open_to_read};
use ironcage_model::CageId;
use ironcage_sys::rustix;
use rustix::fs::FlockOperation;
use serde::Deserialize;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// What can be said of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every line is as it was written, and none is missing.
    Intact {
        /// How many lines there are.
        lines: u64,
        /// Whether the cage is still being recorded. Then the exit record is yet to come.
        running: bool,
    },
    /// Every line is as it was written, but more may have followed.
    TailUnproven(Unproven),
    /// The log is not as it was written.
    Broken(Fault),
}

/// Why nothing proves where a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The cage is gone without an exit event: its supervisor was killed, or the machine stopped.
    #[error("the exit event is missing, and the cage is not running")]
    NoExit,
    /// The head file, which would confirm the last line, is missing.
    #[error("the head file of the log is missing")]
    NoHead,
    /// The last line is not in the head file: the supervisor was killed between the two writes, or a
    /// line was added.
    #[error("the last line is not in the head file")]
    PastHead,
}

/// What the chain needs to know of an event. Kinds that this version does not know are
/// no reason to doubt the chain.
#[derive(Debug, Deserialize)]
struct Envelope {
    cage: CageId,
    event: String,
}

/// Where a chain ends.
#[derive(Debug)]
struct End {
    lines: u64,
    hash: Digest,
    exited: bool,
    /// The hash of the line that the head names, if the log has it.
    at_head: Option<Digest>,
}

/// Checks the log of a cage.
pub fn verify(dir: &Path, id: &CageId) -> Result<Verdict, Error> {
    let path = log_path(dir, id);
    let file = match open_to_read(&path) {
        Ok(Some(file)) => file,
        Ok(None) => return without_log(dir, id),
        Err(Error::NotAFile { .. }) => return Ok(broken(1, Finding::NotAFile)),
        Err(error) => return Err(error),
    };
    // In this order: of a cage that is running the log is read up to the head that was seen,
    // so that lines which come in the meantime cannot be taken for added ones.
    let running = is_running(&file) || is_kept(dir, id)?;
    let head = read_head(dir, id)?;
    let until = match head {
        Some(head) if running => head.lines(),
        _ => u64::MAX,
    };
    match walk(file, &path, id, head, until)? {
        Ok(end) => Ok(judge(&end, head, running)),
        Err(fault) => Ok(Verdict::Broken(fault)),
    }
}

/// The last line of a chain that was followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainEnd {
    pub(crate) lines: u64,
    pub(crate) hash: Digest,
}

/// Follows the chain of a log for at most `until` lines; `None` without a log.
pub(crate) fn chain_end(
    dir: &Path,
    id: &CageId,
    until: u64,
) -> Result<Option<Result<ChainEnd, Fault>>, Error> {
    let path = log_path(dir, id);
    let Some(file) = open_to_read(&path)? else {
        return Ok(None);
    };
    let end = walk(file, &path, id, None, until)?;
    Ok(Some(end.map(|end| ChainEnd {
        lines: end.lines,
        hash: end.hash,
    })))
}

fn without_log(dir: &Path, id: &CageId) -> Result<Verdict, Error> {
    let Some(head) = read_head(dir, id)? else {
        return Err(Error::NoSuchCage { id: id.clone() });
    };
    let head_lines = head.lines();
    Ok(broken(head_lines, Finding::Gone { head_lines }))
}

fn read_head(dir: &Path, id: &CageId) -> Result<Option<Head>, Error> {
    match head::read(dir, id) {
        // A link in its place is as much a changed head as other bytes in it are.
        Err(Error::NotAFile { .. }) => Ok(Some(Head::Unreadable)),
        other => other,
    }
}

/// Whether the log's writer still holds it.
pub(crate) fn is_running(log: &File) -> bool {
    let lock = rustix::fs::flock(log, FlockOperation::NonBlockingLockShared);
    if lock.is_ok() {
        // Given back when the file is closed at the latest; an error changes nothing.
        let _ = rustix::fs::flock(log, FlockOperation::Unlock);
    }
    lock == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Follows the chain for at most `until` lines.
fn walk(
    file: File,
    path: &Path,
    id: &CageId,
    head: Option<Head>,
    until: u64,
) -> Result<Result<End, Fault>, Error> {
    let mut lines = Lines::new(BufReader::new(file));
    let mut end = End {
        lines: 0,
        hash: Digest::genesis(id),
        exited: false,
        at_head: None,
    };
    while end.lines < until {
        let line = lines.next_line().map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        let Some(line) = line else { break };
        if let Err(what) = line.and_then(|line| step(&mut end, line, id)) {
            let line = end.lines + 1;
            return Ok(Err(Fault { line, what }));
        }
        if head.is_some_and(|head| head.lines() == end.lines) {
            end.at_head = Some(end.hash);
        }
    }
    Ok(Ok(end))
}

fn step(end: &mut End, line: &[u8], id: &CageId) -> Result<(), Finding> {
    let link = chain::decode(line)?;
    if !link.sound {
        return Err(Finding::Changed);
    }
    let expected = end.lines + 1;
    if link.seq != expected {
        let found = link.seq;
        return Err(Finding::OutOfOrder { expected, found });
    }
    if link.prev != end.hash {
        return Err(Finding::Unchained);
    }
    let envelope: Envelope =
        serde_json::from_slice(line).map_err(|error| Finding::UnknownEvent(error.to_string()))?;
    if envelope.cage != *id {
        return Err(Finding::Foreign);
    }
    if end.exited {
        return Err(Finding::AfterExit);
    }
    end.exited = envelope.event == "exit";
    end.lines = expected;
    end.hash = link.hash;
    Ok(())
}

fn judge(end: &End, head: Option<Head>, running: bool) -> Verdict {
    let lines = end.lines;
    let (head_lines, head_hash) = match head {
        None => return Verdict::TailUnproven(Unproven::NoHead),
        Some(Head::Unreadable) => return broken(lines, Finding::BadHead),
        Some(Head::Empty) => (0, None),
        Some(Head::At { lines, hash }) => (lines, Some(hash)),
    };
    if lines < head_lines {
        return broken(lines, Finding::Cut { head_lines });
    }
    if end.at_head != head_hash {
        return broken(head_lines, Finding::NotTheHead);
    }
    if lines > head_lines + 1 {
        return broken(head_lines + 1, Finding::PastHead { head_lines });
    }
    if lines > head_lines {
        return Verdict::TailUnproven(Unproven::PastHead);
    }
    if end.exited || running {
        return Verdict::Intact { lines, running };
    }
    Verdict::TailUnproven(Unproven::NoExit)
}

fn broken(line: u64, what: Finding) -> Verdict {
    Verdict::Broken(Fault { line, what })
}
