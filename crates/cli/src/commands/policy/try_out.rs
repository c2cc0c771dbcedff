//! `ironcage policy test`: what a policy would say to a run that is on record.

use crate::cage_flags::CageFlags;
use crate::commands::audit::{find, logs, print};
use crate::commands::learn::{OnHost, record};
use crate::completed::recorded_cages;
use crate::error::{CliError, CommandResult};
use ironcage_learn::{Replayed, replay};
use ironcage_model::Printable;
use std::ffi::OsString;
use std::path::PathBuf;

/// Say what a policy would allow, refuse or ask about in a recorded run
///
/// The record of the run is read, and each file that was seen to be used, each connection, system
/// call, lease and peak is judged by the policy; nothing is started. Files and programs are on
/// record where the run was started with --observe, or by `ironcage learn`.
///
/// Exit status: 0 where all that was allowed would be allowed; 1 where something would be refused
/// or asked about; 125 for errors.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run: its cage's id or the beginning of it, its name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    run: Option<String>,
    /// The policy [default: the one that `run` would use in that workspace]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    policy: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let id = find(&logs()?, args.run.as_deref())?;
    let record = record(&id)?;
    if record.workspace.as_os_str().is_empty() {
        return Err(CliError::new(format!("the record of {id} has no start")));
    }
    if !record.workspace.is_dir() {
        return Err(CliError::new(format!(
            "{}, the workspace of {id}, is not there any more",
            Printable::new(&record.workspace)
        )));
    }
    let mut flags = match &args.policy {
        Some(policy) => CageFlags::of_policy(policy, Some(record.workspace.clone())),
        None => CageFlags::in_workspace(record.workspace.clone()),
    };
    flags.observe = false;
    let command: Vec<OsString> = record.command.iter().map(Into::into).collect();
    let prepared = flags.prepare(command)?;
    let replayed = replay(&record, &prepared.resolved.policy, &prepared.plan, &OnHost);
    let observed = record.is_observed();
    print(|out| {
        writeln!(
            out,
            "cage {id}, {}: {} uses on record",
            prepared.resolved.profile_choice, replayed.looked
        )?;
        tell(out, &replayed)?;
        if !observed {
            writeln!(
                out,
                "note: files and programs were not observed in this run; --observe puts them on record"
            )?;
        }
        Ok(())
    })?;
    Ok(u8::from(replayed.breaks()))
}

fn tell(out: &mut dyn std::io::Write, replayed: &Replayed) -> std::io::Result<()> {
    for change in &replayed.changes {
        let (now, was) = (change.now.name(), change.was.name());
        write!(out, "{now:<8} (was {was}) {}", change.what)?;
        match change.why.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, ": {}", Printable::new(&change.why))?,
        }
    }
    match (replayed.changes.is_empty(), replayed.breaks()) {
        (true, _) => writeln!(out, "all as it was"),
        (false, false) => writeln!(out, "all that was allowed would be allowed"),
        (false, true) => writeln!(out, "the run would not go as it went"),
    }
}
