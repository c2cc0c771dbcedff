//! The error of a layer that could not be applied.

use ironcage_model::{Layer, StartCode};
use std::fmt;
use std::io;

/// A layer that could not be applied: which, at what, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{layer}: cannot {action}")]
pub struct LayerError {
    pub layer: Layer,
    /// What it was doing, naming the object.
    pub action: String,
    pub source: io::Error,
    /// The code of the failed start.
    pub code: StartCode,
}

impl LayerError {
    /// The same with a code that says more than that a layer failed.
    pub fn with_code(self, code: StartCode) -> Self {
        LayerError { code, ..self }
    }
}

/// Adds to an error what was being done.
pub(crate) trait Doing<T> {
    /// Names layer and action.
    fn doing(self, layer: Layer, action: impl FnOnce() -> String) -> Result<T, LayerError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, layer: Layer, action: impl FnOnce() -> String) -> Result<T, LayerError> {
        self.map_err(|error| LayerError {
            layer,
            action: action(),
            source: error.into(),
            code: StartCode::LayerFailed,
        })
    }
}

/// Shows a path in an error.
pub(crate) fn shown(path: &std::path::Path) -> impl fmt::Display + '_ {
    ironcage_model::Printable::new(path)
}
