//! `ironcage profile`: the built-in profiles.

mod init;
mod list;
mod show;

use crate::error::{CliError, CommandResult};
use clap::Subcommand;
use ironcage_model::Printable;
use ironcage_policy::{Profile, profile, profiles};

/// List and show profiles, or write a first policy file
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Init(init::Args),
}

pub(crate) fn run(args: Args) -> CommandResult {
    match args.command {
        Command::List(list::Args {}) => list::run(),
        Command::Show(args) => show::run(args),
        Command::Init(args) => init::run(args),
    }
}

fn find(name: &str) -> Result<Profile, CliError> {
    profile(name).ok_or_else(|| {
        let shown = Printable::new(name);
        let names: Vec<&str> = profiles().map(|profile| profile.name).collect();
        CliError::new(format!("unknown profile `{shown}`"))
            .hint(format!("expected one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_does_not_exist_is_not_found() {
        assert!(find("nope").is_err());
        assert!(find("coding-agent").is_ok());
    }
}
