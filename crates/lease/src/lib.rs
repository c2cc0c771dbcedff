//! Whether a permission is given to a running cage: a pure function of the plan, of what is
//! asked for, and of what was given before.
//!
//! Nothing here touches the kernel. A path comes as the real path of something that the asker
//! holds open, with what was seen through that descriptor beside it ([`Facts`]); who carries a
//! decision out compares what it finds with the same descriptor once more.
#![forbid(unsafe_code)]

mod announced;
mod decide;
mod history;
mod others;
mod paths;
mod rules;

pub use announced::Words;
pub use decide::{Asked, Decision, Given, Wanted, decide, decide_by, overlaps};
pub use history::{History, MOST_ASKED, MOST_OPEN};
pub use paths::{AskedPath, Facts, Node};
pub use rules::{Case, Choice, Marks, Rules};
