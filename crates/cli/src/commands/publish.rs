//! `ironcage publish`: ports of a running cage's at the host's loopback.

use super::audit::print;
use crate::completed::running_cages;
use crate::error::CommandResult;
use crate::running;
use ironcage_control::{NetworkRequest, Reply};
use ironcage_model::Publish;
use ironcage_runtime::client::ClientError;

/// Reach ports of a running cage's at the host's loopback, or show those that are
///
/// A server inside that listens on its own loopback is reached at 127.0.0.1 of the host, by
/// every user of it. Several cages can have the same port inside.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cage: its id or the beginning of it, or its name
    #[arg(value_name = "CAGE", add = running_cages())]
    cage: String,
    /// OUTER:INNER, such as 8080:3000; 0:3000 takes any port that is free
    #[arg(value_name = "PORTS")]
    ports: Vec<Publish>,
    /// No longer reach what is published at this port of the host's
    #[arg(long, value_name = "OUTER", conflicts_with = "ports")]
    remove: Vec<u16>,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let connection = running::connect(&args.cage)?;
    for outer in &args.remove {
        let request = NetworkRequest::Unpublish { outer: *outer };
        match connection.ask_network(request).map_err(running::said)? {
            Reply::NetworkChanged { .. } => {}
            other => return Err(running::said(ClientError::Answer(format!("{other:?}")))),
        }
    }
    for wanted in &args.ports {
        let publish = connection.publish(*wanted).map_err(running::said)?;
        shown(publish)?;
    }
    if args.ports.is_empty() && args.remove.is_empty() {
        match connection
            .ask_network(NetworkRequest::Rules)
            .map_err(running::said)?
        {
            Reply::NetworkRules(rules) => rules.published.into_iter().try_for_each(shown)?,
            other => return Err(running::said(ClientError::Answer(format!("{other:?}")))),
        }
    }
    Ok(0)
}

fn shown(publish: Publish) -> Result<(), crate::error::CliError> {
    let Publish { outer, inner } = publish;
    print(|out| writeln!(out, "127.0.0.1:{outer} is {inner} inside"))
}
