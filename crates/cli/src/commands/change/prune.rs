//! `ironcage change prune`.

use super::list::ChangeStatus;
use crate::confirm::confirm;
use crate::error::CommandResult;
use crate::paths;
use crate::pending_change::change_error;
use crate::values::age;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_workspace::Change;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Remove superseded changes, and changes of deleted workspaces
///
/// The current change of an existing workspace is never removed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove only changes older than AGE, for example 30d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<Duration>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let least = args.older_than.unwrap_or_default().as_secs();
    let home = paths::home(&SystemFiles::default())?;
    let store = paths::changes(&home, &SystemFiles::default());
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let mut found: Vec<(Change, &str)> = Vec::new();
    for change in store.list().map_err(|error| change_error(&error))? {
        let began = u64::try_from(change.began().seconds).unwrap_or(0);
        let old = now.saturating_sub(began) >= least;
        let current = store
            .pending(change.workspace())
            .map_err(|error| change_error(&error))?;
        let status = ChangeStatus::of(&change, current.as_ref());
        if let (true, Some(why), false) = (old, status.prunable(), change.in_use()) {
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
    if !args.yes && !confirm(&question, "nothing removed", "--yes")? {
        return Ok(0);
    }
    for (change, _) in &found {
        store.remove(change).map_err(|error| change_error(&error))?;
    }
    anstream::println!("removed {}", found.len());
    Ok(0)
}
