//! `ironcage revoke`: takes permissions of a running cage back.

use super::leases::holders_in_words;
use crate::completed::running_cages;
use crate::error::CommandResult;
use crate::running;
use crate::values::count;
use ironcage_runtime::client::revoke;

/// Take permissions of a running cage back
///
/// It waits until each is over. `revoked` is said only where nobody in the cage has anything of
/// it any more, by the kernel's word; who still uses it is given the policy's grace, and then
/// killed or left with what it has open, as the policy says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the cage, its beginning, or the cage's name
    #[arg(value_name = "ID", add = running_cages())]
    id: String,
    /// Number of the lease
    #[arg(value_name = "LEASE", required_unless_present = "all", conflicts_with = "all", value_parser = count::<u32>)]
    lease: Option<u32>,
    /// Every lease of the cage
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = running::connect(&args.id)?;
    revoke(&connection, args.lease, |ended| {
        anstream::println!("lease {}: {}", ended.number, ended.end.name());
        for line in holders_in_words(&ended.holders) {
            anstream::println!("  {line}");
        }
    })
    .map_err(running::said)?;
    Ok(0)
}
