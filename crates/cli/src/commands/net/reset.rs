//! `ironcage net reset`.

use super::CageArgument;
use crate::error::CommandResult;
use ironcage_control::NetworkRequest;

/// Remove every rule that `net allow` and `net deny` added
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
}

pub(super) fn run(args: Args) -> CommandResult {
    args.cage.change(NetworkRequest::Reset, "removed")
}
