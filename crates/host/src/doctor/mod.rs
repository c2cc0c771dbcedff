//! The deep examination of a host, behind `ironcage doctor`: what can be enforced is tried,
//! and each thing that fails is explained with the command that mends it.

mod diagnosis;
mod place;

pub(crate) use diagnosis::userns_failure_hint;
pub use place::Place;
