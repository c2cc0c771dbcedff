//! `ironcage receive`.

use super::ask::{ask, unexpected};
use super::send::denied;
use crate::error::CommandResult;
use ironcage_control::{Answered, CageRequestLine};
use ironcage_model::LeaseOutcome;

const EMPTY: u8 = 2;

/// Receive the next message of a channel (experimental)
///
/// Prints the message as JSON.
///
/// Exit status: 0 if there was a message, 1 if there is no such channel, 2 if no message arrived in
/// time.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the channel
    #[arg(value_name = "CHANNEL")]
    channel: String,
    /// Seconds to wait for a message
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

pub fn run(args: Args) -> CommandResult {
    let line = CageRequestLine {
        receive: Some(args.channel),
        wait: Some(args.wait).filter(|wait| *wait > 0),
        ..CageRequestLine::default()
    };
    match ask(&line)? {
        Answered::Message { message } => {
            // Unescaped: the reader is a program.
            println!("{message}");
            Ok(0)
        }
        Answered::Empty => Ok(EMPTY),
        Answered::Outcome(LeaseOutcome::Denied { reason }) | Answered::Invalid { reason } => {
            Ok(denied(&reason))
        }
        _ => Err(unexpected()),
    }
}
