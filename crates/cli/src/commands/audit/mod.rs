//! `ironcage audit`: shows, checks, lists and reports on the audit logs of cages.
//!
//! Everything but `prune` leaves the logs as they are. Text that a cage put into its log is printed escaped, as JSON
//! too.

mod key;
mod list;
mod prune;
mod report;
mod show;
mod signed_report;
mod verify;

use crate::error::CommandResult;
use clap::Subcommand;

/// Show, verify, list, report on and prune audit logs
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
    Report(report::Args),
    Key(key::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(args),
        Command::List(args) => list::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Report(args) => report::run(args),
        Command::Key(args) => key::run(&args),
    }
}
