//! `ironcage wait`: until a cage is gone.

use super::audit::ending_in_words;
use crate::completed::kept_cages;
use crate::error::{CliError, CommandResult};
use crate::pending::tell_left;
use crate::running;
use ironcage_control::Request;
use ironcage_model::Ending;
use ironcage_runtime::client::ClientError;

/// Wait until a cage is gone, and exit as `ironcage run` would have
///
/// One that is over already is looked up in its record.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = kept_cages())]
    id: String,
    /// Do not say where what the cage changed is kept
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let cages = running::cages()?;
    let id = running::find(&cages, &args.id)?;
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
        // It was over already, or ended between two words: the record has it.
        Ok(None) | Err(ClientError::Gone { .. }) => cages.ending(&id).map_err(running::said)?,
        Err(error) => return Err(running::said(error)),
    };
    match ending {
        Some(ending) => {
            if !matches!(ending, Ending::Exited { .. } | Ending::Stopped) {
                anstream::eprintln!("ironcage: {}", ending_in_words(&ending));
            }
            if !args.quiet {
                tell_left(&id)?;
            }
            Ok(ending.exit_code())
        }
        None => Err(CliError::new(format!(
            "the cage {id} was killed together with its supervisor"
        ))),
    }
}
