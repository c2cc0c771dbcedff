//! The `ironcage-lab` program: the containment suite and the benchmarks, which try `ironcage` from
//! outside, as users do. It is apart so that the program that starts cages has no attack in it.
//!
//! `ironcage probe` and `ironcage bench` execute it with their own arguments, and it executes
//! itself: as the stage, inside the sandbox under test, and as what a bench times.
#![forbid(unsafe_code)]

mod bench;
mod probe;

use clap::{Parser, Subcommand};
use ironcage_command::error::{CliError, CommandResult, EXIT_OURS};
use ironcage_command::lab;
use ironcage_programs::FindError;
use std::process::ExitCode;

/// Try what `ironcage` holds, and measure what it costs
///
/// `ironcage probe` and `ironcage bench` are carried out by this program.
#[derive(Debug, Parser)]
// Who reads its help typed `ironcage`.
#[command(name = "ironcage", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Probe(lab::probe::Args),
    Bench(lab::bench::Args),
    #[command(name = "__bench-floor", hide = true)]
    BenchFloor(bench::FloorArgs),
    #[command(name = "__bench-launcher", hide = true)]
    BenchLauncher(bench::LauncherArgs),
    #[command(name = "__bench-network", hide = true)]
    BenchNetwork(bench::NetworkClientArgs),
    #[command(name = "__bench-syscalls", hide = true)]
    BenchSyscalls,
    #[command(name = "__bench-tools", hide = true)]
    BenchTools,
}

impl Command {
    fn run(self) -> CommandResult {
        match self {
            Command::Probe(args) => probe::run(args),
            Command::Bench(args) => bench::run(args),
            Command::BenchFloor(args) => bench::run_floor(args),
            Command::BenchLauncher(args) => bench::run_launcher(args),
            Command::BenchNetwork(args) => bench::run_network_client(args),
            Command::BenchSyscalls => bench::run_syscalls(),
            Command::BenchTools => bench::run_tools(),
        }
    }
}

/// An error about a program that is not there.
fn missing(error: &FindError) -> CliError {
    CliError::from_error(error).hint(error.hint())
}

fn main() -> ExitCode {
    if ironcage_probe::hostile_guest::is_here() {
        ironcage_probe::hostile_guest::run();
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => {
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
