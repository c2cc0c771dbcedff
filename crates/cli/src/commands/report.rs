//! `ironcage report`.

use crate::audit_log::{self, audit_error};
use crate::completion::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::output::print;
use crate::render::event::verdict_text;
use crate::{paths, staged_file};
use ironcage_audit::{Error, Reader, Verdict};
use ironcage_host::SystemFiles;
use ironcage_model::{CageId, Event, Printable};
use ironcage_report::Report;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  ironcage run --observe -- make test && ironcage report
  ironcage report --html run.html
  ironcage report last --json | jq .authority.excess_seconds";

/// Report what a run was permitted, used and denied
///
/// Shows leases, permission requests, denials and drift, authority over time, and one number:
/// excess authority-seconds, the paths and hosts that were open and not used times the seconds that
/// they were open. `run --observe` records file uses; without it those entries are unknown.
///
/// Exit status: 1 if the log was tampered with.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: the last cage of this workspace]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write one self-contained HTML page to FILE
    #[arg(long, value_name = "FILE", conflicts_with = "json", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Overwrite the file if it exists
    #[arg(long, requires = "html")]
    force: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(file) = &args.html {
        staged_file::check(file, args.force)?;
    }
    let dir = audit_log::directory()?;
    let id = audit_log::find(&dir, args.cage.as_deref())?;
    let verdict = ironcage_audit::verify(&dir, &id).map_err(audit_error)?;
    let broken = matches!(verdict, Verdict::Broken(_));
    if !matches!(verdict, Verdict::Intact { .. }) {
        anstream::eprintln!("ironcage: log: {}", verdict_text(&verdict));
    }
    let home = paths::home(&SystemFiles::default())?;
    let report = Report::of(id.clone(), events(&dir, &id)?, Some(&home));
    match &args.html {
        Some(file) => {
            staged_file::stage(file, &report.html())?.put(args.force)?;
            anstream::eprintln!("ironcage: wrote {}", Printable::new(file));
        }
        None if args.json => {
            let text = json::pretty(&report).map_err(CliError::new)?;
            print(|out| writeln!(out, "{text}"))?;
        }
        None => print(|out| write!(out, "{report}"))?,
    }
    Ok(u8::from(broken))
}

/// The events of a log, without lines that are damaged: the verdict has told of those.
fn events(dir: &Path, id: &CageId) -> Result<Vec<Event>, CliError> {
    let path = ironcage_audit::log_path(dir, id);
    let mut events = Vec::new();
    for item in Reader::open(&path).map_err(audit_error)? {
        match item {
            Ok(entry) => events.push(entry.event),
            Err(Error::Damaged { .. }) => {}
            Err(error) => return Err(audit_error(error)),
        }
    }
    Ok(events)
}
