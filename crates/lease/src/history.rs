//! Earlier leases and requests, as far as they matter for the next decision.

use ironcage_model::{Lease, Taint};

/// Leases that are open at once in a cage.
pub const MOST_OPEN: usize = 64;
/// And of them those that nobody outside asked for: the rest is for the operator, whom an agent that
/// opens all it can must not keep from granting.
pub const MOST_OPEN_BY_AGENT: usize = 48;
/// Requests within one second that are looked at, but for the operator's own.
pub const MOST_ASKED: u32 = 100;

/// What was given and asked before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Leases that are open, or whose end is not proved yet.
    pub open: Vec<Lease>,
    /// Requests in the last second that did not come from the operator.
    pub asked: u32,
    /// Whether what the cage did differs from what was said of it: then nothing is given at once.
    pub distrusted: bool,
    /// Whether the model's words named other places, and not this one, and the policy has that
    /// asked for.
    pub unannounced: bool,
    /// Why the judge that the policy names has a person asked.
    pub judge_asks: Option<String>,
    /// What the cage may have come into contact with.
    pub taint: Taint,
}
