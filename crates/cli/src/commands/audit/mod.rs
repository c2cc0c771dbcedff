//! `ironcage audit`: shows, checks and lists the audit logs of cages.
//!
//! Everything but `prune` only reads. Text that a cage put into its log is printed escaped, as JSON
//! too.

mod list;
mod prune;
mod show;
mod verify;

use crate::error::CommandResult;
use clap::Subcommand;

/// Show, verify, list and prune audit logs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(show::Args),
    Verify(verify::Args),
    List(list::Args),
    Prune(prune::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(args),
        Command::List(args) => list::run(args),
        Command::Prune(args) => prune::run(args),
    }
}
