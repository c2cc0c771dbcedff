//! Why a lease ended. In the audit log it is a sentence, which older versions wrote too.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseEndCause {
    /// Nothing reported how it ended.
    Unknown,
    /// Its term is over.
    TimeUp,
    /// The operator revoked it.
    Revoked,
    /// The mount helper, the egress proxy or the kernel refused to open it.
    NotOpened,
    /// The cage and everything in it ended.
    CageEnded,
    /// The egress proxy that held it ended.
    ProxyEnded,
    /// The model has the result of the call that it was for.
    CallAnswered,
    /// Private data and untrusted content met, and it leads out of the cage.
    TaintMet,
    /// The command of its scope ended.
    ScopeCommandEnded,
    /// Its scope was ended.
    ScopeEnded,
    /// Its scope did not start.
    ScopeNotStarted,
    /// Its scope ended together with the cage.
    ScopeEndedWithCage,
}

impl LeaseEndCause {
    /// All of them.
    pub const ALL: [LeaseEndCause; 12] = [
        LeaseEndCause::Unknown,
        LeaseEndCause::TimeUp,
        LeaseEndCause::Revoked,
        LeaseEndCause::NotOpened,
        LeaseEndCause::CageEnded,
        LeaseEndCause::ProxyEnded,
        LeaseEndCause::CallAnswered,
        LeaseEndCause::TaintMet,
        LeaseEndCause::ScopeCommandEnded,
        LeaseEndCause::ScopeEnded,
        LeaseEndCause::ScopeNotStarted,
        LeaseEndCause::ScopeEndedWithCage,
    ];

    /// The sentence in the audit log. It is frozen: logs of older versions have it.
    pub fn text(self) -> &'static str {
        match self {
            LeaseEndCause::Unknown => "nothing more is known of it",
            LeaseEndCause::TimeUp => "its time was up",
            LeaseEndCause::Revoked => "taken back by the operator",
            LeaseEndCause::NotOpened => "it could not be opened",
            LeaseEndCause::CageEnded => "the cage ended",
            LeaseEndCause::ProxyEnded => "the egress proxy ended",
            LeaseEndCause::CallAnswered => "the call's result went to the model",
            LeaseEndCause::TaintMet => "private data and untrusted content met in this cage",
            LeaseEndCause::ScopeCommandEnded => "its command ended",
            LeaseEndCause::ScopeEnded => "its scope was ended",
            LeaseEndCause::ScopeNotStarted => "its scope did not start",
            LeaseEndCause::ScopeEndedWithCage => "its scope ended with the cage",
        }
    }
}

/// A cause in an audit log, which a version with other causes may have written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RecordedCause {
    /// One of this version's.
    Known(LeaseEndCause),
    /// The sentence of another version.
    Other(String),
}

impl From<LeaseEndCause> for RecordedCause {
    fn from(cause: LeaseEndCause) -> Self {
        RecordedCause::Known(cause)
    }
}

impl fmt::Display for RecordedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordedCause::Known(cause) => f.write_str(cause.text()),
            RecordedCause::Other(text) => write!(f, "{}", crate::Printable::new(text)),
        }
    }
}

impl Serialize for RecordedCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RecordedCause::Known(cause) => serializer.serialize_str(cause.text()),
            RecordedCause::Other(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for RecordedCause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut known = LeaseEndCause::ALL.into_iter();
        Ok(match known.find(|cause| cause.text() == text) {
            Some(cause) => RecordedCause::Known(cause),
            None => RecordedCause::Other(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_survive_the_audit_log_and_no_two_have_one_sentence() {
        for cause in LeaseEndCause::ALL {
            let known = RecordedCause::Known(cause);
            let text = serde_json::to_string(&known).unwrap();
            assert_eq!(text, format!("\"{}\"", cause.text()));
            assert_eq!(serde_json::from_str::<RecordedCause>(&text).unwrap(), known);
        }
    }

    #[test]
    fn a_sentence_of_another_version_is_kept_and_shown_without_control_characters() {
        let text = "\"it went\\u001b away\"";
        let read: RecordedCause = serde_json::from_str(text).unwrap();
        assert!(matches!(read, RecordedCause::Other(_)));
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert!(!read.to_string().contains('\u{1b}'));
    }
}
