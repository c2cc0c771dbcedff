//! `ironcage completions`: scripts by which a shell asks this program for completions.

use crate::error::{CliError, CommandResult};
use crate::output::print;
use crate::values::SuggestedName;
use clap_complete::env::Shells;

/// Set by a shell that asks for completions, to its own name.
pub(crate) const SHELL_VARIABLE: &str = "IRONCAGE_COMPLETE";

/// Print a completion script for a shell
///
/// The script calls `ironcage` for each completion, so cages, changes and profiles are current. For
/// example:
/// `ironcage completions bash > /etc/bash_completion.d/ironcage`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the shell
    #[arg(value_parser = SuggestedName::shells())]
    shell: String,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let script = script(&args.shell)?;
    print(|out| out.write_all(&script))?;
    Ok(0)
}

fn script(shell: &str) -> Result<Vec<u8>, CliError> {
    let shells = Shells::builtins();
    let known = || shells.names().collect::<Vec<_>>().join(", ");
    let found = shells.completer(shell).ok_or_else(|| {
        CliError::new(format!(
            "cannot print completions: unknown shell `{}`",
            shell.escape_debug()
        ))
        .hint(format!("expected one of {}", known()))
    })?;
    let mut script = Vec::new();
    found
        .write_registration(
            SHELL_VARIABLE,
            "ironcage",
            "ironcage",
            "ironcage",
            &mut script,
        )
        .map_err(CliError::new)?;
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn offered(line: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let last = words.len() - 1;
        let mut command = crate::cli::command();
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
            (["ironcage", "run", "--isolation", ""], "landlock"),
            (["ironcage", "run", "--workspace-mode", ""], "apply"),
            (["ironcage", "run", "--network", ""], "listed"),
            (["ironcage", "run", "--shell", ""], "scoped"),
            (["ironcage", "run", "--side-channels", ""], "cores"),
            (["ironcage", "run", "--allow-bundle", ""], "pip"),
            (["ironcage", "run", "--login", ""], "claude"),
        ] {
            let offered = offered(&line);
            assert!(
                offered.iter().any(|one| one == name),
                "{line:?}: {offered:?}"
            );
        }
    }

    /// Names that completions suggest are names that the parser takes.
    #[test]
    fn what_is_offered_is_accepted() {
        use clap::Parser as _;
        for flag in [
            "--isolation",
            "--workspace-mode",
            "--network",
            "--shell",
            "--side-channels",
        ] {
            for value in offered(&["ironcage", "run", flag, ""]) {
                let words = ["ironcage", "run", flag, value.as_str(), "--", "true"];
                assert!(
                    crate::cli::Cli::try_parse_from(words).is_ok(),
                    "{flag} {value}"
                );
            }
        }
    }

    /// Values that nobody can list: amounts, addresses and words that are made up by who types them.
    const FREE: &[&str] = &[
        "AGE",
        "BYTES",
        "DURATION",
        "HOST",
        "ID|CLASS",
        "LEASE",
        "MESSAGE",
        "N",
        "NAME=ADDRESS",
        "NAME=VALUE",
        "NAME[=SOURCE]@HOST",
        "NAME[=VALUE]",
        "NUMBER",
        "OUTER",
        "OUTER:INNER",
        "PORT",
        "PORTS",
        "PROGRAM",
        "REQUESTS",
        "SECONDS",
        "SIZE",
        "TEXT",
        "TIME",
        "WHAT",
        "[METHOD,..] HOST[/PATH]",
        "[SOURCE@]HOST[,HOST]",
        "URL|env|off",
        // Counts of benchmarks, and the number of a probe, which `ironcage-lab` knows.
        "CAGES",
        "FILES",
        "ID",
        "NUMBER/min",
        "ROUNDS",
        "RUNS",
        "STARTS",
        "TASKS",
        // Keys of an agent, which is not asked while a command line is typed.
        "KEY@HOST[:PORT]",
        "ssh:KEY|gpg:KEY",
        "KEY|FILE",
        // A shell command in one word, or of a program whose arguments are its own.
        "COMMAND",
        // What only the cage or the registry knows.
        "CHANNEL",
        "DIGEST",
        "IMAGE",
        "USER[:GROUP]",
        // What only the service, the gateway or the user's network knows.
        "ADDRESS",
        "ORIGIN",
        "PROJECT",
        "SERVER|CALL",
        "CALL",
        // Names that are given here for the first time, or once.
        "NAME",
        "TO",
        "FROM",
        "PROFILE|FILE",
        "PROFILE=N",
        "CAGE",
    ];

    /// Every value is completed from candidates, from paths, or cannot be.
    #[test]
    fn every_value_has_candidates_or_a_path_hint() {
        fn walk(command: &clap::Command, path: &str, missing: &mut Vec<String>) {
            let path = format!("{path} {}", command.get_name());
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let takes = arg.get_action().takes_values();
                let hinted = arg.get_value_hint() != clap::ValueHint::Unknown;
                let listed = !arg.get_possible_values().is_empty()
                    || arg
                        .get::<clap_complete::engine::ArgValueCandidates>()
                        .is_some()
                    || arg
                        .get::<clap_complete::engine::ArgValueCompleter>()
                        .is_some();
                let names = arg.get_value_names().unwrap_or_default();
                let free = names.iter().any(|name| FREE.contains(&name.as_str()));
                if takes && !hinted && !listed && !free {
                    missing.push(format!("{path} {} {names:?}", arg.get_id()));
                }
            }
            let subcommands = command.get_subcommands();
            for sub in subcommands.filter(|sub| !sub.is_hide_set()) {
                walk(sub, &path, missing);
            }
        }
        let mut missing = Vec::new();
        walk(&crate::cli::command(), "", &mut missing);
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    #[test]
    fn every_shell_has_a_script_that_asks_and_others_are_refused() {
        for shell in Shells::builtins().names() {
            let script = String::from_utf8(script(shell).expect("a script")).expect("text");
            assert!(script.contains(SHELL_VARIABLE), "{shell}");
        }
        assert!(script("tcsh").is_err());
    }
}
