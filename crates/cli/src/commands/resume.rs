//! `ironcage resume`.

use crate::cages;
use crate::completion::running_cages;
use crate::error::CommandResult;
use ironcage_control::Request;

/// Resume a cage that is paused, or frozen because it diverged
///
/// The supervisor freezes a cage whose connections differ too often from what its model announced
/// (`freeze` under [ceiling.drift] in its policy). `ironcage lease list -f ID` shows what was
/// announced and done, `ironcage diff` what the cage changed. After it is resumed, leases that the
/// ceiling would grant automatically need your approval. `ironcage stop ID` ends it instead.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = cages::all()?;
    let id = cages::find(&cages, &args.id)?;
    let connection = cages.connect(&id).map_err(cages::client_error)?;
    connection
        .ask(&Request::Resume)
        .map_err(cages::client_error)?;
    anstream::println!("{id}");
    Ok(0)
}
