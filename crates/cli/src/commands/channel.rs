//! `ironcage channel`: opens and closes channels between running cages.

use crate::completed::running_cages;
use crate::error::{CliError, CommandResult};
use crate::running;
use ironcage_control::{
    ChannelRequest, ChannelRole, LONGEST_MESSAGE, Reply, Request, Schema, check_name, pair,
};
use ironcage_model::Printable;
use ironcage_runtime::client::Connection;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;

/// Longest schema.
const LONGEST_SCHEMA: usize = 64 * 1024;

const EXAMPLES: &str = "\
Examples:
  ironcage channel open tasks planner worker --schema task.json
  ironcage channel close tasks worker";

/// Open and close channels between running cages
///
/// A channel has a name and a direction, carries JSON of one type, so much at once, so often in a
/// minute and so many unread; every message is on both records, without its contents. Inside,
/// `ironcage send` and `ironcage receive` use it. Each cage's policy says how many it may have
/// ([ceiling] channels).
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Open(OpenArgs),
    Close(CloseArgs),
}

/// Open a channel from one running cage to another
#[derive(Debug, clap::Args)]
struct OpenArgs {
    /// Name of the channel
    #[arg(value_name = "NAME")]
    name: String,
    /// The cage that sends: its id, the beginning of it, or its name
    #[arg(value_name = "FROM", add = running_cages())]
    from: String,
    /// The cage that receives
    #[arg(value_name = "TO", add = running_cages())]
    to: String,
    /// What messages look like: a file with a JSON Schema (type, enum, const, properties, required,
    /// additionalProperties, items, and bounds on items, length and numbers)
    #[arg(long, value_name = "FILE")]
    schema: PathBuf,
    /// Most bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 16 * 1024, value_parser = clap::value_parser!(u32).range(1..=LONGEST_MESSAGE as i64))]
    size: u32,
    /// Most messages in a minute
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=6000))]
    rate: u32,
    /// Most messages that nobody has received yet
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    queue: u32,
}

/// Close a channel of a running cage, and so its other end
#[derive(Debug, clap::Args)]
struct CloseArgs {
    /// Name of the channel
    #[arg(value_name = "NAME")]
    name: String,
    /// One of its cages
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::Open(args) => open(args),
        Command::Close(args) => close(args),
    }
}

fn open(args: OpenArgs) -> CommandResult {
    check_name(&args.name).map_err(|error| CliError::from_error(&error))?;
    let shown = Printable::new(&args.schema).to_string();
    let schema = std::fs::read_to_string(&args.schema)
        .map_err(|error| CliError::new(format!("cannot read the schema {shown}: {error}")))?;
    if schema.len() > LONGEST_SCHEMA {
        return Err(CliError::new(format!(
            "{shown} has more than {LONGEST_SCHEMA} bytes"
        )));
    }
    Schema::read(&schema)
        .map_err(|error| CliError::new(format!("{shown} is no schema for a channel: {error}")))?;
    let (from, to) = (running::connect(&args.from)?, running::connect(&args.to)?);
    if from.id() == to.id() {
        return Err(CliError::new("a channel is between two cages"));
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
    // Where the second does not take its end, the first loses its own with this process.
    let receiving = end(ChannelRole::Receive, &from);
    ask(&to, &Request::OpenChannel(receiving), &[other.as_fd()])?;
    let sending = end(ChannelRole::Send, &to);
    ask(&from, &Request::OpenChannel(sending), &[one.as_fd()])?;
    anstream::println!("channel {}: {} to {}", args.name, from.id(), to.id());
    Ok(0)
}

fn close(args: CloseArgs) -> CommandResult {
    let cage = running::connect(&args.id)?;
    let name = args.name;
    ask(&cage, &Request::CloseChannel { name }, &[])?;
    Ok(0)
}

fn ask(
    cage: &Connection,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), CliError> {
    let reply = cage.ask_with(request, descriptors).map_err(running::said)?;
    match reply {
        Reply::ChannelChanged => Ok(()),
        _ => Err(CliError::new("the supervisor answered something else")),
    }
}
