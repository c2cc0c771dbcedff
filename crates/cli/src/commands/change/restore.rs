//! `ironcage change restore`.

use crate::error::CommandResult;
use crate::pending_change::{WorkspaceArgs, change_error};

/// Start the next run from a snapshot
///
/// The change that is pending now stays as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the snapshot
    name: String,
    #[command(flatten)]
    workspace: WorkspaceArgs,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let (store, workspace) = args.workspace.open()?;
    let change = store.restore(&workspace, &args.name).map_err(|error| {
        change_error(&error).hint("`ironcage change snapshot --list` lists snapshots")
    })?;
    anstream::println!("{}", change.id());
    Ok(0)
}
