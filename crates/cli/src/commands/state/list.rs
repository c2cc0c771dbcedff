//! `ironcage state list`.

use super::state_error;
use crate::error::{CliError, CommandResult};
use crate::output::size;
use crate::{json, paths};
use ironcage_host::SystemFiles;
use ironcage_model::Printable;

/// List workspaces and how much is kept for each
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> CommandResult {
    let store = paths::store(
        &paths::home(&SystemFiles::default())?,
        &SystemFiles::default(),
    );
    let entries = store.list().map_err(state_error)?;
    if args.json {
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| {
                serde_json::json!({
                    "workspace": entry.workspace.to_string_lossy(),
                    "home": entry.home.to_string_lossy(),
                    "home_bytes": entry.home_bytes,
                    "caches": entry.caches.to_string_lossy(),
                    "cache_bytes": entry.cache_bytes,
                    "partial": entry.is_partial,
                })
            })
            .collect();
        anstream::println!("{}", json::line(&entries).map_err(CliError::new)?);
        return Ok(0);
    }
    if entries.is_empty() {
        anstream::println!("nothing is kept for any workspace");
    }
    for entry in entries {
        let gone = if entry.workspace.is_dir() {
            ""
        } else {
            "  (deleted)"
        };
        let partial = match entry.is_partial {
            true => "  (more, in directories that cannot be read)",
            false => "",
        };
        anstream::println!(
            "{:>9}  caches {:>9}  {}{gone}{partial}",
            size(entry.home_bytes),
            size(entry.cache_bytes),
            Printable::new(&entry.workspace)
        );
    }
    Ok(0)
}
