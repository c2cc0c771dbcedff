//! `ironcage audit`: shows, checks and lists the records of cages.
//!
//! It only reads, but for `prune`. What a cage put into its record is printed escaped, as JSON too.

mod lines;
mod prune;

pub(super) use lines::{ending_in_short, ending_in_words, limit_in_words, times, words};
use lines::{in_words, print_record};

use crate::completed::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_audit::{Error, Fault, Finding, Reader, Summary, Verdict};
use ironcage_model::{CageId, Printable};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Show and check the records of cages.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show what happened in a cage, line by line, and whether its record is intact.
    ///
    /// Exits with 1 if the record was changed.
    Show {
        /// The cage: its id or the beginning of it, its name, or `last` [default: last]
        #[arg(add = recorded_cages())]
        cage: Option<String>,
        /// Print the records as JSON, one per line.
        #[arg(long)]
        json: bool,
    },
    /// Check that a record is as it was written.
    ///
    /// Exits with 0 if it is intact, with 1 if it was changed or nothing proves where it ends.
    Verify {
        /// The cage: its id or the beginning of it, its name, or `last` [default: last]
        #[arg(add = recorded_cages())]
        cage: Option<String>,
        /// Check every record there is, and those that are gone but have a head.
        #[arg(long, conflicts_with = "cage")]
        all: bool,
    },
    /// List the cages that are recorded, newest first.
    List {
        /// How many to list; 0 for all.
        #[arg(short = 'n', long, default_value_t = 20, value_name = "NUMBER")]
        count: usize,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    Prune(prune::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let dir = logs()?;
    match args.action {
        Action::Show { cage, json } => show(&dir, &find(&dir, cage.as_deref())?, json),
        Action::Verify { all: true, .. } => {
            verify(&dir, &ironcage_audit::recorded(&dir).map_err(said)?, true)
        }
        Action::Verify { cage, .. } => verify(&dir, &[find(&dir, cage.as_deref())?], false),
        Action::List { count, json } => list(&dir, count, json),
        Action::Prune(args) => prune::run(&dir, &args),
    }
}

/// The directory of the logs.
pub(super) fn logs() -> Result<PathBuf, CliError> {
    ironcage_audit::audit_dir().map_err(|error| CliError::from_error(&error))
}

/// The cage that the user means; the newest without a word.
pub(super) fn find(dir: &Path, cage: Option<&str>) -> Result<CageId, CliError> {
    ironcage_audit::find(dir, cage.unwrap_or("last")).map_err(said)
}

/// An error with what can be done about it.
pub(super) fn said(error: Error) -> CliError {
    let said = CliError::from_error(&error);
    match error {
        Error::Empty { .. } => said.hint("`ironcage run -- COMMAND` runs a command in a cage"),
        Error::NotFound { .. } | Error::NoSuchCage { .. } => {
            said.hint("`ironcage audit list` shows the cages that are recorded")
        }
        Error::Ambiguous { .. } => said.hint("type more of the id"),
        _ => said,
    }
}

/// Prints to standard output. A reader that has gone away, as `head` does, is no error.
pub(super) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

fn show(dir: &Path, id: &CageId, json: bool) -> CommandResult {
    let verdict = ironcage_audit::verify(dir, id).map_err(said)?;
    if let Verdict::Broken(Fault {
        what: Finding::Gone { .. } | Finding::NotAFile,
        ..
    }) = &verdict
    {
        return Err(CliError::new(format!("cage {id}: {}", in_words(&verdict))));
    }
    let path = ironcage_audit::log_path(dir, id);
    let reader = Reader::open(&path).map_err(said)?;
    let mut failed = None;
    print(|out| {
        if !json {
            writeln!(out, "cage {id}, times in UTC")?;
        }
        for item in reader {
            match item {
                Ok(record) if json => writeln!(out, "{}", json::line(&record)?)?,
                Ok(record) => print_record(out, &record)?,
                Err(Error::Damaged { fault, .. }) if json => {
                    anstream::eprintln!("ironcage: {fault}")
                }
                Err(Error::Damaged { fault, .. }) => writeln!(out, "??? {fault}")?,
                Err(error) => failed = Some(error),
            }
        }
        if !json {
            writeln!(out, "record: {}", in_words(&verdict))?;
        }
        Ok(())
    })?;
    if let Some(error) = failed {
        return Err(said(error));
    }
    if json && !matches!(verdict, Verdict::Intact { .. }) {
        anstream::eprintln!("ironcage: record: {}", in_words(&verdict));
    }
    Ok(u8::from(matches!(verdict, Verdict::Broken(_))))
}

fn verify(dir: &Path, ids: &[CageId], sum: bool) -> CommandResult {
    let mut verdicts = Vec::with_capacity(ids.len());
    for id in ids {
        verdicts.push((id, ironcage_audit::verify(dir, id).map_err(said)?));
    }
    let intact = |verdict: &Verdict| matches!(verdict, Verdict::Intact { .. });
    print(|out| {
        for (id, verdict) in &verdicts {
            writeln!(out, "{id}  {}", in_words(verdict))?;
        }
        if verdicts.is_empty() {
            return writeln!(out, "no cage is recorded");
        }
        if sum {
            let count = |wanted: fn(&Verdict) -> bool| {
                let all = verdicts.iter();
                all.filter(|(_, verdict)| wanted(verdict)).count()
            };
            let good = count(|verdict| matches!(verdict, Verdict::Intact { .. }));
            let broken = count(|verdict| matches!(verdict, Verdict::Broken(_)));
            let all = verdicts.len();
            writeln!(
                out,
                "{all} records: {good} intact, {} with an unproven tail, {broken} broken",
                all - good - broken
            )?;
        }
        Ok(())
    })?;
    Ok(u8::from(
        !verdicts.iter().all(|(_, verdict)| intact(verdict)),
    ))
}

fn list(dir: &Path, count: usize, json: bool) -> CommandResult {
    let headings = ironcage_audit::list(dir).map_err(said)?;
    let shown = if count == 0 { headings.len() } else { count };
    let mut rows = Vec::new();
    for heading in headings.iter().take(shown) {
        let sum = match ironcage_audit::summary(dir, &heading.id) {
            // It is listed, so that it is seen; `verify` says what is wrong with it.
            Err(Error::NotAFile { .. }) => Summary {
                damaged: 1,
                ..Summary::default()
            },
            other => other.map_err(said)?,
        };
        rows.push((&heading.id, sum));
    }
    print(|out| {
        if json {
            let rows: Vec<_> = rows.iter().map(|(id, sum)| summary_json(id, sum)).collect();
            return writeln!(out, "{}", json::line(&rows)?);
        }
        if rows.is_empty() {
            return writeln!(out, "no cage is recorded");
        }
        writeln!(
            out,
            "{:13}  {:23}  {:16}  {:>6}  COMMAND",
            "CAGE", "STARTED (UTC)", "STATE", "DENIED"
        )?;
        for (id, sum) in &rows {
            print_row(out, id, sum)?;
        }
        match headings.len() - rows.len() {
            0 => Ok(()),
            older => writeln!(out, "and {older} older; `-n 0` lists all"),
        }
    })?;
    Ok(0)
}

fn print_row(out: &mut dyn Write, id: &CageId, sum: &Summary) -> io::Result<()> {
    const COMMAND: usize = 60;
    let time = sum.time.map_or_else(|| "?".into(), utc);
    let state = match &sum.ending {
        Some(ending) => ending_in_short(ending),
        None if sum.running => "running".into(),
        None => "no exit record".into(),
    };
    let mut command = words(&sum.command);
    if command.chars().count() > COMMAND {
        command = command.chars().take(COMMAND - 1).chain(['…']).collect();
    }
    write!(
        out,
        "{id:13}  {time:23}  {state:16}  {:>6}  {command}",
        sum.denied
    )?;
    if let Some(name) = &sum.name {
        write!(out, "  (name: {})", Printable::new(name))?;
    }
    if sum.damaged > 0 {
        write!(out, "  ({} lines cannot be read)", sum.damaged)?;
    }
    writeln!(out)
}

fn summary_json(id: &CageId, sum: &Summary) -> serde_json::Value {
    serde_json::json!({
        "cage": id,
        "time": sum.time,
        "name": sum.name,
        "command": sum.command,
        "profile": sum.profile,
        "running": sum.running,
        "exit": sum.ending,
        "milliseconds": sum.milliseconds,
        "denied": sum.denied,
        "limits": sum.limits,
        "damaged": sum.damaged,
    })
}

/// Microseconds since the epoch as a date and time, to the millisecond, in UTC.
pub(crate) fn utc(microseconds: u64) -> String {
    let seconds = microseconds / 1_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        microseconds / 1000 % 1000
    )
}

/// The Gregorian date of a day since 1970-01-01. Years begin in March here, so that the
/// leap day is the last of its year; 719,468 days lie between that calendar's origin and 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00.000");
        assert_eq!(utc(1_709_251_199_999_000), "2024-02-29 23:59:59.999");
        assert_eq!(utc(1_772_323_200_000_000), "2026-03-01 00:00:00.000");
        // The end of time, which only a forged line can hold.
        assert!(
            utc(u64::MAX).starts_with("586524-01-19"),
            "{}",
            utc(u64::MAX)
        );
    }

    #[test]
    fn a_command_line_is_escaped_and_its_words_stay_apart() {
        let command = ["sh", "-c", "echo 'a'", "", "\u{1b}]0;x\u{7}"].map(String::from);
        let shown = words(&command);
        assert_eq!(shown, r"sh -c 'echo '\''a'\''' '' \u{1b}]0;x\u{7}");
    }
}
