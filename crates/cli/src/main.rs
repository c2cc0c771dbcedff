//! The `ironcage` command: arguments in, exit status out.
//!
//! Each command has a file of its own in `commands/`; this one only names them.
#![forbid(unsafe_code)]

mod commands;
mod error;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Run AI agents, and every tool call they make, in a cage.
#[derive(Debug, Parser)]
#[command(name = "ironcage", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {}

impl Command {
    fn run(self) -> error::CommandResult {
        match self {}
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.print();
            ExitCode::from(error::EXIT_OURS)
        }
    }
}
