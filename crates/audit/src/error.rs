//! Failures around a log: errors of the machine, and faults in the log.
//!
//! An [`Error`] means that the log cannot be read or written (no file, no permission, no space).
//! A [`Fault`] is about the log itself: the line, and what is wrong with it.

use ironcage_model::CageId;
use std::io;
use std::path::PathBuf;

/// A log could not be written, read or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory of the record could not be made.
    #[error("cannot create the directory {}", path.display())]
    MakeDir { path: PathBuf, source: io::Error },
    /// A file of the record could not be created.
    #[error("cannot create {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    /// A file of the record could not be written; what it held before still stands.
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// A file of the record could not be removed.
    #[error("cannot remove {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    /// A line was written in part and could not be taken back; the log is closed for good.
    #[error("{} ends with an incomplete line; nothing more is written to it", path.display())]
    Spoiled { path: PathBuf },
    /// An event is too long for a line.
    #[error(
        "cannot log an event of {length} bytes: the limit is {} bytes",
        crate::MAX_LINE
    )]
    TooLong {
        /// How long its line would be.
        length: usize,
    },
    /// An event could not be encoded.
    #[error("cannot write an event as JSON")]
    Encode { source: serde_json::Error },
    /// A file or directory of the record could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The path of a log is not a regular file.
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The log is there but is not well formed.
    #[error("{} is damaged: {fault}", path.display())]
    Damaged {
        path: PathBuf,
        /// The first fault in it.
        fault: Fault,
    },
    /// There is neither a log nor a head of this cage.
    #[error("cage {id} has no audit log")]
    NoSuchCage { id: CageId },
    /// Nothing has been recorded yet.
    #[error("no audit log in {}", dir.display())]
    Empty {
        /// Where logs would be.
        dir: PathBuf,
    },
    /// No cage matches what the user typed.
    #[error("no cage in the audit log has the ID or name `{}`", text.escape_debug())]
    NotFound { text: String },
    /// Several cages match what the user typed.
    #[error("`{}` is ambiguous: it matches {}", text.escape_debug(), matches.iter().map(CageId::as_str).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        text: String,
        /// The cages whose id begins with it.
        matches: Vec<CageId>,
    },
}

/// Something wrong at one place of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Fault {
    /// Number of the line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: Finding,
}

/// What is wrong with a line, or with the log as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// Longer than any line that is ever written.
    #[error("longer than {} bytes", crate::MAX_LINE)]
    TooLong,
    /// The file ends inside it.
    #[error("the file ends in the middle of this line")]
    Partial,
    /// Not of the form that a record has.
    #[error("not a log entry")]
    NotARecord,
    /// The form is right, the event is not one that this version knows.
    #[error("cannot parse the event ({0})")]
    UnknownEvent(String),
    /// Its own hash does not fit its text.
    #[error("the line was changed: its hash does not match its text")]
    Changed,
    /// Its number does not follow the one before.
    #[error(
        "the line has number {found}, expected {expected}: a line is missing, duplicated or moved"
    )]
    OutOfOrder {
        /// The number that belongs here.
        expected: u64,
        /// The number that stands here.
        found: u64,
    },
    /// It does not continue the line before it.
    #[error(
        "the line does not continue the one before it: a line was replaced, removed or inserted"
    )]
    Unchained,
    /// It speaks of another cage.
    #[error("the line belongs to another cage")]
    Foreign,
    /// A cage is gone after its exit record, so nothing can follow it.
    #[error("the line comes after the exit event")]
    AfterExit,
    /// The head knows of later lines.
    #[error("the log ends here, but its head file has {head_lines} lines: the end was cut off")]
    Cut {
        /// How many lines the head vouches for.
        head_lines: u64,
    },
    /// The head names another last line.
    #[error("not the line that the head file names: the log was rewritten")]
    NotTheHead,
    /// More lines than one write can have left without its head.
    #[error("the head file has only {head_lines} lines: the lines after them were added")]
    PastHead {
        /// How many lines the head vouches for.
        head_lines: u64,
    },
    /// The head's file holds something else.
    #[error("cannot parse the head file of the log: it was changed")]
    BadHead,
    /// Something else lies where the log should: a link, a pipe, a directory.
    #[error("the log is not a regular file")]
    NotAFile,
    /// The log is gone, its head is not.
    #[error("the log is missing, but its head file has {head_lines} lines")]
    Gone {
        /// How many lines the head vouches for.
        head_lines: u64,
    },
}
