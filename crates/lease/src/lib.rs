//! Whether a permission is given to a running cage: a pure function of the plan, of what is
//! asked for, and of what was given before.
//!
//! Nothing here touches the kernel. A path comes as the real path of something that the asker
//! holds open, with what was seen through that descriptor beside it ([`Facts`]); who carries a
//! decision out compares what it finds with the same descriptor once more.
#![forbid(unsafe_code)]

mod announced;
pub mod cedar;
mod decide;
mod history;
pub mod life;
mod others;
mod paths;
mod rules;
mod task;

pub use announced::Words;
pub use decide::{
    Decision, LeaseTerms, RequestedLease, RequestedResource, decide, decide_by, decide_by_marks,
    overlaps,
};
pub use history::{History, MOST_ASKED, MOST_OPEN, MOST_OPEN_BY_AGENT};
pub use paths::{Facts, Node, RequestedPath};
pub use rules::{Case, Choice, Marks, Rules};
