//! `ironcage logs`.

use crate::cages;
use crate::completion::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use ironcage_client::{LogOptions, logs};

/// Show the output of a background cage
///
/// Standard output and standard error together, in the order of their arrival. The last 8 to 16
/// MiB are kept until `ironcage rm` removes them.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Continue until the cage ends
    #[arg(short, long)]
    follow: bool,
    /// Show only the last N lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Pass escape sequences through that act on your terminal: clipboard, notifications, reports
    #[arg(long)]
    raw_terminal: bool,
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = kept_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = cages::all()?;
    let id = cages::find(&cages, &args.id)?;
    if !cages.archive().has(&id) {
        let why = match cages.is_running(&id).map_err(cages::client_error)? {
            true => format!(
                "cannot show output of cage {id}: it runs in the foreground, and its caller has the output"
            ),
            false => format!("cannot show output of cage {id}: no output is kept"),
        };
        return Err(CliError::new(why)
            .with_failure(FailureCode::OutputNotKept)
            .hint("`ironcage run -d` starts a cage in the background"));
    }
    let options = LogOptions {
        tail: args.tail,
        follow: args.follow,
        raw_terminal: args.raw_terminal,
    };
    logs(&cages, &id, options).map_err(cages::client_error)?;
    Ok(0)
}
