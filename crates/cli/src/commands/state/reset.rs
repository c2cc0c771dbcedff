//! `ironcage state reset`.

use super::{state_error, workspace_or_default};
use crate::confirm::confirm;
use crate::error::CommandResult;
use crate::output::size;
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_state::{Entry, Store};
use std::path::PathBuf;

/// Remove everything that is kept for a workspace
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workspace [default: the one that `ironcage run` would use]
    workspace: Option<PathBuf>,
    /// Reset every workspace
    #[arg(long, conflicts_with = "workspace")]
    all: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let store = paths::store(&home, &SystemFiles::default());
    let mut kept = store.list().map_err(state_error)?;
    if !args.all {
        let workspace = workspace_or_default(args.workspace, &home)?;
        kept.retain(|entry| entry.workspace == workspace);
        if kept.is_empty() {
            // An interrupted removal leaves files that no entry lists.
            store.reset(&workspace).map_err(state_error)?;
            let shown = Printable::new(&workspace).to_string();
            anstream::println!("nothing is kept for {shown}");
            return Ok(0);
        }
    }
    reset(&store, &kept, args.yes)
}

/// Asks first: an agent's logins and history cannot be recovered.
fn reset(store: &Store, kept: &[Entry], yes: bool) -> CommandResult {
    if kept.is_empty() {
        anstream::println!("nothing is kept for any workspace");
        return Ok(0);
    }
    if !yes {
        for entry in kept {
            anstream::println!(
                "{} and {} of caches are kept for {}",
                size(entry.home_bytes),
                size(entry.cache_bytes),
                Printable::new(&entry.workspace)
            );
        }
        if !confirm("Remove it?", "nothing removed", "--yes")? {
            anstream::println!("nothing removed");
            return Ok(1);
        }
    }
    for entry in kept {
        if store.reset(&entry.workspace).map_err(state_error)? {
            let shown = Printable::new(&entry.workspace).to_string();
            anstream::println!("removed what was kept for {shown}");
        }
    }
    Ok(0)
}
