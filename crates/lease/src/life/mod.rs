//! The life of a lease, as a state machine without a process, a clock or a descriptor:
//!
//! ```text
//! requested -> decided -> ordered -> open -> closing -> proven
//!     |                      |        |         |
//!     +-> denied             +--------+---------+------> held (ended with the cage)
//! ```
//!
//! Whoever runs it feeds it events and carries out the effects that it returns: the loop of a
//! cage's supervisor, which waits for nothing, and the supervisor of a scope, which waits for
//! each answer. Two rules hold in every order of events, and the property tests check them: a
//! lease is opened only when the audit log has it, and it is `proven` only by the word of
//! whatever holds it. Silence, a lost helper or a timeout never ends a lease; the cage does.

mod rules;
mod state;

pub use rules::{EndingRules, Expulsion, StillUsed};
pub use state::{LeaseEffect, LeaseEvent, LeaseLife, LeasePhase, Release};

#[cfg(test)]
mod tests;
