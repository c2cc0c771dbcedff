//! `ironcage image` and `ironcage template`, which `ironcage-registry` executes.

use crate::error::{CliError, CommandResult};
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_programs::Program;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process with `ironcage-registry`, with the same arguments, the store and the workspace.
pub(crate) fn run() -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let program = Program::Registry
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let own = std::env::current_exe()
        .map_err(|error| CliError::new(format!("cannot find this program: {error}")))?;
    let error = Command::new(&program)
        .arg("--store")
        .arg(paths::images(&home))
        .arg("--ironcage")
        .arg(own)
        .arg("--workspace")
        .arg(paths::workspace_here()?)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(CliError::new(format!(
        "cannot execute {}: {error}",
        program.display()
    )))
}
