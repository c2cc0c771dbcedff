//! `ironcage completions`: scripts that complete our commands and flags in a shell.

use crate::error::CommandResult;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

/// Print a completion script for a shell
///
/// For example: `ironcage completions bash > /etc/bash_completion.d/ironcage`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let mut command = crate::Cli::command();
    let mut script = Vec::new();
    generate(args.shell, &mut command, "ironcage", &mut script);
    super::man::print(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_profiles_layers_and_groups_are_completed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            generate(shell, &mut crate::Cli::command(), "ironcage", &mut script);
            let script = String::from_utf8(script).unwrap();
            for name in ["coding-agent", "net-ns", "io-uring", "CAP_CHOWN", "minimal"] {
                assert!(script.contains(name), "{shell}: {name}");
            }
        }
    }
}
