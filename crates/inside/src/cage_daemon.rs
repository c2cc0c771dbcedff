//! `ironcage __daemon`: the command of a cage of the service, and the relay to it.

use ironcage_command::error::{CliError, CommandResult};

/// Serve processes and files of this cage to the service
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the daemon's socket
    name: String,
    /// Connect standard input and output to the daemon
    #[arg(long)]
    relay: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let (done, what) = match args.relay {
        true => (
            ironcage_cage_daemon::relay(&args.name),
            "connect to the cage's daemon",
        ),
        false => (ironcage_cage_daemon::serve(&args.name), "serve the cage"),
    };
    done.map(|()| 0)
        .map_err(|error| CliError::new(format!("cannot {what}: {error}")))
}
