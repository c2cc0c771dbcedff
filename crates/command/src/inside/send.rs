//! `ironcage send`.

use super::ask::{ask, unexpected};
use crate::error::{CliError, CommandResult};
use ironcage_control::{Answered, CageRequestLine, LONGEST_MESSAGE};
use ironcage_model::{LeaseOutcome, Reason};
use std::io::Read as _;

const DENIED: u8 = 1;

/// Send a message through a channel (experimental)
///
/// The user opens channels with `ironcage channel open`.
///
/// Exit status: 0 if the message was sent; 1 if it was denied, because it is not of the channel's
/// type, too long, or over the limits.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the channel
    #[arg(value_name = "CHANNEL")]
    channel: String,
    /// Message, as JSON [default: standard input]
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
}

pub fn run(args: Args) -> CommandResult {
    let text = match args.message {
        Some(text) => text,
        None => {
            let mut text = String::new();
            let mut input = std::io::stdin().lock().take(LONGEST_MESSAGE as u64 + 1);
            input
                .read_to_string(&mut text)
                .map_err(|error| CliError::new(format!("cannot read the message: {error}")))?;
            text
        }
    };
    if text.len() > LONGEST_MESSAGE {
        return Err(CliError::new(format!(
            "cannot send the message: it exceeds {LONGEST_MESSAGE} bytes"
        )));
    }
    let message = serde_json::from_str(&text).map_err(|error| {
        CliError::new(format!("cannot send the message: invalid JSON: {error}"))
    })?;
    let line = CageRequestLine {
        send: Some(args.channel),
        message: Some(message),
        ..CageRequestLine::default()
    };
    match ask(&line)? {
        Answered::Sent => Ok(0),
        Answered::Outcome(LeaseOutcome::Denied { reason }) | Answered::Invalid { reason } => {
            Ok(denied(&reason))
        }
        _ => Err(unexpected()),
    }
}

pub(super) fn denied(reason: &Reason) -> u8 {
    anstream::eprintln!("ironcage: {}", reason.with_code());
    DENIED
}
