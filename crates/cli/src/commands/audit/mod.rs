//! `ironcage audit`: shows, checks, lists and reports on the audit logs of cages.
//!
//! Everything but `prune` leaves the logs as they are. Text that a cage put into its log is printed escaped, as JSON
//! too.

mod key;
mod list;
mod prune;
mod report;
mod show;
mod signed_report;
mod verify;

use crate::command_group::command_group;

/// Show, verify, list, report on and prune audit logs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

command_group! {
    Show => show,
    Verify => verify,
    List => list,
    Prune => prune,
    Report => report,
    Key => key ref,
}
