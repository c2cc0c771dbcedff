//! The choice, within the ceiling, between granting at once, asking and denying.

use crate::decide::RequestedLease;
use crate::history::History;
use ironcage_model::{Mark, Resource};
use ironcage_plan::Plan;

/// A request that lies in the ceiling.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub plan: &'a Plan,
    pub asked: &'a RequestedLease<'a>,
    /// What was given and asked before.
    pub history: &'a History,
    pub resource: &'a Resource,
}

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// `auto`, `ask` or `deny`.
    pub mark: Mark,
    pub reason: String,
}

/// Chooses. Like the decision, it is a pure function.
pub trait Rules {
    /// What is chosen; `None` leaves it to the ceiling's own mark.
    fn choose(&self, case: &Case<'_>) -> Option<Choice>;
}

/// The ceiling's own marks, and nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub struct Marks;

impl Rules for Marks {
    fn choose(&self, _: &Case<'_>) -> Option<Choice> {
        None
    }
}
