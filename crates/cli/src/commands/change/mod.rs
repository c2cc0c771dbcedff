//! `ironcage change`: the pending changes of copy-on-write workspaces.

pub(crate) mod apply;
pub(crate) mod diff;
pub(crate) mod discard;
mod fork;
mod list;
mod prune;
mod restore;
mod snapshot;

use crate::error::CommandResult;
use clap::Subcommand;

/// Review, apply and manage pending changes
///
/// A run on a copy-on-write workspace leaves a pending change; the real files stay as they are
/// until you apply it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
    Diff(diff::Args),
    Apply(apply::Args),
    Discard(discard::Args),
    Snapshot(snapshot::Args),
    Restore(restore::Args),
    Fork(fork::Args),
    Prune(prune::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::List(args) => list::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Discard(args) => discard::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Fork(args) => fork::run(args),
        Command::Prune(args) => prune::run(args),
    }
}
