//! `ironcage probe` and `ironcage bench`, which `ironcage-lab` executes.

use crate::error::{CliError, CommandResult};
use ironcage_programs::Program;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process with `ironcage-lab`, with the same arguments.
pub(crate) fn run() -> CommandResult {
    let lab = Program::Lab
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    let words = ironcage_sys::entry::arguments().into_iter().skip(1);
    let error = Command::new(&lab).args(words).exec();
    Err(CliError::new(format!(
        "cannot execute {}: {error}",
        lab.display()
    )))
}
