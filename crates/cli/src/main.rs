//! The `ironcage` command: arguments in, exit status out.
//!
//! `cli` lists the commands, and each has a file of its own in `commands/`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_main)]

mod announced;
mod approved_rule;
mod audit_log;
mod cage_flags;
mod cages;
mod change;
mod child_spawner;
mod cli;
mod command_group;
mod commands;
mod completion;
mod confirm;
mod containers;
mod docker_flags;
mod exec_status;
mod failed_start;
mod hidden_files;
mod hidden_sockets;
mod kept_state;
mod key_agents;
mod lost_files;
mod named_hosts;
mod offered_login;
mod output;
mod package_tools;
mod paths;
mod pending_change;
mod pending_request;
mod render;
mod running_change;
mod staged_file;
mod system_changes;
mod tool_calls;
mod unknown_command;
mod unknown_flag;
mod values;
mod version;

use clap::{FromArgMatches as _, Parser, Subcommand};
use cli::{Cli, Command, InsideCli};
use ironcage_command::{error, failure, json};
use std::ffi::OsString;

#[global_allocator]
static ALLOCATOR: ironcage_sys::arena::Arena = ironcage_sys::arena::Arena;

/// The same command line with `run` alone, or `exec` alone.
#[derive(Debug, Parser)]
#[command(name = "ironcage", version = version::VERSION, max_term_width = 100)]
struct RunCli {
    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(commands::run::Args),
}

#[derive(Debug, Parser)]
#[command(name = "ironcage", version = version::VERSION, max_term_width = 100)]
struct ExecCli {
    #[command(subcommand)]
    command: ExecCommand,
}

#[derive(Debug, Subcommand)]
enum ExecCommand {
    Exec(commands::exec::Args),
}

/// Parses the arguments. `run` and `exec` are on the path of every tool call, and building the
/// parser for all commands takes longer than mounting a cage's devices. So these two have parsers
/// of their own, and without flags none at all.
fn parse(line: &[OsString]) -> Result<Command, clap::Error> {
    let Some((verb, rest)) = line.get(1..).and_then(<[_]>::split_first) else {
        return parse_all(line);
    };
    // How shells ask for completions.
    if verb == "--" {
        let here = std::env::current_dir().ok();
        let done = clap_complete::CompleteEnv::with_factory(cli::command_here)
            .var(commands::completions::SHELL_VARIABLE)
            .try_complete(line, here.as_deref())?;
        if done {
            std::process::exit(0);
        }
    }
    if verb == "run" {
        if let Some(args) = commands::run::Args::plain(rest) {
            return Ok(Command::Run(args));
        }
        let RunCommand::Run(args) = RunCli::try_parse_from(line)?.command;
        return Ok(Command::Run(args));
    }
    if verb == "exec" {
        if let Some(args) = commands::exec::Args::plain(rest) {
            return Ok(Command::Exec(args));
        }
        let ExecCommand::Exec(args) = ExecCli::try_parse_from(line)?.command;
        return Ok(Command::Exec(args));
    }
    // Described as they are typed inside: without `inside`.
    if verb == "inside" {
        let words = std::iter::once(OsString::from("ironcage")).chain(rest.iter().cloned());
        return Ok(Command::Inside(InsideCli::try_parse_from(words)?));
    }
    parse_all(line)
}

fn parse_all(line: &[OsString]) -> Result<Command, clap::Error> {
    let matches = cli::command_here().try_get_matches_from(line)?;
    Ok(Cli::from_arg_matches(&matches)?.command)
}

fn report(error: &clap::Error, line: &[OsString]) -> u8 {
    let words = line.get(1..).unwrap_or_default();
    if let Some(unknown) = unknown_command::explain(error, words) {
        unknown.print();
        return error::EXIT_OURS;
    }
    if let Some(answer) = docker_flags::explain(error, words) {
        answer.print();
        return error::EXIT_OURS;
    }
    if let Some(unknown) = unknown_flag::explain(error, words) {
        unknown.print();
        return error::EXIT_OURS;
    }
    // Printing can only fail because nobody is left to read it.
    let _ = error.print();
    if error.use_stderr() {
        error::EXIT_OURS
    } else {
        0
    }
}

ironcage_sys::entry!(run);

#[cfg_attr(test, expect(dead_code, reason = "the tests have a main of their own"))]
fn run() -> u8 {
    let line = ironcage_sys::entry::arguments();
    let command = match parse(&line) {
        Ok(command) => command,
        Err(error) => return report(&error, &line),
    };
    match command.run() {
        Ok(code) => code,
        Err(error) => {
            error.print();
            error::EXIT_OURS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn parsed(verb: &str, line: &str) -> Result<String, clap::Error> {
        let all = ["ironcage", verb].map(OsString::from);
        let command = Cli::try_parse_from(all.into_iter().chain(words(line)))?.command;
        Ok(format!("{command:?}"))
    }

    #[test]
    fn a_plain_command_line_parses_to_the_same_with_and_without_clap() {
        for line in [
            "-- true",
            "-q -- sh -c x",
            "--quiet -- a -q --",
            "-- --",
            "--workspace-mode direct -- true",
            "-q --workspace-mode read-only -- sh --workspace-mode cow",
            "--workspace-mode cow --quiet -- true",
        ] {
            let plain = commands::run::Args::plain(&words(line)).map(Command::Run);
            let plain = plain.map(|command| format!("{command:?}"));
            assert_eq!(plain, Some(parsed("run", line).unwrap()), "{line}");
        }
        for line in ["web -- true", "c0123456789ab -- sh -c x -- -i"] {
            let plain = commands::exec::Args::plain(&words(line)).map(Command::Exec);
            let plain = plain.map(|command| format!("{command:?}"));
            assert_eq!(plain, Some(parsed("exec", line).unwrap()), "{line}");
        }
    }

    #[test]
    fn anything_else_is_left_to_clap() {
        for line in [
            "--",
            "true",
            "-q",
            "-q -q -- true",
            "-d -- true",
            "x -- y",
            "--workspace-mode -- true",
            "--workspace-mode none -- true",
            "--workspace-mode cow --workspace-mode cow -- true",
            "--workspace-mode=cow -- true",
        ] {
            assert!(commands::run::Args::plain(&words(line)).is_none(), "{line}");
        }
        for line in ["-- true", "web --", "-i web -- true", "a b -- true", "web"] {
            assert!(
                commands::exec::Args::plain(&words(line)).is_none(),
                "{line}"
            );
        }
    }
}
