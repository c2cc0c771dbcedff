//! Cedar rules of a policy's ceiling: read here, as a part of the policy, and evaluated in
//! `crates/lease`.

use crate::Diagnostic;
use crate::diagnostic::Document;
use serde::Serialize;
use std::ops::Range;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RulesFile {
    pub path: PathBuf,
    /// Its whole text, as it was read with the policy that names it.
    pub text: String,
    /// Whether only what it forbids counts: a policy file that is not trusted names it.
    pub only_forbids: bool,
}

impl RulesFile {
    pub(crate) fn of(document: &Document) -> Self {
        RulesFile {
            path: document.path.clone(),
            text: document.text.to_string(),
            only_forbids: false,
        }
    }

    /// What is wrong in it, shown at its line.
    pub fn mistake(
        &self,
        span: Range<usize>,
        title: impl Into<String>,
        label: impl Into<String>,
    ) -> Diagnostic {
        let document = Document {
            path: self.path.clone(),
            text: self.text.as_str().into(),
        };
        Diagnostic::new(&document, span, title, label)
            .remedy("see the schema in docs/guides/cedar.md")
    }
}
