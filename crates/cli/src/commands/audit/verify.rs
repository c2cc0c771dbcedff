//! `ironcage audit verify`.

use crate::audit_log::{self, audit_error};
use crate::completion::recorded_cages;
use crate::error::CommandResult;
use crate::output::print;
use crate::render::event::verdict_text;
use ironcage_audit::Verdict;
use ironcage_model::CageId;
use std::path::Path;

/// Verify that an audit log is as it was written
///
/// Exit status: 0 if it is intact; 1 if it was tampered with, or if nothing proves where it ends.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Verify every log, including deleted ones that still have a head
    #[arg(long, conflicts_with = "cage")]
    all: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let dir = audit_log::directory()?;
    match args.all {
        true => {
            let all = ironcage_audit::recorded(&dir).map_err(audit_error)?;
            verify(&dir, &all, true)
        }
        false => {
            let id = audit_log::find(&dir, args.cage.as_deref())?;
            verify(&dir, &[id], false)
        }
    }
}

fn verify(dir: &Path, ids: &[CageId], sum: bool) -> CommandResult {
    let mut verdicts = Vec::with_capacity(ids.len());
    for id in ids {
        verdicts.push((id, ironcage_audit::verify(dir, id).map_err(audit_error)?));
    }
    let intact = |verdict: &Verdict| matches!(verdict, Verdict::Intact { .. });
    print(|out| {
        for (id, verdict) in &verdicts {
            writeln!(out, "{id}  {}", verdict_text(verdict))?;
        }
        if verdicts.is_empty() {
            return writeln!(out, "no audit logs");
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
                "{all} logs: {good} intact, {} with an unproven tail, {broken} broken",
                all - good - broken
            )?;
        }
        Ok(())
    })?;
    Ok(u8::from(
        !verdicts.iter().all(|(_, verdict)| intact(verdict)),
    ))
}
