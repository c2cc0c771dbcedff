//! A report as one HTML page: no script, nothing from elsewhere.

use super::{VERDICTS, class, escaped, state};
use crate::report::{Report, Row, Verdict};
use std::fmt::Write as _;

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
";

const STYLE: &str = "<style>
:root { color-scheme: light dark; --good: #1a7f37; --bad: #cf222e; --dull: #6e7781; --line: #d0d7de; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
td:first-child { white-space: nowrap; }
.answer { font-size: 1.25rem; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; } .dull { color: var(--dull); }
.detail { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere; }
</style>
";

pub(super) fn page(report: &Report) -> String {
    let mut text = String::from(HEAD);
    let title = escaped(&format!("Containment of {}", report.against));
    let answer = if report.holds() { "good" } else { "bad" };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "<title>{title}</title>\n{STYLE}</head>\n<body>\n<h1>{title}</h1>\n\
         <p class=\"answer {answer}\">{}</p>\n<p>As uid {} on Linux {}. {}.</p>\n",
        escaped(&report.verdict_in_words()),
        report.uid,
        escaped(&report.kernel),
        escaped(&report.summary()),
    );
    text.push_str(
        "<p>Each probe first runs without a sandbox (the control), then inside it. Whether it got \
         through is decided by canaries outside, not by what the probe says. An <em>effect</em> is an \
         escape; a <em>surface</em> is an interface of the kernel that can be reached.</p>\n",
    );
    text.push_str("<h2>What the verdicts mean</h2>\n<table>\n");
    for verdict in VERDICTS {
        let _ = writeln!(
            text,
            "<tr><td class=\"{}\">{verdict}</td><td>{}</td><td>{}</td></tr>",
            colour(verdict),
            escaped(verdict.meaning()),
            report.count(verdict),
        );
    }
    text.push_str("</table>\n");
    let mut of = None;
    for row in &report.rows {
        if of != Some(class(row)) {
            close(&mut text, of);
            of = Some(class(row));
            let _ = write!(
                text,
                "<h2>{}</h2>\n<table>\n<tr><th>probe</th><th>what it does</th><th>kind</th>\
                 <th>severity</th><th>verdict</th><th>what shows it</th></tr>\n",
                escaped(&heading(row))
            );
        }
        line(&mut text, row);
    }
    close(&mut text, of);
    if !report.must_work.is_empty() {
        text.push_str("<h2>What must work</h2>\n<table>\n");
        for item in &report.must_work {
            let colour = match item.works {
                Some(true) => "good",
                Some(false) => "bad",
                None => "dull",
            };
            let _ = writeln!(
                text,
                "<tr><td>{}</td><td class=\"{colour}\">{}</td><td class=\"detail\">{}</td></tr>",
                escaped(&item.name),
                state(item),
                escaped(&item.detail)
            );
        }
        text.push_str("</table>\n");
    }
    text.push_str("</body>\n</html>\n");
    text
}

fn close(text: &mut String, of: Option<&str>) {
    if of.is_some() {
        text.push_str("</table>\n");
    }
}

fn heading(row: &Row) -> String {
    let class = class(row);
    match crate::find(&row.id) {
        Some(probe) => format!("{class}: {}", probe.class.subject()),
        None => class.to_owned(),
    }
}

fn line(text: &mut String, row: &Row) {
    let verdict = row.finding.verdict;
    let _ = writeln!(
        text,
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{verdict}</td>\
         <td class=\"detail\">{}</td></tr>",
        escaped(&row.id),
        escaped(&row.title),
        escaped(&row.kind),
        escaped(&row.severity),
        colour(verdict),
        escaped(&row.finding.detail),
    );
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Blocked | Verdict::OpenAccepted => "good",
        Verdict::NotDiscriminating | Verdict::Skipped => "dull",
        Verdict::Open | Verdict::Unknown | Verdict::Escaped => "bad",
    }
}
