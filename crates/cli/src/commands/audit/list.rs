//! `ironcage audit list`.

use crate::audit_log::{self, audit_error};
use crate::error::CommandResult;
use crate::json;
use crate::output::{print, utc};
use crate::render::event::{command_line, ending_short};
use ironcage_audit::{Error, Summary};
use ironcage_model::{CageId, Printable};
use std::io::{self, Write};

/// List recorded cages, newest first
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Number of cages to list; 0 lists all
    #[arg(short = 'n', long, default_value_t = 20, value_name = "NUMBER")]
    count: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let Args { count, json } = args;
    let dir = audit_log::directory()?;
    let headings = ironcage_audit::list(&dir).map_err(audit_error)?;
    let shown = if count == 0 { headings.len() } else { count };
    let mut rows = Vec::new();
    for heading in headings.iter().take(shown) {
        let sum = match ironcage_audit::summary(&dir, &heading.id) {
            // Listed so that it is seen; `audit verify` reports what is wrong with it.
            Err(Error::NotAFile { .. }) => Summary {
                damaged: 1,
                ..Summary::default()
            },
            other => other.map_err(audit_error)?,
        };
        rows.push((&heading.id, sum));
    }
    print(|out| {
        if json {
            let rows: Vec<_> = rows.iter().map(|(id, sum)| summary_json(id, sum)).collect();
            return writeln!(out, "{}", json::line(&rows)?);
        }
        if rows.is_empty() {
            return writeln!(out, "no audit logs");
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
        Some(ending) => ending_short(ending),
        None if sum.running => "running".into(),
        None => "no exit event".into(),
    };
    let mut command = command_line(&sum.command);
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
        write!(out, "  ({} unreadable lines)", sum.damaged)?;
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
