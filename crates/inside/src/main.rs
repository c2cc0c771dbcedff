//! The `ironcage-inside` program, which every cage with a ceiling has as `/.ironcage/bin/ironcage`.
//!
//! It runs as the agent, under every layer of the cage. The agent can read, copy or ignore it: it
//! can do nothing that the agent could not do with the socket itself. So it contains nothing else,
//! and above all no supervisor.
#![forbid(unsafe_code)]

mod cage_daemon;
mod container_cover;
mod container_exec;
mod container_init;
mod shim;
mod tool;

use clap::{Parser, Subcommand};
use ironcage_command::error::{CliError, CommandResult, EXIT_OURS};
use ironcage_command::failure::FailureCode;
use ironcage_command::inside;
use std::process::ExitCode;

/// Request permissions, start child cages and use channels
///
/// This is the part of Ironcage inside a cage. The `ironcage` on the host starts cages and grants
/// permissions.
#[derive(Debug, Parser)]
#[command(name = "ironcage", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Agent(inside::Command),
    #[command(name = "__tool", hide = true)]
    Tool(tool::Args),
    #[command(name = "__daemon", hide = true)]
    Daemon(cage_daemon::Args),
    #[command(name = "__container-init", hide = true)]
    ContainerInit,
    #[command(name = "__container-cover", hide = true)]
    ContainerCover(container_cover::Args),
    #[command(name = "__container-exec", hide = true)]
    ContainerExec(container_exec::Args),
    #[command(name = "__container-filtered", hide = true)]
    ContainerFiltered,
}

impl Command {
    fn run(self) -> CommandResult {
        match self {
            Command::Agent(command) => command.run(),
            Command::Tool(args) => tool::run(args),
            Command::Daemon(args) => cage_daemon::run(&args),
            Command::ContainerInit => container_init::run(),
            Command::ContainerCover(args) => container_cover::run(&args),
            Command::ContainerExec(args) => container_exec::run(&args),
            Command::ContainerFiltered => container_init::filtered(),
        }
    }
}

/// The answer to a command that starts cages on the host.
fn nested(error: &clap::Error) -> Option<CliError> {
    const STARTS: [&str; 4] = ["run", "shell", "exec", "learn"];
    let word = std::env::args().nth(1)?;
    let unknown = error.kind() == clap::error::ErrorKind::InvalidSubcommand;
    (unknown && STARTS.contains(&word.as_str())).then(|| {
        CliError::new(format!(
            "cannot use `ironcage {word}` here: you are in a cage"
        ))
        .with_failure(FailureCode::InCage)
        .hint("use `ironcage child -- COMMAND`, if the cage's policy allows child cages")
        .hint("`ironcage ask --help` describes how to request permissions")
    })
}

fn main() -> ExitCode {
    if let Some(name) = shim::invoked_as() {
        return shim::run(name);
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => {
            if let Some(nested) = nested(&error) {
                nested.print();
                return ExitCode::from(EXIT_OURS);
            }
            // Printing can only fail because nobody is left to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_OURS } else { 0 });
        }
    };
    match command.run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.print();
            ExitCode::from(EXIT_OURS)
        }
    }
}
