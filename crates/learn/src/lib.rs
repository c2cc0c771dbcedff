//! From the record of a run to a policy: the least that the run needs, what it was given and
//! never used, and what another policy would have said to it.
//!
//! Pure: records, policies and plans in, text and findings out. Facts about the host are asked
//! through [`Host`]. Everything in a record may be the agent's word: a path, a host, a program's
//! name. So what is written is checked against the policy that bounds it, never against the record.
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
