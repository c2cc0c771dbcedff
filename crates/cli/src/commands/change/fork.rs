//! `ironcage change fork`.

use crate::error::{CliError, CommandResult};
use crate::pending_change::{ChangeArgs, PendingChange, change_error};
use crate::running_change::RunningChange;

/// Copy a pending change; the next run in the workspace continues the copy
///
/// A running cage that works on the change is paused meanwhile, and continues with the original:
/// `ironcage change fork ID && ironcage run -- COMMAND` is a second cage from the same state.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pending: ChangeArgs,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let PendingChange {
        store,
        change,
        selection,
        cage,
    } = args.pending.find_with_cage()?;
    if !selection.is_everything() {
        return Err(
            CliError::new("cannot fork part of a change: name its ID, without paths")
                .hint("`ironcage change list` lists the IDs"),
        );
    }
    let copy = match &cage {
        None => store.fork(&change).map_err(|error| change_error(&error))?,
        Some(cage) => RunningChange::new(&store, &change, cage).fork()?,
    };
    anstream::println!("{}", copy.id());
    Ok(0)
}
