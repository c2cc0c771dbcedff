//! The languages that are followed, and those that are only searched for literals.

pub(crate) mod awk;
pub(crate) mod expect;
mod javascript;
pub(crate) mod literals;
pub(crate) mod makefile;
pub(crate) mod package;
mod python;
pub(crate) mod tests;

use crate::ir::Statement;

/// A language with a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    JavaScript,
}

impl Language {
    /// The statements of a text, and whether all of it could be read. `None` if it is too long.
    pub(crate) fn lower(self, text: &str) -> Option<(Vec<Statement>, bool)> {
        match self {
            Language::Python => python::lower(text),
            Language::JavaScript => javascript::lower(text),
        }
    }

    pub(crate) fn is_python(self) -> bool {
        self == Language::Python
    }
}
