//! `ironcage leases`: what a cage was given while it ran.

use super::audit::{find, logs, print, said, utc};
use super::{grant, net};
use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::running;
use ironcage_audit::{Error, Record};
use ironcage_control::LeaseDescription;
use ironcage_model::{CageId, EventKind, Holder, Printable, Span};
use ironcage_runtime::client::{Found, leases};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// How often the record is looked at while it grows.
const PACE: Duration = Duration::from_millis(200);

/// List the permissions that running cages have beyond their base
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only of this cage: its id, the beginning of it, or its name
    #[arg(value_name = "ID", add = running_cages())]
    id: Option<String>,
    /// Show what was given, refused and taken back so far, and go on until the cage ends
    #[arg(short, long, conflicts_with = "json", requires = "id")]
    follow: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.id.as_deref() {
        Some(id) if args.follow => {
            let dir = logs()?;
            let id = find(&dir, Some(id))?;
            let path = ironcage_audit::log_path(&dir, &id);
            if !path.exists() {
                return Err(said(Error::NoSuchCage { id }));
            }
            follow(&path)
        }
        Some(id) => of_one(id, args.json),
        None => of_all(args.json),
    }
}

fn of_one(id: &str, json: bool) -> CommandResult {
    let connection = running::connect(id)?;
    let list = leases(&connection).map_err(running::said)?;
    if json {
        let text = json::pretty(&list).map_err(CliError::new)?;
        anstream::println!("{text}");
        return Ok(0);
    }
    if list.is_empty() {
        anstream::println!("cage {}: no lease is open", connection.id());
    }
    for described in list {
        anstream::println!("{}", in_words(&described));
    }
    Ok(0)
}

/// Of every running cage; status 1 where one does not say what it has.
fn of_all(json: bool) -> CommandResult {
    let cages = running::cages()?;
    let (mut told, mut silent) = (Vec::new(), Vec::new());
    for found in cages.running().map_err(running::said)? {
        let id = match found {
            Found::Answered(description) => description.id,
            Found::Silent { id, .. } => {
                silent.push(id);
                continue;
            }
        };
        let connection = cages.connect(&id);
        match connection.and_then(|connection| leases(&connection)) {
            Ok(list) => told.extend(list.into_iter().map(|one| (id.clone(), one))),
            Err(_) => silent.push(id),
        }
    }
    if json {
        let mut list = Vec::new();
        for (cage, described) in &told {
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
    if told.is_empty() && silent.is_empty() {
        anstream::println!("no running cage has a lease");
    }
    for (cage, described) in &told {
        anstream::println!("{cage}  {}", in_words(described));
    }
    for cage in &silent {
        anstream::println!("{cage}  does not answer: its leases are not known");
    }
    Ok(u8::from(!silent.is_empty()))
}

/// An open lease in one line.
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
        let records = net::read(path, seen)?;
        seen += records.len();
        let over = records
            .iter()
            .any(|record| matches!(record.event.kind, EventKind::Exit { .. }));
        print(|out| {
            let mut records = records.iter().filter(|record| matters(record));
            records.try_for_each(|record| {
                write!(out, "{}  ", utc(record.event.time))?;
                line(out, &record.event.kind)
            })
        })?;
        if over {
            return Ok(0);
        }
        std::thread::sleep(PACE);
    }
}

fn matters(record: &Record) -> bool {
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

/// What happened to a lease, in a line and one for each who held on.
pub(super) fn line(out: &mut dyn Write, kind: &EventKind) -> io::Result<()> {
    match kind {
        EventKind::Lease(lease) => {
            let reason = match lease.reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", Printable::new(reason)),
            };
            writeln!(out, "{}{reason}", grant::in_words(lease))
        }
        EventKind::LeaseRefused {
            resource,
            reason,
            unrecorded,
            ..
        } => {
            if *unrecorded > 0 {
                writeln!(out, "leases refused: {unrecorded} others, within a moment")?;
            }
            writeln!(out, "lease refused: {resource}: {}", Printable::new(reason))
        }
        EventKind::LeaseEnd {
            number,
            end,
            cause,
            holders,
            milliseconds,
        } => {
            writeln!(
                out,
                "lease {number}: {} after {:#}, {}",
                end.name(),
                Span(*milliseconds),
                Printable::new(cause)
            )?;
            for line in holders_in_words(holders) {
                writeln!(out, "    {line}")?;
            }
            Ok(())
        }
        EventKind::Question(question) => {
            let reason = match question.reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", Printable::new(reason)),
            };
            let announced = match &question.announced {
                Some(named) => format!("; the model's words named {}", Printable::new(named)),
                None => String::new(),
            };
            writeln!(
                out,
                "question {}: {} asks for {}{reason}{announced}",
                question.number,
                question.origin.name(),
                question.resource
            )
        }
        EventKind::QuestionUntold { number, reason } => {
            writeln!(out, "question {number}: {}", Printable::new(reason))
        }
        EventKind::QuestionEnd {
            number,
            end,
            reason,
            asked,
            milliseconds,
        } => {
            let reason = match reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", Printable::new(reason)),
            };
            let often = match asked {
                0 | 1 => String::new(),
                asked => format!(", asked {asked} times"),
            };
            writeln!(
                out,
                "question {number}: {} after {:#}{often}{reason}",
                end.name(),
                Span(*milliseconds)
            )
        }
        EventKind::Intent(intent) => {
            let needs: Vec<String> = intent.needs.iter().map(ToString::to_string).collect();
            let more = match intent.open {
                true => ", and may do more",
                false => "",
            };
            let who = match intent.shell {
                true => "a command of",
                false => "the model calls",
            };
            writeln!(
                out,
                "{who} {}: {}{more}",
                Printable::new(&intent.tool),
                needs.join(", ")
            )
        }
        EventKind::IntentUnread { times, reason } => {
            writeln!(
                out,
                "the model's answer was not read, {times} times: {}",
                Printable::new(reason)
            )
        }
        EventKind::IntentRuin {
            tool, path, reason, ..
        } => {
            let (tool, path) = (Printable::new(tool), Printable::new(path));
            writeln!(
                out,
                "the model calls {tool}, which removes {path}: {}",
                Printable::new(reason)
            )
        }
        EventKind::Drift {
            what,
            number,
            trust,
        } => writeln!(
            out,
            "drift {number}: {}; {}",
            Printable::new(what),
            trust.name()
        ),
        EventKind::Resumed => writeln!(out, "the cage goes on, by the operator"),
        _ => Ok(()),
    }
}

/// Who still used a lease, a line each.
pub(super) fn holders_in_words(holders: &[Holder]) -> Vec<String> {
    let of = |holder: &Holder| {
        let killed = if holder.killed {
            "killed"
        } else {
            "left alone"
        };
        format!(
            "{} (process {} in the cage) held on to it: {}; {killed}",
            Printable::new(&holder.program),
            holder.pid,
            Printable::new(&holder.what)
        )
    };
    holders.iter().map(of).collect()
}
