//! A report for other readers: CI systems (JUnit), pages in a repository (Markdown), people
//! without a terminal (one HTML page).
//!
//! The output of a probe comes from a sandbox that may be hostile: it is escaped for its
//! reader, control characters first.

mod html;
mod junit;
mod markdown;

use crate::report::{MustWork, Report, Row, Verdict};
use ironcage_model::Printable;

/// Every verdict, the good ones first: pages say what each means.
pub(crate) const VERDICTS: [Verdict; 7] = [
    Verdict::Blocked,
    Verdict::OpenAccepted,
    Verdict::NotDiscriminating,
    Verdict::Skipped,
    Verdict::Open,
    Verdict::Unknown,
    Verdict::Escaped,
];

impl Report {
    /// As JUnit's XML: a probe that fails the suite is a failed case.
    pub fn junit(&self) -> String {
        junit::page(self)
    }

    /// As Markdown tables.
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }

    /// As one HTML page that needs nothing beside it.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Whether the sandbox holds, in a sentence.
    pub(crate) fn verdict_in_words(&self) -> String {
        if self.holds() {
            return format!("{} holds.", self.against);
        }
        match self.worst() {
            Some(severity) => format!(
                "{} does not hold; the worst that failed is of {severity} severity.",
                self.against
            ),
            None => format!(
                "{} lets nothing out, but what must work in it does not.",
                self.against
            ),
        }
    }
}

/// The class of a probe, from its id.
pub(crate) fn class(row: &Row) -> &str {
    row.id.split('-').next().unwrap_or(&row.id)
}

pub(crate) fn state(item: &MustWork) -> &'static str {
    match item.works {
        Some(true) => "works",
        Some(false) => "FAILS",
        None => "skipped",
    }
}

/// Text for XML and HTML, as content or as an attribute's value.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in Printable::new(text).to_string().chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
