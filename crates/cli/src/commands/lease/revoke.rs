//! `ironcage lease revoke`, or `ironcage revoke`.

use crate::cages;
use crate::completion::running_cages;
use crate::error::CommandResult;
use crate::render::lease::holder_lines;
use crate::values::count;
use ironcage_client::revoke;

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
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = cages::connect(&args.id)?;
    revoke(&connection, args.lease, |ended| {
        anstream::println!("lease {}: {}", ended.number, ended.end.name());
        for line in holder_lines(&ended.holders) {
            anstream::println!("  {line}");
        }
    })
    .map_err(cages::client_error)?;
    Ok(0)
}
