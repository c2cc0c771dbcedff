//! An error in a policy file, shown at its line with what to do about it.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use ironcage_model::Printable;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The text of one policy file and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// The file's path, or the profile's name.
    pub(crate) path: PathBuf,
    pub(crate) text: Arc<str>,
}

impl Document {
    /// The line of a place in the text, from one.
    pub(crate) fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// The place of a value that stands in a line; the whole line where it is written in
    /// another way than it reads.
    pub(crate) fn find_in_line(&self, line: usize, value: &str) -> Range<usize> {
        let mut start = 0;
        for (index, content) in self.text.split_inclusive('\n').enumerate() {
            if index + 1 == line {
                let content = content.trim_end();
                return match content.find(value) {
                    Some(at) if !value.is_empty() => start + at..start + at + value.len(),
                    _ => start..start + content.len(),
                };
            }
            start += content.len();
        }
        start..start
    }
}

/// What is wrong in a policy file: where, what, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic(Box<DiagnosticDetails>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct DiagnosticDetails {
    title: String,
    label: String,
    remedy: Option<String>,
    document: Document,
    span: Range<usize>,
    context: Option<(Document, Range<usize>, String)>,
}

impl Diagnostic {
    pub(crate) fn new(
        document: &Document,
        span: Range<usize>,
        title: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        Diagnostic(Box::new(DiagnosticDetails {
            title: title.into(),
            label: label.into(),
            remedy: None,
            document: document.clone(),
            span,
            context: None,
        }))
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Shows another place that belongs to the same error.
    pub(crate) fn context(
        mut self,
        document: &Document,
        span: Range<usize>,
        label: impl Into<String>,
    ) -> Self {
        self.0.context = Some((document.clone(), span, label.into()));
        self
    }

    pub fn path(&self) -> &Path {
        &self.0.document.path
    }

    pub fn line(&self) -> usize {
        self.0.document.line(self.0.span.start)
    }

    /// What is wrong, in one line.
    pub fn title(&self) -> String {
        Printable::new(&self.0.title).to_string()
    }

    /// What to do about it.
    pub fn remedy_text(&self) -> Option<String> {
        self.0
            .remedy
            .as_ref()
            .map(|remedy| Printable::new(remedy).to_string())
    }
}

/// A span that lies in the text and on boundaries of characters, as the renderer needs it.
fn clamp(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = Printable::new(&self.0.label).to_string();
        let path = Printable::new(&self.0.document.path).to_string();
        let snippet = Snippet::source(&*self.0.document.text)
            .path(path)
            .annotation(
                AnnotationKind::Primary
                    .span(clamp(&self.0.document.text, &self.0.span))
                    .label(label),
            );
        let group = Level::ERROR.no_name().primary_title(self.title());
        let mut group = match &self.0.context {
            Some((document, span, label)) if document.path == self.0.document.path => {
                let label = Printable::new(label).to_string();
                let other = AnnotationKind::Context
                    .span(clamp(&document.text, span))
                    .label(label);
                group.element(snippet.annotation(other))
            }
            Some((document, span, label)) => {
                let label = Printable::new(label).to_string();
                let other = AnnotationKind::Context
                    .span(clamp(&document.text, span))
                    .label(label);
                group.element(snippet).element(
                    Snippet::source(&*document.text)
                        .path(Printable::new(&document.path).to_string())
                        .annotation(other),
                )
            }
            None => group.element(snippet),
        };
        if let Some(remedy) = self.remedy_text() {
            group = group.element(Level::HELP.message(remedy));
        }
        // A file of a workspace is written by whoever wrote the workspace, and the renderer lets
        // some of what acts on a terminal through.
        for (at, line) in Renderer::plain().render(&[group]).split('\n').enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{}", Printable::new(line))?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}
