//! Taint: marks on what a cage may have come into contact with.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a cage, or whoever wrote what it reads, may have come into contact with. It only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Taint {
    /// Private data can have been read.
    #[serde(default)]
    pub private: bool,
    /// Untrusted content can have been taken in.
    #[serde(default)]
    pub untrusted: bool,
}

impl Taint {
    /// None of it.
    pub const NONE: Taint = Taint {
        private: false,
        untrusted: false,
    };

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Taint) -> Taint {
        Taint {
            private: self.private || other.private,
            untrusted: self.untrusted || other.untrusted,
        }
    }

    /// Whether there is none.
    pub const fn is_none(&self) -> bool {
        !self.private && !self.untrusted
    }

    /// Whether private data can have met untrusted content.
    pub const fn meets(self) -> bool {
        self.private && self.untrusted
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.private, self.untrusted) {
            (false, false) => "none",
            (true, false) => "private",
            (false, true) => "untrusted",
            (true, true) => "private and untrusted",
        })
    }
}
