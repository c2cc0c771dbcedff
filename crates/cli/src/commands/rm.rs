//! `ironcage rm`.

use crate::cages;
use crate::completion::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::failure::FailureCode;
use ironcage_client::ClientError;
use ironcage_control::Request;

/// Remove the saved output of ended background cages
///
/// Audit logs are kept; `ironcage audit prune` removes those.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kill running cages first
    #[arg(short, long)]
    force: bool,
    /// Remove the output of all ended cages
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Cage IDs, unique ID prefixes, or names
    #[arg(required_unless_present = "all", value_name = "ID", add = kept_cages())]
    ids: Vec<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = cages::all()?;
    let kept = |error: std::io::Error| {
        CliError::new(format!(
            "cannot remove the output of background cages: {error}"
        ))
    };
    let mut ids = Vec::new();
    for text in &args.ids {
        ids.push(cages::find(&cages, text)?);
    }
    if args.all {
        for id in cages.archive().list().map_err(kept)? {
            if !cages.is_running(&id).map_err(cages::client_error)? {
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
                    Err(error) => return Err(cages::client_error(error)),
                }
            }
            Ok(_) | Err(ClientError::Silent { .. }) => {
                return Err(
                    CliError::new(format!("cannot remove cage {id}: it is running"))
                        .with_failure(FailureCode::CageRunning)
                        .hint(format!(
                            "`ironcage stop {id}` to stop it, --force to kill it"
                        )),
                );
            }
            Err(ClientError::NotRunning { .. }) => {}
            Err(error) => return Err(cages::client_error(error)),
        }
        if cages.archive().has(&id) {
            cages.archive().remove(&id).map_err(kept)?;
        } else if !args.force {
            return Err(
                CliError::new(format!("cannot remove cage {id}: no output is kept"))
                    .with_failure(FailureCode::OutputNotKept),
            );
        }
        anstream::println!("{id}");
    }
    Ok(0)
}
