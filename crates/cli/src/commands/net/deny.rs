//! `ironcage net deny`.

use super::CageArgument;
use crate::error::{CliError, CommandResult};
use ironcage_model::NetworkVerdict;

/// Deny connections of a running cage to a host, despite allow rules
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
    /// Host, as for --deny-host; host.ironcage:PORT is a loopback port of the host
    #[arg(value_name = "HOST")]
    host: String,
}

pub(super) fn run(args: Args) -> CommandResult {
    let rule = ironcage_policy::denied(&args.host);
    let rule = rule.map_err(|error| CliError::from_error(&error))?;
    args.cage.add_rule(NetworkVerdict::Denied, rule, None)
}
