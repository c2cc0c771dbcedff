//! `ironcage net remove`.

use super::CageArgument;
use crate::error::CommandResult;
use ironcage_control::NetworkRequest;

/// Remove rules that `net allow` or `net deny` added
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
    /// Rule numbers, as `ironcage net rules` shows them
    #[arg(value_name = "NUMBER", required = true)]
    numbers: Vec<u32>,
}

pub(super) fn run(args: Args) -> CommandResult {
    let numbers = args.numbers;
    args.cage
        .change(NetworkRequest::Remove { numbers }, "removed")
}
