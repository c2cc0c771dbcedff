//! One file per command.

pub(crate) mod apply;
pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod changes;
pub(crate) mod completions;
pub(crate) mod diff;
pub(crate) mod discard;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod inspect;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod ps;
pub(crate) mod rm;
pub(crate) mod run;
mod standing;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod trust;
pub(crate) mod wait;
pub(crate) mod why;
