//! `ironcage net allow`.

use super::CageArgument;
use crate::error::{CliError, CommandResult};
use ironcage_model::NetworkVerdict;

/// Allow connections of a running cage to a host
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
    /// Host, as for --allow-host; host.ironcage:PORT is a loopback port of the host
    #[arg(value_name = "HOST", required_unless_present = "http")]
    host: Option<String>,
    /// Allow only these requests, as for --http-allow
    #[arg(long, value_name = "[METHOD,..] HOST[/PATH]", conflicts_with = "host")]
    http: Option<String>,
}

pub(super) fn run(args: Args) -> CommandResult {
    let wrong = |error| CliError::from_error(&error);
    let (rule, requests) = match (&args.http, &args.host) {
        (Some(text), _) => {
            let requests = ironcage_policy::requests(text).map_err(wrong)?;
            (requests.host.clone(), Some(requests))
        }
        (None, host) => {
            let host = host.as_deref().unwrap_or_default();
            (ironcage_policy::allowed(host).map_err(wrong)?, None)
        }
    };
    args.cage.add_rule(NetworkVerdict::Allowed, rule, requests)
}
