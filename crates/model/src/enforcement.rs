//! How far a layer holds. Degradation is a value that reaches the user, not a log line.

use crate::Layer;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How far one layer holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "level", content = "how", rename_all = "kebab-case")]
pub enum Enforcement {
    /// Enforced as designed.
    Full,
    /// Enforced by the next best means; the text says which.
    Partial(String),
    /// Not enforced; the text says why.
    Off(String),
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enforcement::Full => f.write_str("full"),
            Enforcement::Partial(how) => write!(f, "partial ({how})"),
            Enforcement::Off(why) => write!(f, "off ({why})"),
        }
    }
}

/// What one layer enforced in one cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// The layer.
    pub layer: Layer,
    /// How far it holds.
    #[serde(flatten)]
    pub enforcement: Enforcement,
}
