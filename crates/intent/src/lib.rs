//! Reads what an agent is about to do from what it announces: a shell command, a tool call, a model's
//! response.
//!
//! Text becomes [`Needs`]: the programs, the files and the hosts that it names, and what cannot be
//! known from it. Needs grant nothing. Whatever is read here was written by somebody who may be an
//! attacker, so reading it is bounded in time and memory, and a reading that is too narrow or too
//! wide costs a permission request and never exceeds the ceiling.
#![forbid(unsafe_code)]

mod action;
mod answer;
mod call;
mod json;
mod mentions;
mod needs;
mod patch;
mod program;
mod search;
mod shell;
mod sources;
mod tools;

pub use action::{Action, Edit, FileAction, FileWork, Shape};
pub use answer::{AnswerPart, AnswerReader, Encoding, Format, Results};
pub use call::{Call, Calls, InvalidCall, InvalidCalls};
pub use mentions::{Mention, Mentions};
pub use needs::{Destination, Needs, Unknown, Unsure, tidy};
pub use patch::{Hunk, PatchWork, PatchedFile};
pub use program::{ReadRequest, read_with};
pub use search::{Search, SearchOutput, TextSearch};
pub use shell::{Context, Shell};
pub use sources::{Argument, Code, CodeCommand, CodeNeeds, CommandText, Sources};
pub use tools::{InvalidTable, Table, destination};
