//! `ironcage discard`: lets a pending change go.

use crate::ask::confirm;
use crate::error::CommandResult;
use crate::pending::{Pending, PendingArgs, shown};

/// Let a pending change go, or a part of it. The real files are not touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pending: PendingArgs,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let Pending {
        store,
        change,
        selection,
        ..
    } = args.pending.find()?.with_all_named()?;
    let id = change.id().clone();
    if !args.yes {
        let what = if selection.is_everything() {
            "all of"
        } else {
            "that part of"
        };
        let question = format!("let {what} the change {id} go?");
        if !confirm(&question, "nothing was discarded", "--yes")? {
            return Ok(0);
        }
    }
    store
        .discard(&change, &selection)
        .map_err(|error| shown(&error))?;
    anstream::println!("discarded from {id}; the real files are as they were");
    Ok(0)
}
