//! `ironcage snapshot`, `restore`, `fork` and `prune`: copies of pending changes.

use super::changes::standing;
use crate::ask::confirm;
use crate::error::{CliError, CommandResult};
use crate::live::Live;
use crate::pending::{Pending, PendingArgs, WorkspaceArgs, shown};
use crate::places;
use crate::values::age;
use ironcage_model::Printable;
use ironcage_runtime::client::Connection;
use ironcage_workspace::{Change, Store, take_owners_rights};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Keep the state of the workspace's pending change, to go back to.
///
/// Where a running cage works on the change, it stands still meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to call it [default: the next free number]
    #[arg(conflicts_with_all = ["list", "remove"])]
    name: Option<String>,
    #[command(flatten)]
    workspace: WorkspaceArgs,
    /// List the workspace's snapshots
    #[arg(long, conflicts_with = "remove")]
    list: bool,
    /// Remove one
    #[arg(long, value_name = "NAME")]
    remove: Option<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let (store, workspace) = args.workspace.find()?;
    if args.list {
        for (name, change) in store
            .list_snapshots(&workspace)
            .map_err(|error| shown(&error))?
        {
            anstream::println!("{name}  of {}", change.id());
        }
        return Ok(0);
    }
    if let Some(name) = args.remove {
        store
            .remove_snapshot(&workspace, &name)
            .map_err(|error| shown(&error))?;
        return Ok(0);
    }
    let change = crate::pending::pending(&store, &workspace)?;
    let cage = crate::pending::cage_of(&change)?;
    // Refused on hosts without user namespaces: what cannot be read there is told.
    let _ = take_owners_rights();
    let name = args.name.as_deref();
    let name = match &cage {
        None => store
            .snapshot(&change, name)
            .map_err(|error| shown(&error))?,
        Some(cage) => live(&store, &change, cage).snapshot(name)?,
    };
    anstream::println!("{name}");
    Ok(0)
}

/// Go back to a snapshot: the next run starts from it. What is pending now stays as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// The snapshot
    name: String,
    #[command(flatten)]
    workspace: WorkspaceArgs,
}

pub(crate) fn restore(args: RestoreArgs) -> CommandResult {
    let (store, workspace) = args.workspace.open()?;
    let change = store
        .restore(&workspace, &args.name)
        .map_err(|error| shown(&error).hint("`ironcage snapshot --list` lists them"))?;
    anstream::println!("{}", change.id());
    Ok(0)
}

/// Make a second change from the same state; the next run in the workspace goes on with it.
///
/// Where a running cage works on the change, it stands still meanwhile and goes on with its own:
/// `ironcage fork ID && ironcage run -- COMMAND` is a second cage from the same state.
#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    #[command(flatten)]
    pending: PendingArgs,
}

pub(crate) fn fork(args: ForkArgs) -> CommandResult {
    let Pending {
        store,
        change,
        selection,
        cage,
    } = args.pending.find_with_cage()?;
    if !selection.is_everything() {
        return Err(
            CliError::new("a change is forked whole: name its id, and no path")
                .hint("`ironcage changes` lists the ids"),
        );
    }
    let copy = match &cage {
        None => store.fork(&change).map_err(|error| shown(&error))?,
        Some(cage) => live(&store, &change, cage).fork()?,
    };
    anstream::println!("{}", copy.id());
    Ok(0)
}

fn live<'a>(store: &'a Store, change: &'a Change, cage: &'a Connection) -> Live<'a> {
    Live {
        store,
        change,
        cage,
    }
}

/// Remove changes that a newer one has set aside, and those of workspaces that are gone.
///
/// A workspace's current change is never removed while the workspace is there.
#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    /// Only those that began so long ago, such as 30d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn prune(args: PruneArgs) -> CommandResult {
    let least = args.older_than.unwrap_or_default().as_secs();
    let home = places::home()?;
    let store = places::changes(&home);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let mut found: Vec<(Change, &str)> = Vec::new();
    for change in store.list().map_err(|error| shown(&error))? {
        let began = u64::try_from(change.began().seconds).unwrap_or(0);
        let old = now.saturating_sub(began) >= least;
        let current = store
            .pending(change.workspace())
            .map_err(|error| shown(&error))?;
        let why = standing(&change, current.as_ref());
        if let (true, Some(why), false) = (old, why.prunable(), change.in_use()) {
            found.push((change, why));
        }
    }
    if found.is_empty() {
        anstream::println!("nothing to remove");
        return Ok(0);
    }
    for (change, why) in &found {
        let workspace = Printable::new(change.workspace());
        anstream::println!("{}  {workspace}  ({why})", change.id());
    }
    let question = format!("remove {}?", found.len());
    if !args.yes && !confirm(&question, "nothing was removed", "--yes")? {
        return Ok(0);
    }
    for (change, _) in &found {
        store.remove(change).map_err(|error| shown(&error))?;
    }
    anstream::println!("removed {}", found.len());
    Ok(0)
}
