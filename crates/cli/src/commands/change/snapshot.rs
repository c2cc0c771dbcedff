//! `ironcage change snapshot`.

use crate::error::CommandResult;
use crate::pending_change::{WorkspaceArgs, cage_of, change_error, pending};
use crate::running_change::RunningChange;
use ironcage_workspace::take_owners_rights;

/// Save the state of the workspace's pending change
///
/// `ironcage change restore` goes back to it. A running cage that works on the change is paused
/// meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the snapshot [default: the next free number]
    #[arg(conflicts_with_all = ["list", "remove"])]
    name: Option<String>,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// List the workspace's snapshots
    #[arg(long, conflicts_with = "remove")]
    list: bool,
    /// Remove the snapshot NAME
    #[arg(long, value_name = "NAME")]
    remove: Option<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let (store, workspace) = args.workspace.find()?;
    if args.list {
        let snapshots = store.list_snapshots(&workspace);
        for (name, change) in snapshots.map_err(|error| change_error(&error))? {
            anstream::println!("{name}  of {}", change.id());
        }
        return Ok(0);
    }
    if let Some(name) = args.remove {
        store
            .remove_snapshot(&workspace, &name)
            .map_err(|error| change_error(&error))?;
        return Ok(0);
    }
    let change = pending(&store, &workspace)?;
    let cage = cage_of(&change)?;
    // Refused on hosts without user namespaces; a file that cannot be read there is reported.
    let _ = take_owners_rights();
    let name = args.name.as_deref();
    let name = match &cage {
        None => store
            .snapshot(&change, name)
            .map_err(|error| change_error(&error))?,
        Some(cage) => RunningChange::new(&store, &change, cage).snapshot(name)?,
    };
    anstream::println!("{name}");
    Ok(0)
}
