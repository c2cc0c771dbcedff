//! `ironcage version`.

use crate::error::CommandResult;
use crate::output::print;
use crate::version::VERSION;

/// Print the version, the commit and the kind of build
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run() -> CommandResult {
    print(|out| writeln!(out, "ironcage {VERSION}"))?;
    Ok(0)
}
