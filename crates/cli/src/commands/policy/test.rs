//! `ironcage policy test`: simulates a policy against a recorded run.

use crate::audit_log;
use crate::cage_flags::CageFlags;
use crate::commands::learn::{LearningHost, read_record};
use crate::completion::recorded_cages;
use crate::error::{CliError, CommandResult};
use crate::output::print;
use ironcage_learn::{Replayed, replay};
use ironcage_model::Printable;
use std::ffi::OsString;
use std::path::PathBuf;

/// Show what a policy would allow, deny or ask for in a recorded run
///
/// Applies the policy to every file, connection, system call, lease and peak in the run's audit
/// log; nothing is started. The log has files and programs only if the run used --observe or
/// `ironcage learn`.
///
/// Exit status: 0 if the policy allows everything that was allowed; 1 if it would deny or ask for
/// something; 125 for errors.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    run: Option<String>,
    /// Policy file [default: the one that `run` would use in that workspace]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    policy: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let id = audit_log::find(&audit_log::directory()?, args.run.as_deref())?;
    let record = read_record(&id)?;
    if record.workspace.as_os_str().is_empty() {
        return Err(CliError::new(format!(
            "cannot test cage {id}: its audit log has no start event"
        )));
    }
    if !record.workspace.is_dir() {
        return Err(CliError::new(format!(
            "cannot test cage {id}: its workspace {} no longer exists",
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
    let replayed = replay(
        &record,
        &prepared.resolved.policy,
        &prepared.plan,
        &LearningHost,
    );
    let observed = record.is_observed();
    print(|out| {
        writeln!(
            out,
            "cage {id}, {}: {} recorded uses",
            prepared.resolved.profile_choice, replayed.looked
        )?;
        report(out, &replayed)?;
        if !observed {
            writeln!(
                out,
                "note: this run has no record of files and programs; --observe adds one"
            )?;
        }
        if record.left_out > 0 {
            writeln!(
                out,
                "note: {} uses of this run are not in its audit log and were not tested",
                record.left_out
            )?;
        }
        Ok(())
    })?;
    Ok(u8::from(replayed.breaks()))
}

fn report(out: &mut dyn std::io::Write, replayed: &Replayed) -> std::io::Result<()> {
    for change in &replayed.changes {
        let (now, was) = (change.now.name(), change.was.name());
        write!(out, "{now:<8} (was {was}) {}", change.what)?;
        match change.why.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, ": {}", Printable::new(&change.why))?,
        }
    }
    match (replayed.changes.is_empty(), replayed.breaks()) {
        (true, _) => writeln!(out, "same outcome as the run"),
        (false, false) => writeln!(out, "allows everything that was allowed"),
        (false, true) => writeln!(out, "this policy would change the outcome of the run"),
    }
}
