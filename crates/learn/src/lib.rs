//! From the audit log of a run to a policy: the least that the run needs, what it was permitted and
//! never used, and what another policy would have decided.
//!
//! Pure: logs, policies and plans in, text and findings out. Facts about the host come through
//! [`Host`]. The agent may have chosen everything in a log: a path, a host, the name of a program. So
//! the result is checked against the policy that bounds it, never against the log.
#![forbid(unsafe_code)]

mod draft;
mod files;
mod hosts;
mod observed_run;
mod replay;
mod text;
mod tighten;

pub use draft::{Host, Learned, Source, learn};
pub use observed_run::{ObservedRun, Refused};
pub use replay::{Change, Replayed, Verdict, replay};
pub use tighten::{Excess, tighten};
