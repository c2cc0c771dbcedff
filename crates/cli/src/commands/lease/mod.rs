//! `ironcage lease`: permissions of running cages beyond their plan.

pub(crate) mod grant;
mod list;
pub(crate) mod revoke;

use crate::error::CommandResult;
use clap::Subcommand;

/// Grant, revoke and list leases of running cages
///
/// A lease is a permission beyond the cage's plan: a path, a host, a secret, a limit. It ends with
/// its time, with `ironcage revoke`, or with the cage, and never exceeds the policy's ceiling.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Grant(Box<grant::Args>),
    Revoke(revoke::Args),
    List(list::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::Grant(args) => grant::run(*args),
        Command::Revoke(args) => revoke::run(args),
        Command::List(args) => list::run(args),
    }
}
