//! What can go wrong with a log: errors of the machine, and findings in the text.
//!
//! An [`Error`] means that nothing can be said (no file, no permission, no space). A
//! [`Fault`] is a statement about the log itself: this line, and what is wrong with it.

use ironcage_model::CageId;
use std::io;
use std::path::PathBuf;

/// A log could not be written, read or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory of the record could not be made.
    #[error("cannot make the directory {}", path.display())]
    MakeDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the record could not be created.
    #[error("cannot create {}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the record could not be written; what it held before still stands.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the record could not be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line was written in part and could not be taken back; the log is closed for good.
    #[error("{} holds a line written in part; nothing more is recorded in it", path.display())]
    Spoiled {
        /// The file.
        path: PathBuf,
    },
    /// An event is too long for a line.
    #[error(
        "an event of {length} bytes is longer than a line may be ({} bytes)",
        crate::MAX_LINE
    )]
    TooLong {
        /// How long its line would be.
        length: usize,
    },
    /// An event could not be put into words.
    #[error("an event cannot be written as JSON")]
    Encode {
        /// Why.
        source: serde_json::Error,
    },
    /// A file or directory of the record could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that is no regular file lies where a log should.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// Its path.
        path: PathBuf,
    },
    /// The log is there but is not well formed.
    #[error("{} is damaged: {fault}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first fault in it.
        fault: Fault,
    },
    /// There is neither a log nor a head of this cage.
    #[error("there is no record of cage {id}")]
    NoSuchCage {
        /// The cage.
        id: CageId,
    },
    /// Nothing has been recorded yet.
    #[error("no cage is recorded in {}", dir.display())]
    Empty {
        /// Where logs would be.
        dir: PathBuf,
    },
    /// No cage answers to what the user typed.
    #[error("no recorded cage has the id or name `{}`", text.escape_debug())]
    NotFound {
        /// What was looked for.
        text: String,
    },
    /// Several cages answer to what the user typed.
    #[error("`{}` may be any of {}", text.escape_debug(), matches.iter().map(CageId::as_str).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// What was looked for.
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
    #[error("it is longer than {} bytes", crate::MAX_LINE)]
    TooLong,
    /// The file ends inside it.
    #[error("the file ends in the middle of it")]
    Partial,
    /// Not of the form that a record has.
    #[error("it is not a record")]
    NotARecord,
    /// The form is right, the event is not one that this version knows.
    #[error("its event cannot be read ({0})")]
    UnknownEvent(String),
    /// Its own hash does not fit its text.
    #[error("it was changed: its hash does not fit its text")]
    Changed,
    /// Its number does not follow the one before.
    #[error("it has number {found} where {expected} belongs: a line is missing, doubled or moved")]
    OutOfOrder {
        /// The number that belongs here.
        expected: u64,
        /// The number that stands here.
        found: u64,
    },
    /// It does not continue the line before it.
    #[error("it does not continue the line before it: a line was replaced, removed or inserted")]
    Unchained,
    /// It speaks of another cage.
    #[error("it belongs to another cage")]
    Foreign,
    /// A cage is gone after its exit record, so nothing can follow it.
    #[error("it comes after the exit record")]
    AfterExit,
    /// The head knows of later lines.
    #[error("the log ends here, but its head knows of {head_lines} lines: the tail was cut")]
    Cut {
        /// How many lines the head vouches for.
        head_lines: u64,
    },
    /// The head names another last line.
    #[error("it is not the line that the head names: the log was rewritten")]
    NotTheHead,
    /// More lines than one write can have left without its head.
    #[error("the head vouches for {head_lines} lines only: the lines after them were added")]
    PastHead {
        /// How many lines the head vouches for.
        head_lines: u64,
    },
    /// The head's file holds something else.
    #[error("the head of the log cannot be read: it was changed")]
    BadHead,
    /// Something else lies where the log should: a link, a pipe, a directory.
    #[error("there is no regular file in the log's place")]
    NotAFile,
    /// The log is gone, its head is not.
    #[error("the log is gone, but its head knows of {head_lines} lines")]
    Gone {
        /// How many lines the head vouches for.
        head_lines: u64,
    },
}
