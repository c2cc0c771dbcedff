//! `ironcage serve`, which `ironcage-serve` executes.

use crate::error::{CliError, CommandResult};
use crate::paths;
use ironcage_host::SystemFiles;
use ironcage_programs::Program;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process with `ironcage-serve`, with the same arguments and its places.
pub(crate) fn run() -> CommandResult {
    let home = paths::home(&SystemFiles::default())?;
    let program = Program::Serve
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let own = std::env::current_exe()
        .map_err(|error| CliError::new(format!("cannot find this program: {error}")))?;
    let error = Command::new(&program)
        .arg("--data")
        .arg(paths::state_dir(&home).join("serve"))
        .arg("--ironcage")
        .arg(own)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(CliError::new(format!(
        "cannot execute {}: {error}",
        program.display()
    )))
}
