//! `ironcage completions`: scripts that complete our commands and flags in a shell.

use crate::error::CommandResult;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

/// Print a completion script for a shell
///
/// For example: `ironcage completions bash > /etc/bash_completion.d/ironcage`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let mut command = crate::Cli::command();
    let mut script = Vec::new();
    generate(args.shell, &mut command, "ironcage", &mut script);
    super::man::print(&script)
}
