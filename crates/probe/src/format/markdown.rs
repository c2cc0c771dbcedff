//! A report as Markdown tables.

use super::{VERDICTS, state};
use crate::report::Report;
use ironcage_model::Printable;
use std::fmt::Write as _;

pub(super) fn page(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "# Containment of {}\n\nAs uid {} on Linux {}. **{}**\n\n{}\n",
        cell(&report.against),
        report.uid,
        cell(&report.kernel),
        cell(&report.verdict_in_words()),
        cell(&report.summary()),
    );
    text.push_str("| probe | what it does | kind | severity | verdict | what shows it |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for row in &report.rows {
        let verdict = row.finding.verdict;
        let shown = match verdict.fails() {
            true => format!("**{verdict}**"),
            false => verdict.to_string(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {shown} | {} |",
            cell(&row.id),
            cell(&row.title),
            cell(&row.kind),
            cell(&row.severity),
            cell(&row.finding.detail),
        );
    }
    if !report.must_work.is_empty() {
        text.push_str("\n## What must work\n\n| what | result | detail |\n|---|---|---|\n");
    }
    for item in &report.must_work {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            cell(&item.name),
            state(item),
            cell(&item.detail)
        );
    }
    text.push_str("\n## What the verdicts mean\n\n| verdict | meaning |\n|---|---|\n");
    for verdict in VERDICTS {
        let _ = writeln!(text, "| {verdict} | {} |", verdict.meaning());
    }
    text
}

/// Text in a table's cell: nothing in it is a mark.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in Printable::new(text).to_string().chars() {
        if matches!(
            c,
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '~' | '&'
        ) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
