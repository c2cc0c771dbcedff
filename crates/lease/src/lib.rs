//! Whether a running cage gets a permission: a pure function of the plan, the request, and the leases
//! and requests before it.
//!
//! Nothing here touches the kernel. A path comes as the real path of a file that the requester holds
//! open, with the facts that its descriptor shows ([`Facts`]). The mount helper compares what it opens
//! with the same descriptor once more.
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
