//! `ironcage stop`: end running cages.

use crate::completed::running_cages;
use crate::error::CommandResult;
use crate::running;
use ironcage_control::Request;
use ironcage_runtime::client::ClientError;

/// End running cages
///
/// The command gets SIGTERM; what has not ended in time is killed with everything in its cage. In
/// a sticky cage every process gets the signal.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long the command may take to end by itself, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    time: f64,
    /// Ids of cages, their beginnings, or names
    #[arg(required = true, value_name = "ID", add = running_cages())]
    ids: Vec<String>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    // Negative and what is no number become zero; the longest is longer than any cage lives.
    let milliseconds = (args.time * 1000.0) as u64;
    let cages = running::cages()?;
    let mut connections = Vec::new();
    for text in &args.ids {
        let id = running::find(&cages, text)?;
        let connection = cages.connect(&id).map_err(running::said)?;
        // A supervisor that is stopped itself does not answer, and would be waited for forever.
        match connection.ask(&Request::Stop { milliseconds }) {
            Ok(_) | Err(ClientError::Gone { .. }) => connections.push(connection),
            Err(error) => return Err(running::said(error)),
        }
    }
    for connection in connections {
        match connection.await_end() {
            // Without a word is an end too.
            Ok(_) | Err(ClientError::Gone { .. }) => anstream::println!("{}", connection.id()),
            Err(error) => return Err(running::said(error)),
        }
    }
    Ok(0)
}
