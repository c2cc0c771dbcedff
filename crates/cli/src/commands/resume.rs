//! `ironcage resume`: lets a cage go on that was stopped for its user to look at.

use crate::completed::running_cages;
use crate::error::CommandResult;
use crate::running;
use ironcage_control::Request;

/// Let a cage go on that was stopped because words and deeds parted
///
/// A cage whose connections differ too often from what its model said is stopped (`freeze` in
/// [ceiling.drift] of its policy). `ironcage leases -f ID` shows what was said and done, `ironcage
/// diff` what it changed. Once it goes on, what its ceiling gives at once is asked for; `ironcage
/// stop ID` ends it instead.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cage's id, its beginning, or its name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = running::cages()?;
    let id = running::find(&cages, &args.id)?;
    let connection = cages.connect(&id).map_err(running::said)?;
    connection.ask(&Request::Resume).map_err(running::said)?;
    anstream::println!("{id}");
    Ok(0)
}
