//! A report as JUnit's XML, which CI systems read.

use super::{class, escaped};
use crate::report::{Report, Row, Verdict};
use std::fmt::Write as _;

pub(super) fn page(report: &Report) -> String {
    let failures = report
        .rows
        .iter()
        .filter(|row| row.finding.verdict.fails())
        .count()
        + report
            .must_work
            .iter()
            .filter(|item| item.works == Some(false))
            .count();
    let skipped = report.rows.iter().filter(|row| is_skipped(row)).count()
        + report
            .must_work
            .iter()
            .filter(|item| item.works.is_none())
            .count();
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\">",
        escaped(&format!(
            "containment of {} as uid {} on Linux {}",
            report.against, report.uid, report.kernel
        )),
        report.rows.len() + report.must_work.len(),
    );
    for row in &report.rows {
        case(&mut text, row);
    }
    for item in &report.must_work {
        let name = escaped(&item.name);
        let detail = escaped(&item.detail);
        let _ = write!(text, "  <testcase classname=\"must work\" name=\"{name}\">");
        let _ = match item.works {
            Some(true) => Ok(()),
            Some(false) => write!(text, "<failure type=\"fails\" message=\"{detail}\"/>"),
            None => write!(text, "<skipped message=\"{detail}\"/>"),
        };
        text.push_str("</testcase>\n");
    }
    text.push_str("</testsuite>\n");
    text
}

fn is_skipped(row: &Row) -> bool {
    matches!(
        row.finding.verdict,
        Verdict::Skipped | Verdict::NotDiscriminating
    )
}

fn case(text: &mut String, row: &Row) {
    let name = escaped(&format!("{} {}", row.id, row.title));
    let verdict = row.finding.verdict;
    let kind = escaped(&verdict.to_string().to_lowercase());
    let message = escaped(&format!("{}: {}", verdict.meaning(), row.finding.detail));
    let _ = write!(
        text,
        "  <testcase classname=\"{}\" name=\"{name}\">",
        escaped(class(row))
    );
    let _ = if verdict.fails() {
        write!(text, "<failure type=\"{kind}\" message=\"{message}\"/>")
    } else if is_skipped(row) {
        write!(text, "<skipped message=\"{message}\"/>")
    } else {
        write!(text, "<system-out>{kind}: {message}</system-out>")
    };
    text.push_str("</testcase>\n");
}
