//! `ironcage policy`: checks policy files, imports them, and compares them with recorded runs.

mod check;
mod export;
mod import;
mod test;
mod tighten;

use crate::error::CommandResult;
use clap::Subcommand;

/// Check, import, export, tighten and test policy files
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Args),
    Tighten(tighten::Args),
    Test(test::Args),
    Import(import::Args),
    Export(export::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::Check(args) => check::run(args),
        Command::Tighten(args) => tighten::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
    }
}
