//! `ironcage audit prune`.

use crate::audit_log::{self, audit_error};
use crate::confirm::confirm;
use crate::error::CommandResult;
use crate::output::print;
use crate::values::{age, count};
use ironcage_audit::{Prune, Pruned, prune};
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Remove old audit logs
///
/// Logs of running cages stay, and so do logs that were tampered with: they are evidence, so
/// remove them by hand.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["older_than", "keep"]))]
pub(crate) struct Args {
    /// Remove logs whose last line is older than AGE, for example 30d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// Remove all but the newest NUMBER logs
    #[arg(long, value_name = "NUMBER", value_parser = count::<usize>)]
    keep: Option<usize>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let dir = audit_log::directory()?;
    let which = match (args.older_than, args.keep) {
        (Some(age), _) => {
            let moment = SystemTime::now().checked_sub(age);
            Prune::Before(moment.unwrap_or(SystemTime::UNIX_EPOCH))
        }
        (None, count) => Prune::AllBut(count.unwrap_or(usize::MAX)),
    };
    let first = prune(&dir, which, true).map_err(audit_error)?;
    if args.dry_run || first.removed.is_empty() {
        print(|out| report(out, &first, args.dry_run))?;
        return Ok(0);
    }
    let question = format!("remove {} logs?", first.removed.len());
    if !args.yes && !confirm(&question, "nothing removed", "--yes")? {
        return Ok(0);
    }
    let pruned = prune(&dir, which, false).map_err(audit_error)?;
    print(|out| report(out, &pruned, false))?;
    Ok(0)
}

fn report(out: &mut dyn Write, pruned: &Pruned, dry: bool) -> io::Result<()> {
    let what = if dry { "would remove" } else { "removed" };
    for id in &pruned.removed {
        writeln!(out, "{what} {id}")?;
    }
    for id in &pruned.running {
        writeln!(out, "kept {id}: its cage is running")?;
    }
    for id in &pruned.broken {
        writeln!(
            out,
            "kept {id}: it was tampered with; `ironcage audit verify {id}` shows where"
        )?;
    }
    let stay = pruned.kept + pruned.running.len() + pruned.broken.len();
    writeln!(out, "{what} {}, {stay} stay", pruned.removed.len())
}
