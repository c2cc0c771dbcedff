//! `ironcage audit prune`: removes old records.

use super::{print, said};
use crate::ask::confirm;
use crate::error::CommandResult;
use crate::values::{age, count};
use ironcage_audit::{Prune, Pruned, prune};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Remove old records.
///
/// Records that are still being written stay, and so do those that were changed: they are
/// evidence, and go by hand.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["older_than", "keep"]))]
pub(crate) struct Args {
    /// Remove records whose last line is older than this, such as 30d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// Remove all but this many of the newest
    #[arg(long, value_name = "NUMBER", value_parser = count::<usize>)]
    keep: Option<usize>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(dir: &Path, args: &Args) -> CommandResult {
    let which = match (args.older_than, args.keep) {
        (Some(age), _) => {
            let moment = SystemTime::now().checked_sub(age);
            Prune::Before(moment.unwrap_or(SystemTime::UNIX_EPOCH))
        }
        (None, count) => Prune::AllBut(count.unwrap_or(usize::MAX)),
    };
    let first = prune(dir, which, true).map_err(said)?;
    if args.dry_run || first.removed.is_empty() {
        print(|out| tell(out, &first, args.dry_run))?;
        return Ok(0);
    }
    let question = format!("remove {} records?", first.removed.len());
    if !args.yes && !confirm(&question, "nothing was removed", "--yes")? {
        return Ok(0);
    }
    let pruned = prune(dir, which, false).map_err(said)?;
    print(|out| tell(out, &pruned, false))?;
    Ok(0)
}

fn tell(out: &mut dyn Write, pruned: &Pruned, dry: bool) -> io::Result<()> {
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
            "kept {id}: it was changed; `ironcage audit verify {id}` says how"
        )?;
    }
    let stay = pruned.kept + pruned.running.len() + pruned.broken.len();
    writeln!(out, "{what} {}, {stay} stay", pruned.removed.len())
}
