//! `ironcage rm`: remove what is kept of background cages.

use crate::completed::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::running;
use ironcage_control::Request;
use ironcage_runtime::client::ClientError;

/// Remove what is kept of background cages that are over
///
/// That is their output. The record stays: `ironcage audit` has its own ways.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kill cages that are running
    #[arg(short, long)]
    force: bool,
    /// All that are over
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Ids of cages, their beginnings, or names
    #[arg(required_unless_present = "all", value_name = "ID", add = kept_cages())]
    ids: Vec<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = running::cages()?;
    let kept = |error: std::io::Error| {
        CliError::new(format!(
            "cannot remove what is kept of background cages: {error}"
        ))
    };
    let mut ids = Vec::new();
    for text in &args.ids {
        ids.push(running::find(&cages, text)?);
    }
    if args.all {
        for id in cages.archive().list().map_err(kept)? {
            if !cages.is_running(&id).map_err(running::said)? {
                ids.push(id);
            }
        }
    }
    for id in ids {
        match cages.connect(&id) {
            Ok(connection) if args.force => {
                let end = connection
                    .ask(&Request::Stop { milliseconds: 0 })
                    .and_then(|_| connection.await_end());
                match end {
                    Ok(_) | Err(ClientError::Gone { .. }) => {}
                    Err(error) => return Err(running::said(error)),
                }
            }
            Ok(_) | Err(ClientError::Silent { .. }) => {
                return Err(CliError::new(format!("the cage {id} is running"))
                    .hint(format!("`ironcage stop {id}` ends it; --force kills it")));
            }
            Err(ClientError::NotRunning { .. }) => {}
            Err(error) => return Err(running::said(error)),
        }
        if cages.archive().has(&id) {
            cages.archive().remove(&id).map_err(kept)?;
        } else if !args.force {
            return Err(CliError::new(format!("nothing is kept of {id}")));
        }
        anstream::println!("{id}");
    }
    Ok(0)
}
