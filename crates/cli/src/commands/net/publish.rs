//! `ironcage net publish`.

use super::CageArgument;
use crate::cages;
use crate::error::{CliError, CommandResult};
use crate::output::print;
use ironcage_control::{NetworkRequest, Reply};
use ironcage_model::Publish;

/// Publish ports of a running cage on the host's loopback, or list them
///
/// A server that listens on the cage's loopback becomes reachable at 127.0.0.1 of the host, for
/// every user of the host. Several cages can publish the same inner port.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    cage: CageArgument,
    /// OUTER:INNER, for example 8080:3000; 0:3000 picks a free port
    #[arg(value_name = "PORTS")]
    ports: Vec<Publish>,
    /// Stop publishing the host port OUTER
    #[arg(long, value_name = "OUTER", conflicts_with = "ports")]
    remove: Vec<u16>,
}

pub(super) fn run(args: Args) -> CommandResult {
    for outer in &args.remove {
        let request = NetworkRequest::Unpublish { outer: *outer };
        match args.cage.request(request)? {
            Reply::NetworkChanged { .. } => {}
            other => return Err(cages::unexpected(&other)),
        }
    }
    if !args.ports.is_empty() {
        let connection = cages::connect(&args.cage.cage)?;
        for wanted in &args.ports {
            let publish = connection.publish(*wanted).map_err(cages::client_error)?;
            show(publish)?;
        }
    }
    if args.ports.is_empty() && args.remove.is_empty() {
        let rules = args.cage.rules()?;
        rules.published.into_iter().try_for_each(show)?;
    }
    Ok(0)
}

fn show(publish: Publish) -> Result<(), CliError> {
    let Publish { outer, inner } = publish;
    print(|out| writeln!(out, "127.0.0.1:{outer} -> port {inner} in the cage"))
}
