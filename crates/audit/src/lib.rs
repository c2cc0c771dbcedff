//! The audit log of a cage: append-only, with a hash chain, outside the cage's reach.
//!
//! Each cage has one file of JSON lines. Every line carries its number, the hash of the line before
//! it and its own hash; the number and hash of the last line, the *head*, are kept in another
//! directory. So a changed, missing, moved, doubled or inserted line is found, and so is a cut
//! tail.
//!
//! This crate can write ([`Log`]), read ([`Reader`], [`read`]), check ([`verify`]), search
//! ([`list`], [`find`]), remove what is old ([`prune`]) and explain what a denial means
//! ([`Explanations`]).
//!
//! It does not protect the files. The cage's file view does that, as no cage sees the state
//! directory. A process that can write both the log and the head can write a new history: signed heads
//! ([`Statement`]), of which a copy is kept elsewhere, show that. docs/reference/audit-log.md has
//! the format and the threat in full.
#![forbid(unsafe_code)]

mod chain;
mod containers;
mod error;
mod head;
mod log;
mod place;
mod prune;
mod query;
mod reader;
mod sign;
mod tail;
mod verify;

pub use chain::{Digest, MAX_LINE};
pub use containers::{Container, container, containers};
pub use error::{Error, Fault, Finding};
pub use log::Log;
pub use place::{NoStateDir, audit_dir, head_path, log_path, state_dir};
pub use prune::{Prune, Pruned, prune};
pub use query::{Heading, Summary, find, list, recorded, summary};
pub use reader::{LogEntry, Reader, read};
pub use sign::{
    AuditKey, HeadVerdict, PublicKey, SignError, SignedHead, Statement, check_head, head_to_sign,
    key_path,
};
pub use tail::{LogPlace, Tail};
pub use verify::{Unproven, Verdict, verify};
