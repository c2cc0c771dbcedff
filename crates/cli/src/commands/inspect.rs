//! `ironcage inspect`.

use crate::completion::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::{cages, json};
use ironcage_control::{Reply, Request};

/// Describe a running cage as JSON
///
/// The supervisor reports the command, workspace, process IDs, execs, and what each layer enforces.
/// `ironcage audit show` has the cage's history.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = kept_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = cages::connect(&args.id)?;
    match connection
        .ask(&Request::Describe)
        .map_err(cages::client_error)?
    {
        Reply::Description(description) => {
            let text = json::pretty(&description).map_err(CliError::new)?;
            anstream::println!("{text}");
            Ok(0)
        }
        other => Err(cages::unexpected(&other)),
    }
}
