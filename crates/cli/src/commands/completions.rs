//! `ironcage completions`: scripts with which a shell asks this program how a line could go on.

use crate::error::{CliError, CommandResult};
use crate::values::Offered;
use clap_complete::env::Shells;

/// The variable by which a shell says that it asks, and which one it is.
pub(crate) const ASKED: &str = "IRONCAGE_COMPLETE";

/// Print a completion script for a shell
///
/// The script asks `ironcage` itself at each press of the key, so that cages, changes and profiles
/// are those that are there now. For example:
/// `ironcage completions bash > /etc/bash_completion.d/ironcage`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_parser = Offered::shells())]
    shell: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    super::man::print(&script(&args.shell)?)
}

fn script(shell: &str) -> Result<Vec<u8>, CliError> {
    let shells = Shells::builtins();
    let known = || shells.names().collect::<Vec<_>>().join(", ");
    let found = shells.completer(shell).ok_or_else(|| {
        CliError::new(format!(
            "there are no completions for `{}`",
            shell.escape_debug()
        ))
        .hint(format!("the shells: {}", known()))
    })?;
    let mut script = Vec::new();
    found
        .write_registration(ASKED, "ironcage", "ironcage", "ironcage", &mut script)
        .map_err(CliError::new)?;
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use std::ffi::OsString;

    fn offered(line: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let last = words.len() - 1;
        let mut command = crate::Cli::command();
        clap_complete::engine::complete(&mut command, words, last, None)
            .expect("an answer")
            .into_iter()
            .map(|one| one.get_value().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn names_of_profiles_layers_and_groups_are_offered() {
        for (line, name) in [
            (["ironcage", "run", "--profile", ""], "coding-agent"),
            (["ironcage", "run", "--allow-degraded", ""], "net-ns"),
            (["ironcage", "run", "--syscalls", ""], "minimal"),
            (["ironcage", "run", "--cap", ""], "CAP_CHOWN"),
        ] {
            let offered = offered(&line);
            assert!(
                offered.iter().any(|one| one == name),
                "{line:?}: {offered:?}"
            );
        }
    }

    #[test]
    fn every_shell_has_a_script_that_asks_and_others_are_refused() {
        for shell in Shells::builtins().names() {
            let script = String::from_utf8(script(shell).expect("a script")).expect("text");
            assert!(script.contains(ASKED), "{shell}");
        }
        assert!(script("tcsh").is_err());
    }
}
