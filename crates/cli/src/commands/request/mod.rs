//! `ironcage request`: permission requests that wait for your answer.

pub(crate) mod approve;
pub(crate) mod deny;
mod list;

use crate::command_group::command_group;

/// List and answer permission requests of running cages
///
/// An agent requests what the ceiling of its policy marks `ask`. The request waits until you
/// approve or deny it, or until it expires.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

command_group! {
    List => list,
    Approve => approve,
    Deny => deny,
}
