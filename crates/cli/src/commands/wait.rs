//! `ironcage wait`.

use crate::cages;
use crate::completion::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use crate::pending_change::report_left;
use crate::render::event::ending_text;
use ironcage_client::ClientError;
use ironcage_control::Request;
use ironcage_model::Ending;

/// Wait until a cage ends, and exit with its status
///
/// The status is the one that `ironcage run` would have returned. For a cage that has ended
/// already it comes from the audit log.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = kept_cages())]
    id: String,
    /// Do not report the pending change
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = cages::all()?;
    let id = cages::find(&cages, &args.id)?;
    let ended = match cages.connect(&id) {
        Ok(connection) => connection
            .send(&Request::Wait)
            .and_then(|()| connection.await_end())
            .map(Some),
        Err(ClientError::NotRunning { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    let ending = match ended {
        Ok(Some(ending)) => Some(ending),
        // It ended before or during the request: the audit log has it.
        Ok(None) | Err(ClientError::Gone { .. }) => {
            cages.ending(&id).map_err(cages::client_error)?
        }
        Err(error) => return Err(cages::client_error(error)),
    };
    match ending {
        Some(ending) => {
            if !matches!(ending, Ending::Exited { .. } | Ending::Stopped) {
                anstream::eprintln!("ironcage: {}", ending_text(&ending));
            }
            if !args.quiet {
                report_left(&id)?;
            }
            Ok(ending.exit_code())
        }
        None => Err(CliError::new(format!(
            "cannot tell how cage {id} ended: its supervisor was killed"
        ))
        .with_failure(FailureCode::CageKilled)),
    }
}
