//! Questions: what a person is asked before a lease is given.

use crate::{LeaseOrigin, Resource, Scope, Term};
use serde::{Deserialize, Serialize};

/// A lease that waits for a person's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRequest {
    /// Its number in its cage, from 1.
    pub number: u32,
    /// What is asked for.
    pub resource: Resource,
    /// For whom.
    pub scope: Scope,
    /// For how long.
    pub term: Term,
    /// For how many uses, where that is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// What it is for, as was said by who asks. An attacker may have said it.
    pub reason: String,
    /// Who asks.
    pub origin: LeaseOrigin,
    /// Why it is not given without asking.
    pub because: String,
    /// The code of that reason; not there in logs of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Where the model's words named it before: an attacker may have written them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<String>,
    /// The command that needs it, where one does. An attacker may have written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The number of the first request that the same command raised together with this one: they
    /// are answered together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
}

impl PermissionRequest {
    /// The number that all requests share which one answer is for.
    pub fn answered_as(&self) -> u32 {
        self.group.unwrap_or(self.number)
    }
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionRequestEnd {
    /// It was approved, and the lease is on record as open.
    Approved,
    /// It was approved, and the lease could not be opened.
    NotOpened,
    /// It was denied.
    Denied,
    /// Nobody answered in time.
    Expired,
    /// Nobody waits for the answer any more.
    Withdrawn,
    /// The cage ended.
    CageEnded,
}

impl PermissionRequestEnd {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            PermissionRequestEnd::Approved => "approved",
            PermissionRequestEnd::NotOpened => "approved, but not opened",
            PermissionRequestEnd::Denied => "denied",
            PermissionRequestEnd::Expired => "not answered in time",
            PermissionRequestEnd::Withdrawn => "withdrawn",
            PermissionRequestEnd::CageEnded => "ended with its cage",
        }
    }
}
