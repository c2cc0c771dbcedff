//! `ironcage audit prune`: removes old records.

use super::{print, said};
use crate::error::{CliError, CommandResult};
use crate::values::count;
use ironcage_audit::{Prune, Pruned, prune};
use ironcage_policy::TimeLimit;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

/// Remove old records.
///
/// Records that are still being written stay, and so do those that were changed: they are
/// evidence, and go by hand.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["older_than", "keep"]))]
pub(crate) struct Args {
    /// Remove records whose last line is older than this, such as 30d
    #[arg(long, value_name = "DURATION")]
    older_than: Option<TimeLimit>,
    /// Remove all but this many of the newest
    #[arg(long, value_name = "NUMBER", value_parser = count::<usize>)]
    keep: Option<usize>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(dir: &Path, args: &Args) -> CommandResult {
    let which = match (args.older_than, args.keep) {
        (Some(TimeLimit(Some(age))), _) => {
            let moment = SystemTime::now().checked_sub(age);
            Prune::Before(moment.unwrap_or(SystemTime::UNIX_EPOCH))
        }
        (Some(TimeLimit(None)), _) => {
            return Err(CliError::new("--older-than none would remove nothing")
                .hint("write a time such as 30d"));
        }
        (None, count) => Prune::AllBut(count.unwrap_or(usize::MAX)),
    };
    let pruned = prune(dir, which, args.dry_run).map_err(said)?;
    print(|out| tell(out, &pruned, args.dry_run))?;
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
