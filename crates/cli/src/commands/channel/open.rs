//! `ironcage channel open`.

use super::request;
use crate::cages;
use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use ironcage_client::Connection;
use ironcage_control::{
    ChannelRequest, ChannelRole, LONGEST_MESSAGE, Request, Schema, check_name, pair,
};
use ironcage_files::{Links, read_text};
use ironcage_model::Printable;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

const LONGEST_SCHEMA: usize = 64 * 1024;

/// Open a channel from one running cage to another
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name of the channel
    #[arg(value_name = "NAME")]
    name: String,
    /// Sending cage: ID, unique ID prefix, or name
    #[arg(value_name = "FROM", add = running_cages())]
    from: String,
    /// Receiving cage: ID, unique ID prefix, or name
    #[arg(value_name = "TO", add = running_cages())]
    to: String,
    /// JSON Schema of the messages (type, enum, const, properties, required, additionalProperties,
    /// items, and bounds on items, length and numbers)
    #[arg(long, value_name = "FILE")]
    schema: PathBuf,
    /// Maximum size of a message
    #[arg(long, value_name = "BYTES", default_value_t = 16 * 1024, value_parser = clap::value_parser!(u32).range(1..=LONGEST_MESSAGE as i64))]
    size: u32,
    /// Maximum number of messages per minute
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=6000))]
    rate: u32,
    /// Maximum number of unread messages
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    queue: u32,
}

pub(super) fn run(args: Args) -> CommandResult {
    check_name(&args.name).map_err(|error| CliError::from_error(&error))?;
    let shown = Printable::new(&args.schema).to_string();
    let schema = read_text(&args.schema, LONGEST_SCHEMA as u64, Links::Follow)
        .map_err(|error| CliError::from_error(&error))?;
    Schema::read(&schema)
        .map_err(|error| CliError::new(format!("invalid channel schema {shown}: {error}")))?;
    let (from, to) = (cages::connect(&args.from)?, cages::connect(&args.to)?);
    if from.id() == to.id() {
        return Err(CliError::new(
            "cannot open the channel: sender and receiver are the same cage",
        ));
    }
    let (one, other) = pair().map_err(CliError::new)?;
    let end = |role, peer: &Connection| ChannelRequest {
        name: args.name.clone(),
        role,
        peer: peer.id().clone(),
        schema: schema.clone(),
        size: args.size,
        rate: args.rate,
        queue: args.queue,
    };
    // If the sender refuses its end, the receiver loses its own when this process exits.
    let receiving = end(ChannelRole::Receive, &from);
    request(&to, &Request::OpenChannel(receiving), &[other.as_fd()])?;
    let sending = end(ChannelRole::Send, &to);
    request(&from, &Request::OpenChannel(sending), &[one.as_fd()])?;
    anstream::println!("channel {}: {} to {}", args.name, from.id(), to.id());
    Ok(0)
}
