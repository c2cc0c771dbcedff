//! How a cage ended.

use crate::{Denial, LayerReport, LimitHit, Reason, Traffic};
use serde::{Deserialize, Serialize};

/// Why the command of a cage is no longer running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ending", rename_all = "kebab-case")]
pub enum Ending {
    /// It exited by itself.
    Exited {
        /// Its exit status.
        code: u8,
    },
    /// A signal ended it.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// A limit ended it.
    Limit {
        /// Which one and its value.
        hit: LimitHit,
    },
    /// It was asked to end: a sticky cage, which has no other end of its own.
    Stopped,
    /// A container ended, and its engine alone knows how.
    Unobserved,
    /// It could not be executed inside.
    NotExecuted {
        /// The error number of execve.
        errno: i32,
    },
    /// Ironcage could not hold it any longer and ended it.
    Failed {
        /// What went wrong.
        #[serde(flatten)]
        reason: Reason,
    },
}

impl Ending {
    /// The exit status that `ironcage run` reports: the command's own; 128 and the signal's
    /// number; 124 for the time limits, 137 for memory and disk; 126 and 127 as shells have
    /// them; 125 for our own errors; 255 where nobody saw it.
    pub fn exit_code(&self) -> u8 {
        const ENOENT: i32 = linux_raw_sys::errno::ENOENT as i32;
        match self {
            Ending::Exited { code } => *code,
            Ending::Stopped => 0,
            Ending::Signalled { signal } => u8::try_from(128 + (signal & 127)).unwrap_or(255),
            Ending::Limit { hit } => match hit.limit {
                crate::LimitKind::Time | crate::LimitKind::Idle => 124,
                _ => 137,
            },
            Ending::NotExecuted { errno: ENOENT } => 127,
            Ending::NotExecuted { .. } => 126,
            Ending::Failed { .. } => 125,
            Ending::Unobserved => 255,
        }
    }
}

/// What remains to be said after a cage is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// What each layer enforced.
    pub layers: Vec<LayerReport>,
    /// Limits that were reached, fatal or not.
    pub limits: Vec<LimitHit>,
    /// Files that appeared and that the host would execute or trust.
    #[serde(default)]
    pub planted: Vec<String>,
    /// Why the egress proxy listened on single ports only, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door_narrowed: Option<String>,
    /// What the network denied, one for each destination.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_denied: Vec<Traffic>,
    /// Denials of more destinations than are told apart.
    #[serde(default)]
    pub network_denied_more: u64,
    /// System calls that were denied, one for each call and program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub syscalls_denied: Vec<Denial>,
    /// What the model's answers opened, in all.
    #[serde(default)]
    pub lent: Lent,
}

/// Leases that the model's answers opened, in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// How many.
    pub leases: u32,
    /// For how long they were given.
    pub given_milliseconds: u64,
    /// For how long they were open.
    pub open_milliseconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LimitKind;

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(Ending::Exited { code: 3 }.exit_code(), 3);
        assert_eq!(Ending::Signalled { signal: 15 }.exit_code(), 143);
        assert_eq!(Ending::NotExecuted { errno: 2 }.exit_code(), 127);
        assert_eq!(Ending::NotExecuted { errno: 13 }.exit_code(), 126);
        let hit = |limit| LimitHit {
            limit,
            value: "1".into(),
            ended: true,
            used: None,
        };
        let limit = |kind| Ending::Limit { hit: hit(kind) }.exit_code();
        assert_eq!(limit(LimitKind::Time), 124);
        assert_eq!(limit(LimitKind::Memory), 137);
    }
}
