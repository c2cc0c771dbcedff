//! `ironcage net limit`.

use super::CageArgument;
use crate::error::CommandResult;
use crate::render::traffic::limits_text;
use ironcage_control::NetworkRequest;
use ironcage_policy::{NetworkLimit, NetworkLimitName};

/// Set network limits of a running cage; others stay as they are
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
    /// Limits, as for --network-limit, for example bytes-out=100M
    #[arg(value_name = "NAME=VALUE", required = true)]
    limits: Vec<NetworkLimit>,
}

pub(super) fn run(args: Args) -> CommandResult {
    let mut limits = args.cage.rules()?.limits;
    for NetworkLimit { name, value } in args.limits {
        let slot = match name {
            NetworkLimitName::Connections => &mut limits.connections,
            NetworkLimitName::RequestsPerSecond => &mut limits.requests_per_second,
            NetworkLimitName::BytesOutPerHost => &mut limits.bytes_out_per_host,
            NetworkLimitName::BytesOut => &mut limits.bytes_out,
            NetworkLimitName::NewHostsPerMinute => &mut limits.new_hosts_per_minute,
            NetworkLimitName::Body => &mut limits.body,
        };
        *slot = Some(value);
    }
    let what = format!("limits: {}", limits_text(&limits));
    args.cage.change(NetworkRequest::Limits(limits), &what)
}
