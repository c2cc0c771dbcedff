//! `ironcage request`: permission requests that wait for your answer.

pub(crate) mod approve;
pub(crate) mod deny;
mod list;

use crate::error::CommandResult;
use clap::Subcommand;

/// List and answer permission requests of running cages
///
/// An agent requests what the ceiling of its policy marks `ask`. The request waits until you
/// approve or deny it, or until it expires.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
    Approve(approve::Args),
    Deny(deny::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::List(args) => list::run(args),
        Command::Approve(args) => approve::run(args),
        Command::Deny(args) => deny::run(args),
    }
}
