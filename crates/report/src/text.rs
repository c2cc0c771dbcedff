//! The report for a terminal.

use crate::authority::{EntrySpan, EntryUse, Share, Source};
use crate::report::Report;
use ironcage_model::{Ending, Printable};
use std::fmt;

/// Lines of each list that a terminal gets; JSON and the page have more.
const MOST: usize = 20;
/// Columns of the chart, and its height.
const COLUMNS: usize = 60;
const ROWS: usize = 8;

/// Microseconds after the start, in seconds.
pub(crate) fn offset(report: &Report, time: u64) -> String {
    format!("{:.3}", time.saturating_sub(report.from) as f64 / 1e6)
}

/// A number of seconds for people: tenths are enough.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        small if small > 0.0 && small < 0.05 => format!("{small:.3}"),
        value => format!("{value:.1}"),
    }
}

pub(crate) fn ending(ending: Option<&Ending>) -> String {
    match ending {
        Some(ending) => format!("exit status {}", ending.exit_code()),
        None => "no exit event".to_owned(),
    }
}

pub(crate) fn source(entry: &EntrySpan) -> String {
    match &entry.source {
        Source::Base { key, origin } => format!("{key} ({origin})"),
        Source::Lease { number } => format!("lease {number}"),
        Source::LiveRule { number } => format!("network rule {number}"),
    }
}

pub(crate) fn usage(report: &Report, entry: &EntrySpan) -> String {
    match entry.used {
        EntryUse::Unused => "not used".to_owned(),
        EntryUse::Exact { first } => format!("used from {} s on", offset(report, first)),
        EntryUse::Within { first } => {
            format!("used in part from {} s on", offset(report, first))
        }
        EntryUse::Unknown { .. } => "unknown".to_owned(),
    }
}

fn share(f: &mut fmt::Formatter<'_>, name: &str, share: &Share) -> fmt::Result {
    write!(
        f,
        "  {name:<12} {:>10} of {:>10} granted, {} entries",
        seconds(share.excess_seconds),
        seconds(share.granted_seconds),
        share.entries
    )?;
    match share.unknown_seconds > 0.0 {
        true => writeln!(f, "; {} unknown", seconds(share.unknown_seconds)),
        false => writeln!(f),
    }
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    (title, none): (&str, &str),
    lines: &[T],
    show: impl Fn(&T) -> String,
) -> fmt::Result {
    if lines.is_empty() {
        return writeln!(f, "{title}: {none}");
    }
    writeln!(f, "{title}:")?;
    for line in lines.iter().take(MOST) {
        writeln!(f, "  {}", Printable::new(&show(line)))?;
    }
    match lines.len().saturating_sub(MOST) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more; --json lists all"),
    }
}

impl Report {
    /// Columns of equal time: open entries as `.`, used ones as `#`, unknown ones as `?`.
    fn draw(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.chart.iter().map(|point| point.open).max().unwrap_or(0);
        let length = self.until.saturating_sub(self.from);
        if most == 0 || length == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "authority over time (# used, ? unknown, . open and not used):"
        )?;
        let rows = most.min(ROWS);
        let column = |at: usize| {
            let share = (at as u128 * u128::from(length) / COLUMNS as u128) as u64;
            let time = self.from.saturating_add(share);
            let before = self.chart.iter().take_while(|point| point.time <= time);
            before.last()
        };
        for row in (1..=rows).rev() {
            // A row stands for this many entries.
            let height = (row * most).div_ceil(rows);
            write!(f, "  {height:>5} ")?;
            for at in 0..COLUMNS {
                let Some(point) = column(at) else { continue };
                let mark = match height {
                    height if height <= point.used => '#',
                    height if height <= point.used + point.unknown => '?',
                    height if height <= point.open => '.',
                    _ => ' ',
                };
                write!(f, "{mark}")?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "        0 s{:>width$.3} s",
            self.seconds(),
            width = COLUMNS - 5
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command.join(" ");
        let short: String = command.chars().take(80).collect();
        writeln!(f, "cage {}: {}", self.cage, Printable::new(&short))?;
        writeln!(
            f,
            "  profile {}, {:.3} s, {}",
            Printable::new(&self.profile),
            self.seconds(),
            ending(self.ending.as_ref())
        )?;
        let authority = &self.authority;
        writeln!(
            f,
            "excess authority-seconds: {}",
            seconds(authority.excess_seconds)
        )?;
        share(f, "base policy", &authority.base)?;
        share(f, "leases", &authority.leases)?;
        let mut excess: Vec<&EntrySpan> = self.entries.iter().collect();
        excess.retain(|entry| entry.excess() > 0);
        excess.sort_by_key(|entry| std::cmp::Reverse(entry.excess()));
        list(f, ("granted and not used", "nothing"), &excess, |entry| {
            format!(
                "{:>10} s  {}, {}: {}",
                seconds(entry.excess() as f64 / 1e6),
                entry.what,
                source(entry),
                usage(self, entry)
            )
        })?;
        self.draw(f)?;
        list(f, ("leases", "none"), &self.leases, |lease| {
            let end = match &lease.end {
                Some(end) => end.name(),
                None => "open",
            };
            format!(
                "{:>4}  {} s to {} s  {}, by {}: {end}",
                lease.number,
                offset(self, lease.from),
                offset(self, lease.until),
                lease.what,
                lease.origin.name()
            )
        })?;
        list(f, ("requests", "none"), &self.requests, |request| {
            let end = match &request.end {
                Some(end) => end.name(),
                None => "pending",
            };
            format!(
                "{:>4}  {} s  {}: {end}",
                request.number,
                offset(self, request.time),
                request.what
            )
        })?;
        list(f, ("denials", "none"), &self.denials, |denial| {
            let code = denial.code.as_deref().unwrap_or_default();
            format!(
                "{} s  {} {}, {} times  {code}",
                offset(self, denial.time),
                denial.kind,
                denial.what,
                denial.count
            )
        })?;
        list(f, ("drift", "none"), &self.drift, |drift| {
            format!(
                "{} s  {}; {}",
                offset(self, drift.time),
                drift.what,
                drift.trust.name()
            )
        })?;
        for note in &self.notes {
            writeln!(f, "note: {}", Printable::new(note))?;
        }
        Ok(())
    }
}
