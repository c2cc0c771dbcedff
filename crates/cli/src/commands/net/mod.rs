//! `ironcage net`: the connections of a cage, and the network rules of a running one.

mod allow;
mod connections;
mod deny;
mod follow;
mod limit;
mod publish;
mod remove;
mod reset;
mod rules;

use crate::cages;
use crate::completion::{recorded_cages, running_cages};
use crate::error::{CliError, CommandResult};
use crate::output::print;
use clap::Subcommand;
use ironcage_control::{NetworkRequest, NetworkRules, Reply};
use ironcage_model::{HostRule, HttpRule, NetworkVerdict};

/// Show the connections of a cage, or change its network rules
///
/// Without a command: shows each destination with its rule, its byte counts and what was denied,
/// and how to allow it. The egress proxy decides and records every connection: the first of a
/// kind at once, the rest as totals. With -f each connection of a running cage is shown as it
/// happens.
///
/// The commands change the rules of a running cage, at once and until it ends; connections that no
/// longer match are closed.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Cage ID, unique ID prefix, name, or `last` [default: last]
    #[arg(add = recorded_cages())]
    cage: Option<String>,
    /// Continue until the cage ends
    #[arg(short, long)]
    follow: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Allow(allow::Args),
    Deny(deny::Args),
    Remove(remove::Args),
    Reset(reset::Args),
    Rules(rules::Args),
    Limit(limit::Args),
    Publish(publish::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Some(Command::Allow(args)) => allow::run(args),
        Some(Command::Deny(args)) => deny::run(args),
        Some(Command::Remove(args)) => remove::run(args),
        Some(Command::Reset(args)) => reset::run(args),
        Some(Command::Rules(args)) => rules::run(args),
        Some(Command::Limit(args)) => limit::run(args),
        Some(Command::Publish(args)) => publish::run(args),
        None => connections::run(args.cage.as_deref(), args.follow, args.json),
    }
}

#[derive(Debug, clap::Args)]
struct CageArgument {
    /// Cage ID, unique ID prefix, or name
    #[arg(value_name = "CAGE", add = running_cages())]
    cage: String,
}

impl CageArgument {
    fn request(&self, request: NetworkRequest) -> Result<Reply, CliError> {
        let connection = cages::connect(&self.cage)?;
        connection.ask_network(request).map_err(cages::client_error)
    }

    /// Requests a change, and prints its outcome after `what`.
    fn change(&self, request: NetworkRequest, what: &str) -> CommandResult {
        match self.request(request)? {
            Reply::NetworkChanged { numbers, closed } => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                let numbers = match numbers.as_slice() {
                    [] => String::new(),
                    [one] => format!(" rule {one}"),
                    more => format!(" rules {}", more.join(", ")),
                };
                let closed = match closed {
                    0 => String::new(),
                    1 => "; closed 1 open connection".to_owned(),
                    more => format!("; closed {more} open connections"),
                };
                print(|out| writeln!(out, "{what}{numbers}{closed}"))?;
                Ok(0)
            }
            other => Err(cages::unexpected(&other)),
        }
    }

    fn add_rule(
        &self,
        verdict: NetworkVerdict,
        rule: HostRule,
        requests: Option<HttpRule>,
    ) -> CommandResult {
        let request = NetworkRequest::Add {
            verdict,
            rule,
            requests,
        };
        self.change(request, "added")
    }

    fn rules(&self) -> Result<NetworkRules, CliError> {
        match self.request(NetworkRequest::Rules)? {
            Reply::NetworkRules(rules) => Ok(*rules),
            other => Err(cages::unexpected(&other)),
        }
    }
}
