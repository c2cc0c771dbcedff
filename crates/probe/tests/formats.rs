//! A fixed report in every format is what is kept in `tests/formats/`.
//!
//! `UPDATE=1 cargo test -p ironcage-probe --test formats` writes them anew; read the
//! difference before you commit it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_probe::{Finding, MustWork, Report, Row, Verdict};
use std::path::Path;

/// What a hostile sandbox might say.
const HOSTILE: &str = "</td><script>alert(1)</script> ]]> | `x` \u{1b}[2J \"quoted\" & 'more'";

fn report() -> Report {
    let row = |id: &str, title: &str, kind: &str, severity: &str, verdict, detail: &str| Row {
        id: id.into(),
        title: title.into(),
        kind: kind.into(),
        severity: severity.into(),
        finding: Finding {
            verdict,
            detail: detail.into(),
            control: "reached its canary".into(),
        },
    };
    let item = |name: &str, works, detail: &str| MustWork {
        name: name.into(),
        works,
        detail: detail.into(),
    };
    Report {
        against: "a sandbox".into(),
        uid: 1000,
        kernel: "6.18.0".into(),
        rows: vec![
            row(
                "FS-01",
                "read a secret",
                "effect",
                "critical",
                Verdict::Blocked,
                "no such file",
            ),
            row(
                "FS-02",
                "create a file outside",
                "effect",
                "critical",
                Verdict::Escaped,
                HOSTILE,
            ),
            row(
                "NE-09",
                "make a socket",
                "surface",
                "high",
                Verdict::Open,
                "a descriptor",
            ),
            row(
                "SY-01",
                "by design",
                "surface",
                "low",
                Verdict::OpenAccepted,
                "listed",
            ),
            row(
                "SY-02",
                "nothing here",
                "effect",
                "low",
                Verdict::NotDiscriminating,
                "fails uncaged",
            ),
            row(
                "TT-01",
                "not run",
                "effect",
                "high",
                Verdict::Skipped,
                "no terminal",
            ),
            row(
                "TT-02",
                "not started",
                "effect",
                "high",
                Verdict::Unknown,
                "the sandbox did not start",
            ),
        ],
        must_work: vec![
            item("compile", Some(true), ""),
            item("threads", Some(false), HOSTILE),
            item("a pty", None, "no python3"),
        ],
    }
}

fn hold(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/formats")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is out of step; it is now:\n{text}",
        path.display()
    );
}

#[test]
fn every_format_is_what_is_kept() {
    let report = report();
    hold("report.txt", &report.table());
    hold("report.xml", &report.junit());
    hold("report.md", &report.markdown());
    hold("report.html", &report.html());
}

#[test]
fn what_a_sandbox_says_is_text_in_every_format() {
    let report = report();
    for text in [report.junit(), report.html()] {
        assert!(
            !text.contains("<script") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(text.contains("&lt;script"));
    }
    let markdown = report.markdown();
    assert!(
        !markdown.contains('\u{1b}') && !markdown.contains(" | `x`"),
        "{markdown}"
    );
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    let page = report().html();
    for outside in ["http://", "https://", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn every_verdict_is_explained() {
    let report = report();
    for page in [report.html(), report.markdown()] {
        for row in &report.rows {
            assert!(page.contains(&row.finding.verdict.to_string()));
        }
    }
}
