//! Which data is private and which content untrusted, and what follows where both meet.

use crate::narrow::Dropped;
use crate::{PolicyError, Sourced};
use ironcage_model::HostRule;
use serde::Serialize;
use std::path::PathBuf;

/// What one source says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TaintFragment {
    pub(crate) private: Vec<Sourced<PathBuf>>,
    pub(crate) untrusted: Vec<Sourced<HostRule>>,
    pub(crate) ask: Option<Sourced<bool>>,
}

/// Which data is private and which content untrusted, fully merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaintRules {
    /// Paths with private data.
    pub private: Vec<Sourced<PathBuf>>,
    /// Hosts whose content is not trusted.
    pub untrusted: Vec<Sourced<HostRule>>,
    /// Whether outbound leases need approval where both meet.
    pub ask: Sourced<bool>,
}

impl TaintRules {
    pub(crate) fn from_defaults(fragment: TaintFragment) -> Result<Self, PolicyError> {
        Ok(TaintRules {
            private: fragment.private,
            untrusted: fragment.untrusted,
            ask: fragment.ask.ok_or(PolicyError::Incomplete("taint.ask"))?,
        })
    }

    /// Puts a fragment on top.
    pub(crate) fn apply(&mut self, fragment: TaintFragment) {
        for path in fragment.private {
            if self.private.iter().all(|known| known.value != path.value) {
                self.private.push(path);
            }
        }
        for rule in fragment.untrusted {
            if self.untrusted.iter().all(|known| known.value != rule.value) {
                self.untrusted.push(rule);
            }
        }
        if let Some(ask) = fragment.ask {
            self.ask = ask;
        }
    }

    /// Whether it marks no less than `other`, and asks no less.
    pub(crate) fn is_no_wider(&self, other: &TaintRules) -> bool {
        let paths = other
            .private
            .iter()
            .all(|path| self.private.iter().any(|own| own.value == path.value));
        let hosts = other
            .untrusted
            .iter()
            .all(|rule| self.untrusted.iter().any(|own| own.value == rule.value));
        paths && hosts && self.ask.value >= other.ask.value
    }
}

/// Takes out of an untrusted fragment what would ask less. To mark more is always heard.
pub(crate) fn narrow(base: &TaintRules, fragment: &mut TaintFragment, dropped: &mut Dropped) {
    dropped.keep_if(
        "taint.ask",
        &mut fragment.ask,
        |wanted| *wanted >= base.ask.value,
        bool::to_string,
    );
}
