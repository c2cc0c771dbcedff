//! `ironcage lease list`.

use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::output::{print, utc};
use crate::render::lease::event_line;
use crate::{audit_log, cages, json};
use ironcage_audit::LogEntry;
use ironcage_client::{RunningCage, leases};
use ironcage_control::LeaseDescription;
use ironcage_model::{CageId, EventKind, Printable, Span};
use std::path::Path;
use std::time::Duration;

/// How often --follow reads the audit log.
const PACE: Duration = Duration::from_millis(200);

/// List the leases of running cages
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name [default: all running cages]
    #[arg(value_name = "ID", add = running_cages())]
    id: Option<String>,
    /// Show what was granted, denied and revoked so far, and continue until the cage ends
    #[arg(short, long, conflicts_with = "json", requires = "id")]
    follow: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.id.as_deref() {
        Some(id) if args.follow => {
            let (_, path) = audit_log::find_log(Some(id))?;
            follow(&path)
        }
        Some(id) => of_one(id, args.json),
        None => of_all(args.json),
    }
}

fn of_one(id: &str, json: bool) -> CommandResult {
    let connection = cages::connect(id)?;
    let list = leases(&connection).map_err(cages::client_error)?;
    if json {
        let text = json::pretty(&list).map_err(CliError::new)?;
        anstream::println!("{text}");
        return Ok(0);
    }
    if list.is_empty() {
        anstream::println!("cage {}: no leases", connection.id());
    }
    for described in list {
        anstream::println!("{}", in_words(&described));
    }
    Ok(0)
}

/// The leases of every running cage; status 1 if one does not answer.
fn of_all(json: bool) -> CommandResult {
    let cages = cages::all()?;
    let (mut known, mut silent) = (Vec::new(), Vec::new());
    for found in cages.running().map_err(cages::client_error)? {
        let id = match found {
            RunningCage::Answered(description) => description.id,
            RunningCage::Silent { id, .. } => {
                silent.push(id);
                continue;
            }
        };
        let connection = cages.connect(&id);
        match connection.and_then(|connection| leases(&connection)) {
            Ok(list) => known.extend(list.into_iter().map(|one| (id.clone(), one))),
            Err(_) => silent.push(id),
        }
    }
    if json {
        let mut list = Vec::new();
        for (cage, described) in &known {
            let mut value = serde_json::to_value(described).map_err(CliError::new)?;
            if let Some(fields) = value.as_object_mut() {
                fields.insert("cage".into(), cage.as_str().into());
            }
            list.push(value);
        }
        let not_known = |id: &CageId| serde_json::json!({ "cage": id.as_str(), "answered": false });
        list.extend(silent.iter().map(not_known));
        anstream::println!("{}", json::pretty(&list).map_err(CliError::new)?);
        return Ok(u8::from(!silent.is_empty()));
    }
    if known.is_empty() && silent.is_empty() {
        anstream::println!("no running cage has leases");
    }
    for (cage, described) in &known {
        anstream::println!("{cage}  {}", in_words(described));
    }
    for cage in &silent {
        anstream::println!("{cage}  does not answer; its leases are unknown");
    }
    Ok(u8::from(!silent.is_empty()))
}

fn in_words(described: &LeaseDescription) -> String {
    let lease = &described.lease;
    let left = match described.milliseconds_left {
        Some(left) => format!(", {} left", Span(left)),
        None => String::new(),
    };
    let uses = match described.uses_left {
        Some(left) => format!(", {left} uses left"),
        None => String::new(),
    };
    let reason = match lease.reason.as_str() {
        "" => String::new(),
        reason => format!(": {}", Printable::new(reason)),
    };
    format!(
        "lease {}  {:<7}  {}{left}{uses}{reason}",
        lease.number,
        described.state.name(),
        lease.resource
    )
}

fn follow(path: &Path) -> CommandResult {
    let mut seen = 0;
    loop {
        let records = audit_log::records(path, seen)?;
        seen += records.len();
        let over = records
            .iter()
            .any(|record| matches!(record.event.kind, EventKind::Exit { .. }));
        print(|out| {
            let mut records = records.iter().filter(|record| is_about_leases(record));
            records.try_for_each(|record| {
                write!(out, "{}  ", utc(record.event.time))?;
                event_line(out, &record.event.kind)
            })
        })?;
        if over {
            return Ok(0);
        }
        std::thread::sleep(PACE);
    }
}

fn is_about_leases(record: &LogEntry) -> bool {
    matches!(
        record.event.kind,
        EventKind::Lease(_)
            | EventKind::LeaseRefused { .. }
            | EventKind::LeaseEnd { .. }
            | EventKind::Question(_)
            | EventKind::QuestionEnd { .. }
            | EventKind::QuestionUntold { .. }
            | EventKind::Intent(_)
            | EventKind::IntentUnread { .. }
            | EventKind::IntentRuin { .. }
            | EventKind::Drift { .. }
            | EventKind::Resumed
    )
}
