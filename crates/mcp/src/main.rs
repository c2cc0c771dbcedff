//! The `ironcage-mcp` program: the gateway that holds tool calls to a policy, and Ironcage as an MCP
//! server.
//!
//! `ironcage mcp` executes it. It is apart so that the program that starts cages has neither tokio
//! nor a protocol of agents in it. The gateway starts each server by `ironcage run`, in a cage of its own.
#![forbid(unsafe_code)]
#![allow(
    deprecated,
    reason = "the revision of 2026-07-28 deprecates roots, sampling and logging; earlier peers use them"
)]

mod approve;
mod audit;
mod catalog;
mod error;
mod gateway;
mod http;
mod launch;
mod leases;
mod lines;
mod pins;
mod relay;
mod results;
mod server;
mod settings;
mod upstream;
mod wrap;

use clap::{Parser, Subcommand};
use error::McpError;
use ironcage_command::error::{CliError, EXIT_OURS};
use ironcage_command::mcp::{Action, Args};
use settings::Settings;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;

/// Hold the tool calls of agents to a policy
#[derive(Debug, Parser)]
#[command(name = "ironcage", version, max_term_width = 100)]
struct Cli {
    /// Ironcage's state directory
    #[arg(long, hide = true)]
    state: PathBuf,
    /// The workspace
    #[arg(long, hide = true)]
    workspace: PathBuf,
    /// The program that starts cages
    #[arg(long, hide = true)]
    ironcage: PathBuf,
    /// The descriptor of the rules
    #[arg(long, hide = true)]
    rules: Option<RawFd>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mcp(Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing can only fail because nobody is left to read it.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_OURS } else { 0 });
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let shown = CliError::from_error(&error);
            match error.hint() {
                Some(hint) => shown.hint(hint),
                None => shown,
            }
            .print();
            ExitCode::from(EXIT_OURS)
        }
    }
}

fn run(cli: Cli) -> Result<(), McpError> {
    let Command::Mcp(args) = cli.command;
    let settings = Settings::new(cli.state, cli.workspace, cli.ironcage, cli.rules)?;
    match args.command {
        None => {
            let server = server::run(settings, args.profile, args.policy, args.listen);
            runtime()?.block_on(server)
        }
        Some(Action::Gateway(args)) => runtime()?.block_on(gateway::run(settings, args)),
        Some(Action::Approve(args)) => match args.what.parse() {
            Ok(number) => answer(&settings, number, true),
            Err(_) => runtime()?.block_on(approve::run(settings, args)),
        },
        Some(Action::Deny { call, .. }) => answer(&settings, call, false),
        Some(Action::Pins { json, .. }) => approve::list(&settings, json),
        Some(Action::Wrap { file, dry_run }) => wrap::run(&file, wrap::Direction::Wrap, dry_run),
        Some(Action::Unwrap { file, dry_run }) => {
            wrap::run(&file, wrap::Direction::Unwrap, dry_run)
        }
        Some(Action::Relay { url, token }) => {
            runtime()?.block_on(relay::run(&url, token.as_deref()))
        }
    }
}

/// A person's answer to a call of this workspace.
fn answer(settings: &Settings, number: u64, allowed: bool) -> Result<(), McpError> {
    settings.calls()?.answer(number, allowed)?;
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime, McpError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all();
    builder.build().map_err(McpError::Runtime)
}
