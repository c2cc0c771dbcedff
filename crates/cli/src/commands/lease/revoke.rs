//! `ironcage lease revoke`, or `ironcage revoke`.

use crate::cages;
use crate::completion::running_cages;
use crate::error::{CliError, CommandResult};
use crate::json;
use crate::render::lease::holder_lines;
use crate::values::count;
use ironcage_client::revoke;
use serde_json::json;

/// Revoke leases of a running cage
///
/// Waits for each lease to end. Prints `revoked` only once the kernel confirms that no process in
/// the cage still holds the resource. Processes that still use it get the policy's grace period;
/// after that they are killed, or keep what they have open, as `ceiling.holders` says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// Lease number, as `ironcage lease list` shows it
    #[arg(value_name = "LEASE", required_unless_present = "all", conflicts_with = "all", value_parser = count::<u32>)]
    lease: Option<u32>,
    /// Revoke every lease of the cage
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = cages::connect(&args.id)?;
    let mut list = Vec::new();
    revoke(&connection, args.lease, |ended| {
        if args.json {
            list.push(json!({
                "number": ended.number,
                "end": ended.end.name(),
                "holders": ended.holders,
            }));
            return;
        }
        anstream::println!("lease {}: {}", ended.number, ended.end.name());
        for line in holder_lines(&ended.holders) {
            anstream::println!("  {line}");
        }
    })
    .map_err(cages::client_error)?;
    if args.json {
        anstream::println!("{}", json::line(&list).map_err(CliError::new)?);
    }
    Ok(0)
}
