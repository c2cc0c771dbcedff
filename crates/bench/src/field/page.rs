//! The field's table as a chart (SVG) and as one page (HTML) that needs nothing else.

use super::{FieldReport, FieldRow, escapes, megabytes};
use crate::table::number;
use std::fmt::Write;

const BAR: f64 = 300.0;
const LINE: f64 = 30.0;
const NAMES: f64 = 150.0;
const GAP: f64 = 110.0;
const TOP: f64 = 40.0;

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

impl FieldReport {
    /// Two bars for each sandbox: what share of the escapes it stops, and what the agent's task
    /// costs in it.
    pub fn svg(&self) -> String {
        let height = TOP + LINE * self.rows.len() as f64 + 10.0;
        let width = NAMES + 2.0 * (BAR + GAP);
        let second = NAMES + BAR + GAP;
        let most = self
            .rows
            .iter()
            .map(|row| row.task_ratio)
            .fold(1.0, f64::max);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{NAMES}\" y=\"22\" font-weight=\"bold\">escapes blocked</text>\n\
             <text x=\"{second}\" y=\"22\" font-weight=\"bold\">agent task, ratio to bare</text>\n"
        );
        for (index, row) in self.rows.iter().enumerate() {
            let y = TOP + LINE * index as f64;
            bars(&mut svg, row, y, second, most);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The table, the chart, and what stands behind each number.
    pub fn html(&self) -> String {
        let mut page = String::from(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <title>Sandboxes for agents, on this host</title>\n<style>\
             body{font-family:sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
             table{border-collapse:collapse;width:100%}\
             th,td{padding:.35rem .6rem;border-bottom:1px solid #ddd;text-align:right}\
             th:first-child,td:first-child{text-align:left}\
             svg{max-width:100%;height:auto}</style></head><body>\n\
             <h1>Sandboxes for agents, on this host</h1>\n",
        );
        let host = self.host.to_string();
        let _ = writeln!(page, "<pre>{}</pre>", escaped(&host));
        let _ = writeln!(page, "<p><code>{}</code></p>", escaped(&self.reproduce));
        if let Some(line) = self.safety_tax() {
            let _ = writeln!(page, "<p><strong>{}</strong></p>", escaped(&line));
        }
        page.push_str(&self.svg());
        page.push_str(
            "<table><thead><tr><th>sandbox</th><th>syscall (us)</th><th>memory (MB)</th>\
             <th>task (s)</th><th>ratio</th><th>start (ms)</th><th>escapes blocked</th>\
             </tr></thead><tbody>\n",
        );
        for row in &self.rows {
            let cells = [
                escaped(&row.name),
                number(row.syscall_us, 2),
                megabytes(row.memory_mb),
                number(row.task_s, 3),
                number(row.task_ratio, 2),
                number(row.start_ms, 1),
                escapes(row.escapes),
            ];
            let _ = writeln!(page, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
        }
        page.push_str("</tbody></table>\n<h2>What was measured</h2>\n<ul>\n");
        for row in &self.rows {
            let (name, about) = (escaped(&row.name), escaped(&row.about));
            let _ = writeln!(page, "<li>{name}: {about}</li>");
        }
        for (name, reason) in &self.absent {
            let (name, reason) = (escaped(name), escaped(reason));
            let _ = writeln!(page, "<li>{name}: not measured: {reason}</li>");
        }
        page.push_str(
            "</ul>\n<p>Medians, every sandbox in turn. <em>syscall</em>: open and close of a file. \
             <em>memory</em>: what the sandbox's own processes share with no other while a command \
             sleeps in it. <em>task</em>: 200 files, grep, git, gcc, Python. <em>start</em>: \
             /bin/true from spawn to exit. <em>escapes</em>: probes of the containment suite that \
             reach their canary without a sandbox and not in this one.</p>\n\
             <h2>What the field quotes</h2>\n<table><thead><tr><th></th><th>syscall (us)</th>\
             <th>memory (MB)</th><th>task (s)</th><th>blocked</th></tr></thead><tbody>\n",
        );
        for quoted in &self.quoted {
            let cells = [
                escaped(quoted.name),
                number(quoted.syscall_us, 1),
                number(quoted.memory_mb, 0),
                number(quoted.task_s, 1),
                quoted.escapes.to_owned(),
            ];
            let _ = writeln!(page, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
        }
        page.push_str("</tbody></table>\n</body></html>\n");
        page
    }
}

fn bars(svg: &mut String, row: &FieldRow, y: f64, second: f64, most: f64) {
    let (middle, own) = (y + 17.0, row.name == "Ironcage");
    let colour = if own { "#b5432a" } else { "#5b7083" };
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
        NAMES - 8.0,
        escaped(&row.name)
    );
    let share = row
        .escapes
        .filter(|escapes| escapes.of > 0)
        .map_or(0.0, |escapes| escapes.blocked as f64 / escapes.of as f64);
    let mut bar = |x: f64, length: f64, label: &str| {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"{length:.1}\" height=\"18\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{middle}\">{}</text>",
            y + 3.0,
            x + length + 6.0,
            escaped(label)
        );
    };
    bar(NAMES, BAR * share, &escapes(row.escapes));
    bar(
        second,
        BAR * row.task_ratio / most,
        &number(row.task_ratio, 2),
    );
}
