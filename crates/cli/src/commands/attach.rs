//! `ironcage attach`: join the command of a background cage.

use crate::completed::running_cages;
use crate::error::CommandResult;
use crate::running;
use ironcage_runtime::client::{Attachment, attach};

/// Join the command of a background cage
///
/// Shows its output from now on (`ironcage logs` has what came before). Your keys go to it where
/// it was started with -t or -i. Ctrl-P followed by Ctrl-Q leaves it, and it runs on; without a
/// terminal Ctrl-C does the same.
///
/// Exit status: the command's own when it ends while you are there; 0 when you leave.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Let through what makes your terminal act or answer: clipboard, notifications, reports
    #[arg(long)]
    raw_terminal: bool,
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = running::connect(&args.id)?;
    let how = attach(&connection, args.raw_terminal).map_err(running::said)?;
    match how {
        Attachment::Left => {
            anstream::eprintln!("ironcage: left {}; it runs on", connection.id());
            Ok(0)
        }
        Attachment::Ended(ending) => Ok(ending.exit_code()),
    }
}
