//! `ironcage attach`.

use crate::cages;
use crate::completion::running_cages;
use crate::error::CommandResult;
use ironcage_client::{Attachment, attach};

/// Attach to the command of a background cage
///
/// Shows its output from now on (`ironcage logs` has the earlier output). It receives your input if
/// it was started with -t or -i. Ctrl-P Ctrl-Q detaches and leaves it running; without a terminal
/// Ctrl-C does the same.
///
/// Exit status: that of the command if it ends while you are attached; 0 if you detach.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pass escape sequences through that act on your terminal: clipboard, notifications, reports
    #[arg(long)]
    raw_terminal: bool,
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = cages::connect(&args.id)?;
    let how = attach(&connection, args.raw_terminal).map_err(cages::client_error)?;
    match how {
        Attachment::Left => {
            anstream::eprintln!(
                "ironcage: detached from {}; it continues to run",
                connection.id()
            );
            Ok(0)
        }
        Attachment::Ended(ending) => Ok(ending.exit_code()),
    }
}
