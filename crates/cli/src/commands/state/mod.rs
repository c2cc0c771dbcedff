//! `ironcage state`: files that outlive cages.

mod import;
mod list;
mod reset;
mod taint;

use crate::command_group::command_group;
use crate::error::CliError;
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use ironcage_state::StateError;
use std::path::{Path, PathBuf};

/// Manage the files that are kept between runs
///
/// Each workspace has its own: paths in the agent's home that a profile or --state names, and
/// caches. Your own files are never used in their place, and never changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

command_group! {
    List => list,
    Reset => reset,
    Import => import,
    Taint => taint,
}

fn state_error(error: StateError) -> CliError {
    let shown = CliError::from_error(&error);
    match error {
        StateError::Exists { .. } => shown.hint("--replace overwrites it with your copy"),
        _ => shown,
    }
}

fn workspace_or_default(named: Option<PathBuf>, home: &Path) -> Result<PathBuf, CliError> {
    match named {
        // A deleted workspace can still have files kept for it.
        Some(path) => std::fs::canonicalize(&path)
            .or_else(|_| std::path::absolute(&path))
            .map_err(|error| {
                CliError::new(format!("cannot resolve {}: {error}", Printable::new(&path)))
            }),
        None => {
            let cwd = std::env::current_dir().map_err(|error| {
                CliError::new(format!("cannot determine the current directory: {error}"))
            })?;
            Ok(paths::workspace_around(&cwd, home, &SystemFiles::default()))
        }
    }
}
