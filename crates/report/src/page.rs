//! The report as one HTML page without scripts and without anything to load.

use crate::authority::EntrySpan;
use crate::chart::Point;
use crate::html::Text;
use crate::report::Report;
use crate::text::{ending, offset, seconds, source, usage};
use ironcage_model::base64;
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\
.number{font-size:2.6rem;font-weight:600}.quiet{color:#59636e}\
table{border-collapse:collapse;width:100%;font-size:13px}\
td,th{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #d1d9e0;vertical-align:top;overflow-wrap:anywhere}\
svg{width:100%;height:auto}.open{fill:#f3c969}.unknown{fill:#c8ced6}.used{fill:#2f81c7}\
.lease{fill:#2f81c7}.unused{fill:#f3c969}.axis{fill:#59636e;font:11px sans-serif}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#30363d}.quiet,.axis{color:#9198a1;fill:#9198a1}}";

/// Width and height of the drawings, in their own units.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 220.0;
/// How high an area is at a point.
type Height = fn(&Point) -> usize;

/// Leases in the drawing; the table has all.
const MOST_BARS: usize = 60;

/// The page. Only the one style may apply, by its hash: text that got past the escaping could
/// neither load nor run anything.
pub(crate) struct Page<'a>(pub(crate) &'a Report);

impl Report {
    /// One self-contained page.
    pub fn html(&self) -> String {
        Page(self).to_string()
    }
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let hash = base64::encode(&Sha256::digest(STYLE));
        write!(
            f,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>Cage {cage}</title>\n<style>{STYLE}</style></head><body>\n",
            cage = Text(report.cage.as_str()),
        )?;
        self.head(f)?;
        self.chart(f)?;
        self.timeline(f)?;
        self.tables(f)?;
        f.write_str("</body></html>\n")
    }
}

impl Page<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let authority = &report.authority;
        write!(
            f,
            "<h1>Cage {}</h1>\n<p><code>{}</code></p>\n<p class=\"quiet\">profile {}, workspace {}, {:.3} s, {}</p>\n\
             <p><span class=\"number\">{}</span> excess authority-seconds</p>\n\
             <p>Paths and hosts that were open and not used, times the seconds that they were open. \
             Base policy: {} of {} granted. Leases: {} of {} granted. Unknown: {}.</p>\n",
            Text(report.cage.as_str()),
            Text(&report.command.join(" ")),
            Text(&report.profile),
            Text(&report.workspace),
            report.seconds(),
            Text(&ending(report.ending.as_ref())),
            seconds(authority.excess_seconds),
            seconds(authority.base.excess_seconds),
            seconds(authority.base.granted_seconds),
            seconds(authority.leases.excess_seconds),
            seconds(authority.leases.granted_seconds),
            seconds(authority.all.unknown_seconds),
        )?;
        for note in &report.notes {
            writeln!(f, "<p class=\"quiet\">Note: {}</p>", Text(note))?;
        }
        Ok(())
    }

    /// Where a time lies in a drawing.
    fn x(&self, time: u64) -> f64 {
        let length = self.0.until.saturating_sub(self.0.from).max(1) as f64;
        let share = time.saturating_sub(self.0.from) as f64 / length;
        share.min(1.0) * WIDTH
    }

    fn chart(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let most = report.chart.iter().map(|point| point.open).max();
        let most = most.unwrap_or(0).max(1) as f64;
        write!(
            f,
            "<h2>Authority over time</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"Open, unknown and used entries over time\">\n",
            HEIGHT + 20.0
        )?;
        // Each area lies over the one before: used below, unknown above it, the rest at the top.
        let areas: [(&str, Height); 3] = [
            ("open", |point| point.open),
            ("unknown", |point| point.used + point.unknown),
            ("used", |point| point.used),
        ];
        for (class, value) in areas {
            let mut path = format!("M0 {HEIGHT}");
            for (at, point) in report.chart.iter().enumerate() {
                let y = HEIGHT - value(point) as f64 / most * HEIGHT;
                let next = report
                    .chart
                    .get(at + 1)
                    .map_or(WIDTH, |next| self.x(next.time));
                // Writing to a string cannot fail.
                let _ = write!(path, "L{:.1} {y:.1}L{next:.1} {y:.1}", self.x(point.time));
            }
            writeln!(
                f,
                "<path class=\"{class}\" d=\"{path}L{WIDTH} {HEIGHT}Z\"/>"
            )?;
        }
        write!(
            f,
            "<text class=\"axis\" x=\"0\" y=\"{y}\">0 s, at most {most} entries open</text>\
             <text class=\"axis\" x=\"{WIDTH}\" y=\"{y}\" text-anchor=\"end\">{:.3} s</text></svg>\n\
             <p class=\"quiet\">Blue: used by then. Grey: the log cannot show it. Yellow: open and not used.</p>\n",
            report.seconds(),
            y = HEIGHT + 15.0,
        )
    }

    fn timeline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        if report.leases.is_empty() {
            return Ok(());
        }
        let shown = report.leases.len().min(MOST_BARS);
        write!(
            f,
            "<h2>Leases</h2>\n<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"When each lease was open\">\n",
            shown * 18 + 4
        )?;
        for (row, lease) in report.leases.iter().take(shown).enumerate() {
            let (x, end) = (self.x(lease.from), self.x(lease.until));
            let entry = report.entries.iter().find(|entry| {
                entry.source
                    == crate::Source::Lease {
                        number: lease.number,
                    }
                    && entry.from == lease.from
            });
            let class = match entry.map(EntrySpan::excess) {
                Some(excess) if excess > 0 => "unused",
                _ => "lease",
            };
            let y = row * 18 + 2;
            writeln!(
                f,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"14\"><title>{}</title></rect>\
                 <text class=\"axis\" x=\"{:.1}\" y=\"{}\" text-anchor=\"{}\">{}</text>",
                (end - x).max(2.0),
                Text(&lease.what),
                if x < WIDTH / 2.0 { x + 4.0 } else { x - 4.0 },
                y + 11,
                if x < WIDTH / 2.0 { "start" } else { "end" },
                Text(&shortened(&lease.what)),
            )?;
        }
        f.write_str("</svg>\n")
    }

    fn tables(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let leases = report.leases.iter().map(|lease| {
            let end = lease.end.as_ref().map_or("open", |end| end.name());
            vec![
                lease.number.to_string(),
                lease.what.clone(),
                offset(report, lease.from),
                offset(report, lease.until),
                end.to_owned(),
                lease.origin.name().to_owned(),
                lease.reason.clone(),
            ]
        });
        if !report.leases.is_empty() {
            let head = [
                "number",
                "resource",
                "from s",
                "to s",
                "end",
                "requested by",
                "reason",
            ];
            table(f, &head, leases)?;
        }
        f.write_str("<h2>Entries</h2>\n")?;
        let mut entries: Vec<&EntrySpan> = report.entries.iter().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.excess()));
        let entries = entries.into_iter().map(|entry| {
            vec![
                entry.what.clone(),
                source(entry),
                seconds(entry.open() as f64 / 1e6),
                seconds(entry.excess() as f64 / 1e6),
                usage(report, entry),
            ]
        });
        table(
            f,
            &["path or host", "source", "open s", "excess s", "use"],
            entries,
        )?;
        f.write_str("<h2>Requests</h2>\n")?;
        let requests = report.requests.iter().map(|request| {
            vec![
                offset(report, request.time),
                request.what.clone(),
                request.end.map_or("pending", |end| end.name()).to_owned(),
                request.because.clone(),
            ]
        });
        table(f, &["at s", "resource", "answer", "because"], requests)?;
        f.write_str("<h2>Denials</h2>\n")?;
        let denials = report.denials.iter().map(|denial| {
            vec![
                offset(report, denial.time),
                denial.kind.to_owned(),
                denial.what.clone(),
                denial.count.to_string(),
                denial.code.clone().unwrap_or_default(),
                denial.reason.clone(),
            ]
        });
        table(
            f,
            &["at s", "kind", "what", "times", "code", "reason"],
            denials,
        )?;
        f.write_str("<h2>Drift</h2>\n")?;
        let drift = report.drift.iter().map(|drift| {
            vec![
                offset(report, drift.time),
                drift.what.clone(),
                drift.trust.name().to_owned(),
            ]
        });
        table(f, &["at s", "what", "trust since"], drift)
    }
}

fn shortened(what: &str) -> String {
    match what.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &what[..at]),
        None => what.to_owned(),
    }
}

fn table(
    f: &mut fmt::Formatter<'_>,
    head: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> fmt::Result {
    let mut rows = rows.take(crate::happened::MOST).peekable();
    if rows.peek().is_none() {
        return f.write_str("<p>none</p>\n");
    }
    f.write_str("<table><tr>")?;
    for name in head {
        write!(f, "<th>{}</th>", Text(name))?;
    }
    f.write_str("</tr>\n")?;
    for row in rows {
        f.write_str("<tr>")?;
        for cell in row {
            write!(f, "<td>{}</td>", Text(&cell))?;
        }
        f.write_str("</tr>\n")?;
    }
    f.write_str("</table>\n")
}
