//! `ironcage inspect`: what a running cage is, as JSON.

use crate::completed::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::running;
use ironcage_control::{Reply, Request};

/// Show what a running cage is, as JSON
///
/// What its supervisor says now: command, workspace, process ids, execs, and what each layer
/// enforces. `ironcage audit show` has what it did.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = kept_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = running::connect(&args.id)?;
    match connection.ask(&Request::Describe).map_err(running::said)? {
        Reply::Description(description) => {
            let text = json::pretty(&description).map_err(CliError::new)?;
            anstream::println!("{text}");
            Ok(0)
        }
        _ => Err(CliError::new("the supervisor answered something else")),
    }
}
