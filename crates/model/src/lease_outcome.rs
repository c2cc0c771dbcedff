//! The outcome of a request for a lease: one type, from the decision to the wire.

use crate::{Lease, Reason, Term};
use serde::{Deserialize, Serialize};

/// What came of a request for a lease. `T` is what is known of one that is granted: its terms when
/// that is decided, the lease when it is open, a summary for the agent. `Q` names the permission
/// request that waits for a person, once there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum LeaseOutcome<T, Q = u32> {
    /// It is given.
    Granted(T),
    /// The cage has it anyway.
    #[serde(rename = "had")]
    InBase {
        /// By which part of its plan.
        #[serde(flatten)]
        reason: Reason,
    },
    /// A person has to approve it.
    Pending {
        /// The number of the permission request.
        question: Q,
        /// Why a person has to.
        #[serde(flatten)]
        reason: Reason,
    },
    /// It is not given.
    Denied {
        /// Why, and what to do.
        #[serde(flatten)]
        reason: Reason,
    },
}

/// The outcome of a request for a lease, as its requester gets it.
pub type RequestOutcome = LeaseOutcome<GrantedLease>;

impl<T, Q> LeaseOutcome<T, Q> {
    /// It is not given, because of this.
    pub fn denied(reason: impl Into<Reason>) -> Self {
        LeaseOutcome::Denied {
            reason: reason.into(),
        }
    }

    /// The same outcome with something else in place of what is granted.
    pub fn map<U>(self, granted: impl FnOnce(T) -> U) -> LeaseOutcome<U, Q> {
        match self {
            LeaseOutcome::Granted(known) => LeaseOutcome::Granted(granted(known)),
            LeaseOutcome::InBase { reason } => LeaseOutcome::InBase { reason },
            LeaseOutcome::Pending { question, reason } => {
                LeaseOutcome::Pending { question, reason }
            }
            LeaseOutcome::Denied { reason } => LeaseOutcome::Denied { reason },
        }
    }

    /// The same, where what is granted may have no counterpart.
    pub fn try_map<U>(self, granted: impl FnOnce(T) -> Option<U>) -> Option<LeaseOutcome<U, Q>> {
        Some(match self {
            LeaseOutcome::Granted(known) => LeaseOutcome::Granted(granted(known)?),
            LeaseOutcome::InBase { reason } => LeaseOutcome::InBase { reason },
            LeaseOutcome::Pending { question, reason } => {
                LeaseOutcome::Pending { question, reason }
            }
            LeaseOutcome::Denied { reason } => LeaseOutcome::Denied { reason },
        })
    }
}

/// A lease that was granted, as whoever asked from outside is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GrantedLease {
    /// It is open.
    Open(Lease),
    /// A person approved it for a scope, which opens it by itself.
    ForScope {
        /// For how long.
        term: Term,
        /// For how many uses.
        uses: Option<u32>,
    },
}

/// An open lease, as the agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSummary {
    /// What exactly, in words; for what is to be made, the directory around it.
    pub what: String,
    /// The number of the lease.
    pub lease: u32,
    /// For how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub milliseconds: Option<u64>,
}

impl From<&Lease> for LeaseSummary {
    fn from(lease: &Lease) -> Self {
        LeaseSummary {
            what: lease.resource.to_string(),
            lease: lease.number,
            milliseconds: lease.term.duration().map(|time| time.as_millis() as u64),
        }
    }
}
