//! `ironcage logs`: the output of a background cage.

use crate::completed::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::running;
use ironcage_runtime::client::{LogOptions, logs};

/// Show the output of a background cage
///
/// Output and errors together, as they came. The last 8 to 16 MiB are kept, until
/// `ironcage rm` removes them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Go on until the cage is gone
    #[arg(short, long)]
    follow: bool,
    /// Only this many lines from the end
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Let through what makes your terminal act or answer: clipboard, notifications, reports
    #[arg(long)]
    raw_terminal: bool,
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = kept_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = running::cages()?;
    let id = running::find(&cages, &args.id)?;
    if !cages.archive().has(&id) {
        let why = match cages.is_running(&id).map_err(running::said)? {
            true => format!("the cage {id} runs in the foreground: its output goes to its caller"),
            false => format!("no output is kept of {id}"),
        };
        return Err(CliError::new(why).hint("`ironcage run -d` starts a cage in the background"));
    }
    let options = LogOptions {
        tail: args.tail,
        follow: args.follow,
        raw_terminal: args.raw_terminal,
    };
    logs(&cages, &id, options).map_err(running::said)?;
    Ok(0)
}
