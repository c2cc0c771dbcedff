//! `ironcage channel close`.

use super::request;
use crate::cages;
use crate::completion::running_cages;
use crate::error::CommandResult;
use ironcage_control::Request;

/// Close a channel of a running cage, at both ends
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the channel
    #[arg(value_name = "NAME")]
    name: String,
    /// Either cage of the channel: ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
}

pub(super) fn run(args: Args) -> CommandResult {
    let cage = cages::connect(&args.id)?;
    let name = args.name;
    request(&cage, &Request::CloseChannel { name }, &[])?;
    Ok(0)
}
