//! `ironcage channel`: channels between running cages.

mod close;
mod open;

use crate::cages;
use crate::error::{CliError, CommandResult};
use clap::Subcommand;
use ironcage_client::Connection;
use ironcage_control::{Reply, Request};
use std::os::fd::BorrowedFd;

const EXAMPLES: &str = "\
Examples:
  ironcage channel open tasks planner worker --schema task.json
  ironcage channel close tasks worker";

/// Open and close channels between running cages (experimental)
///
/// Flags, message types and policy keys may still change.
///
/// A channel has a name and a direction and carries JSON messages of one type. Their size, their
/// rate and the number of unread messages are limited. Both audit logs record every message,
/// without its contents. Inside, `ironcage send` and `ironcage receive` use the channel. Each
/// cage's policy sets how many channels it may have (`channels` under [ceiling]).
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Open(open::Args),
    Close(close::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::Open(args) => open::run(args),
        Command::Close(args) => close::run(args),
    }
}

fn request(
    cage: &Connection,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), CliError> {
    let reply = cage
        .ask_with(request, descriptors)
        .map_err(cages::client_error)?;
    match reply {
        Reply::ChannelChanged => Ok(()),
        other => Err(cages::unexpected(&other)),
    }
}
