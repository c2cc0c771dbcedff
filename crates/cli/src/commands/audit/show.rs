//! `ironcage audit show`.

use crate::audit_log::{self, audit_error};
use crate::completion::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::output::print;
use crate::render::event::{ending_text, print_record, verdict_text};
use ironcage_audit::{Error, Fault, Finding, Reader, Verdict};
use ironcage_model::{EventKind, NetworkVerdict};
use std::path::Path;

/// Show what happened in a cage, and whether its log is intact
///
/// Exit status: 1 if the log was tampered with.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: the last cage of this workspace]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Print JSON, one record per line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let json = args.json;
    let dir = audit_log::directory()?;
    let id = audit_log::find(&dir, args.cage.as_deref())?;
    let verdict = ironcage_audit::verify(&dir, &id).map_err(audit_error)?;
    if let Verdict::Broken(Fault {
        what: Finding::Gone { .. } | Finding::NotAFile,
        ..
    }) = &verdict
    {
        return Err(CliError::new(format!(
            "cage {id}: {}",
            verdict_text(&verdict)
        )));
    }
    let path = ironcage_audit::log_path(&dir, &id);
    let summary = match json {
        true => String::new(),
        false => summary(&path)?,
    };
    let reader = Reader::open(&path).map_err(audit_error)?;
    let mut failed = None;
    print(|out| {
        if !json {
            writeln!(out, "cage {id}, times in UTC")?;
            writeln!(out, "  {summary}")?;
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
            writeln!(out, "log: {}", verdict_text(&verdict))?;
        }
        Ok(())
    })?;
    if let Some(error) = failed {
        return Err(audit_error(error));
    }
    if json && !matches!(verdict, Verdict::Intact { .. }) {
        anstream::eprintln!("ironcage: log: {}", verdict_text(&verdict));
    }
    Ok(u8::from(matches!(verdict, Verdict::Broken(_))))
}

/// How the cage ended and how much was denied, on one line.
fn summary(path: &Path) -> Result<String, CliError> {
    let (mut connections, mut leases, mut calls, mut limits) = (0u64, 0u64, 0u64, 0u64);
    let mut ended = String::from("running, or ended without a record");
    for item in Reader::open(path).map_err(audit_error)? {
        let record = match item {
            Ok(record) => record,
            Err(Error::Damaged { .. }) => continue,
            Err(error) => return Err(audit_error(error)),
        };
        match record.event.kind {
            EventKind::Network(traffic) if traffic.verdict != NetworkVerdict::Allowed => {
                connections = connections.saturating_add(traffic.connections);
            }
            EventKind::LeaseRefused { .. } => leases += 1,
            EventKind::Denied(denial) => calls = calls.saturating_add(denial.count),
            EventKind::Limit(_) => limits += 1,
            EventKind::Exit { ending, .. } => ended = ending_text(&ending),
            _ => {}
        }
    }
    let counts = [
        (connections, "connections denied"),
        (leases, "leases denied"),
        (calls, "system calls denied"),
        (limits, "limits reached"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    Ok(match counts.is_empty() {
        true => format!("{ended}; nothing was denied"),
        false => format!("{ended}; {}: `ironcage why` explains", counts.join(", ")),
    })
}
