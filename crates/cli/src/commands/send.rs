//! `ironcage send` and `ironcage receive`: messages through a channel, inside of a cage.

use super::ask::ask;
use crate::error::{CliError, CommandResult};
use ironcage_control::{Answered, InquiryLine, LONGEST_MESSAGE};
use ironcage_model::Printable;
use std::io::Read as _;

/// Exit status where it was refused.
const DENIED: u8 = 1;
/// Exit status where there is no message.
const EMPTY: u8 = 2;

/// Inside of a cage, send a message through a channel
///
/// The user opens channels (`ironcage channel open`). Exit status: 0 where it was sent, 1 where it
/// was not: not of the channel's type, too long, too many.
#[derive(Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// Name of the channel
    #[arg(value_name = "CHANNEL")]
    channel: String,
    /// The message, as JSON [default: standard input]
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
}

/// Inside of a cage, receive the next message of a channel
///
/// It is printed as JSON. Exit status: 0 where there was one, 1 where there is no such channel, 2
/// where no message came in time.
#[derive(Debug, clap::Args)]
pub(crate) struct ReceiveArgs {
    /// Name of the channel
    #[arg(value_name = "CHANNEL")]
    channel: String,
    /// How many seconds to wait for a message
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

pub(crate) fn send(args: SendArgs) -> CommandResult {
    let text = match args.message {
        Some(text) => text,
        None => {
            let mut text = String::new();
            let input = std::io::stdin().lock().take(LONGEST_MESSAGE as u64 + 1);
            let mut input = input;
            input.read_to_string(&mut text).map_err(CliError::new)?;
            text
        }
    };
    if text.len() > LONGEST_MESSAGE {
        return Err(CliError::new(format!(
            "a message has at most {LONGEST_MESSAGE} bytes"
        )));
    }
    let message = serde_json::from_str(&text)
        .map_err(|error| CliError::new(format!("the message is no JSON: {error}")))?;
    let line = InquiryLine {
        send: Some(args.channel),
        message: Some(message),
        ..InquiryLine::default()
    };
    match ask(&line)? {
        Answered::Sent => Ok(0),
        Answered::Denied { reason } | Answered::Invalid { reason } => Ok(refused(&reason)),
        _ => Err(CliError::new("the cage answered something else")),
    }
}

pub(crate) fn receive(args: ReceiveArgs) -> CommandResult {
    let line = InquiryLine {
        receive: Some(args.channel),
        wait: Some(args.wait).filter(|wait| *wait > 0),
        ..InquiryLine::default()
    };
    match ask(&line)? {
        Answered::Message { message } => {
            // As it is: whoever receives it is a program.
            println!("{message}");
            Ok(0)
        }
        Answered::Empty => Ok(EMPTY),
        Answered::Denied { reason } | Answered::Invalid { reason } => Ok(refused(&reason)),
        _ => Err(CliError::new("the cage answered something else")),
    }
}

fn refused(reason: &str) -> u8 {
    anstream::eprintln!("ironcage: {}", Printable::new(reason));
    DENIED
}
