//! `ironcage change discard`, or `ironcage discard`.

use crate::confirm::confirm;
use crate::error::CommandResult;
use crate::pending_change::{ChangeArgs, PendingChange, change_error};

/// Discard a pending change, or a part of it
///
/// The real files are not touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pending: ChangeArgs,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let PendingChange {
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
        let question = format!("discard {what} change {id}?");
        if !confirm(&question, "nothing discarded", "--yes")? {
            return Ok(0);
        }
    }
    store
        .discard(&change, &selection)
        .map_err(|error| change_error(&error))?;
    anstream::println!("discarded from {id}; the real files are unchanged");
    Ok(0)
}
