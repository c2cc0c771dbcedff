//! Reasons: why something was denied or did not start, as a code with its data.
//!
//! A code is stable: programs, agents and tests branch on it, and it stands beside the text in
//! JSON and in the audit log. The text is rendered here and may change. Codes, meanings and
//! remedies are listed in docs/reference/reasons.md, which is generated from these tables.

#[macro_use]
mod table;
mod lease;
mod network;
mod signing;
mod start;
mod supervisor;
mod tool;

pub use lease::LeaseReason;
pub use network::NetworkReason;
pub use signing::SigningReason;
pub use start::StartCode;
pub use supervisor::SupervisorReason;
pub use table::{Datum, ReasonEntry};
pub use tool::ToolReason;

use crate::Printable;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Why something was denied or did not start.
///
/// Its text has nothing in it that a terminal obeys. In JSON it is three fields beside those of its object: `reason` (the text), `code` and, where
/// the reason has any, `data`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reason {
    /// About a lease.
    Lease(LeaseReason),
    /// Of the egress proxy.
    Network(NetworkReason),
    /// About a key that stays outside the cage.
    Signing(SigningReason),
    /// Of the supervisor, about anything else.
    Supervisor(SupervisorReason),
    /// About a tool call.
    Tool(ToolReason),
    /// A cage did not start.
    Start {
        /// What failed.
        code: StartCode,
        /// The error and its sources.
        text: String,
    },
    /// Read from an audit log of a version that has other codes, or none.
    Recorded {
        /// The code, where there is one.
        code: Option<String>,
        /// The data of the code.
        data: BTreeMap<String, Datum>,
        /// The text.
        text: String,
    },
}

impl Reason {
    /// The stable code. `None` only for what an older version wrote.
    pub fn code(&self) -> Option<&str> {
        match self {
            Reason::Lease(reason) => Some(reason.code()),
            Reason::Network(reason) => Some(reason.code()),
            Reason::Signing(reason) => Some(reason.code()),
            Reason::Supervisor(reason) => Some(reason.code()),
            Reason::Tool(reason) => Some(reason.code()),
            Reason::Start { code, .. } => Some(code.code()),
            Reason::Recorded { code, .. } => code.as_deref(),
        }
    }

    /// The text with the code behind it, for where there are no fields.
    pub fn with_code(&self) -> String {
        match self.code() {
            Some(code) => format!("{self} [{code}]"),
            None => self.to_string(),
        }
    }

    /// The code of a failed start, where it is one.
    pub fn start_code(&self) -> Option<StartCode> {
        match self {
            Reason::Start { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Cuts every text in it to this many bytes: much of it is chosen by the cage.
    pub fn cut(&mut self, bytes: usize) {
        match self {
            Reason::Lease(reason) => reason.cut(bytes),
            Reason::Network(reason) => reason.cut(bytes),
            Reason::Signing(reason) => reason.cut(bytes),
            Reason::Supervisor(reason) => reason.cut(bytes),
            Reason::Tool(reason) => reason.cut(bytes),
            Reason::Start { text, .. } | Reason::Recorded { text, .. } => {
                table::Field::cut(text, bytes);
            }
        }
    }

    fn data(&self) -> BTreeMap<String, Datum> {
        match self {
            Reason::Lease(reason) => reason.data(),
            Reason::Network(reason) => reason.data(),
            Reason::Signing(reason) => reason.data(),
            Reason::Supervisor(reason) => reason.data(),
            Reason::Tool(reason) => reason.data(),
            Reason::Start { .. } => BTreeMap::new(),
            Reason::Recorded { data, .. } => data.clone(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Lease(reason) => reason.fmt(f),
            Reason::Network(reason) => reason.fmt(f),
            Reason::Signing(reason) => reason.fmt(f),
            Reason::Supervisor(reason) => reason.fmt(f),
            Reason::Tool(reason) => reason.fmt(f),
            Reason::Start { text, .. } | Reason::Recorded { text, .. } => {
                Printable::new(text).fmt(f)
            }
        }
    }
}

impl std::error::Error for Reason {}

impl From<LeaseReason> for Reason {
    fn from(reason: LeaseReason) -> Self {
        Reason::Lease(reason)
    }
}

impl From<NetworkReason> for Reason {
    fn from(reason: NetworkReason) -> Self {
        Reason::Network(reason)
    }
}

impl From<SigningReason> for Reason {
    fn from(reason: SigningReason) -> Self {
        Reason::Signing(reason)
    }
}

impl From<SupervisorReason> for Reason {
    fn from(reason: SupervisorReason) -> Self {
        Reason::Supervisor(reason)
    }
}

impl From<ToolReason> for Reason {
    fn from(reason: ToolReason) -> Self {
        Reason::Tool(reason)
    }
}

#[derive(Serialize, Deserialize)]
struct WrittenReason {
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    data: BTreeMap<String, Datum>,
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WrittenReason {
            reason: match self {
                Reason::Start { text, .. } | Reason::Recorded { text, .. } => text.clone(),
                known => known.to_string(),
            },
            code: self.code().map(str::to_owned),
            data: self.data(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WrittenReason { reason, code, data } = WrittenReason::deserialize(deserializer)?;
        let known = code.as_deref().and_then(|code| {
            if let Some(code) = StartCode::find(code) {
                let text = reason.clone();
                return Some(Reason::Start { code, text });
            }
            let lease = LeaseReason::read(code, &data).map(Reason::Lease);
            let network = || NetworkReason::read(code, &data).map(Reason::Network);
            let supervisor = || SupervisorReason::read(code, &data).map(Reason::Supervisor);
            let signing = || SigningReason::read(code, &data).map(Reason::Signing);
            let known = lease.or_else(network).or_else(supervisor);
            let tool = || ToolReason::read(code, &data).map(Reason::Tool);
            known.or_else(signing).or_else(tool)
        });
        Ok(known.unwrap_or(Reason::Recorded {
            code,
            data,
            text: reason,
        }))
    }
}

/// Every code, by the heading under which the reference lists it.
pub fn reason_tables() -> [(&'static str, &'static [ReasonEntry]); 6] {
    [
        ("Leases", LeaseReason::TABLE),
        ("Network", NetworkReason::TABLE),
        ("Keys", SigningReason::TABLE),
        (
            "Commands, child cages and channels",
            SupervisorReason::TABLE,
        ),
        ("Tools", ToolReason::TABLE),
        ("Starting a cage", StartCode::TABLE),
    ]
}

/// The entry of a code.
pub fn find_reason(code: &str) -> Option<&'static ReasonEntry> {
    let mut entries = reason_tables().into_iter().flat_map(|(_, table)| table);
    entries.find(|entry| entry.code == code)
}

#[cfg(test)]
#[path = "reason_tests.rs"]
mod tests;
