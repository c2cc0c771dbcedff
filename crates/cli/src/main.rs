//! The `ironcage` command: arguments in, exit status out.
//!
//! Each command has a file of its own in `commands/`; this one only names them.
#![forbid(unsafe_code)]

mod always;
mod ask;
mod asked;
mod cage_flags;
mod change;
mod commands;
mod completed;
mod error;
mod json;
mod live;
mod nursery;
mod pending;
mod places;
mod question;
mod running;
mod shim;
mod values;
mod version;
mod written;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use ironcage_model::Printable;
use std::ffi::OsString;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: ironcage_sys::arena::Arena = ironcage_sys::arena::Arena;

/// Run AI agents, and every tool call they make, in a cage.
#[derive(Debug, Parser)]
#[command(name = "ironcage", version = version::VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(commands::run::Args),
    Ps(commands::ps::Args),
    Exec(commands::exec::Args),
    Grant(commands::grant::Args),
    Revoke(commands::revoke::Args),
    Leases(commands::leases::Args),
    Pending(commands::pending::Args),
    Approve(commands::approve::Args),
    Deny(commands::deny::Args),
    Ask(commands::ask::Args),
    Child(commands::child::Args),
    Channel(commands::channel::Args),
    Send(commands::send::SendArgs),
    Receive(commands::send::ReceiveArgs),
    Logs(commands::logs::Args),
    Attach(commands::attach::Args),
    Inspect(commands::inspect::Args),
    Stats(commands::stats::Args),
    Stop(commands::stop::Args),
    Resume(commands::resume::Args),
    Wait(commands::wait::Args),
    Rm(commands::rm::Args),
    Plan(commands::plan::Args),
    Learn(commands::learn::Args),
    Policy(commands::policy::Args),
    Profile(commands::profile::Args),
    Trust(commands::trust::Args),
    Diff(commands::diff::Args),
    Apply(commands::apply::Args),
    Discard(commands::discard::Args),
    Changes(commands::changes::Args),
    Snapshot(commands::snapshot::Args),
    Restore(commands::snapshot::RestoreArgs),
    Fork(commands::snapshot::ForkArgs),
    Prune(commands::snapshot::PruneArgs),
    State(commands::state::Args),
    Audit(commands::audit::Args),
    Why(commands::why::Args),
    Net(commands::net::Args),
    Intent(commands::intent::Args),
    Publish(commands::publish::Args),
    Bench(commands::bench::Args),
    Doctor(commands::doctor::Args),
    Setup(commands::setup::Args),
    Probe(commands::probe::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
    #[command(name = "__tool", hide = true)]
    Tool(commands::tool::Args),
    #[command(name = "__container-init", hide = true)]
    ContainerInit,
    #[command(name = "__bench-floor", hide = true)]
    BenchFloor(commands::bench::FloorArgs),
    #[command(name = "__bench-launcher", hide = true)]
    BenchLauncher(commands::bench::LauncherArgs),
    #[command(name = "__bench-network", hide = true)]
    BenchNetwork(commands::bench::NetworkClientArgs),
    #[command(name = "__bench-syscalls", hide = true)]
    BenchSyscalls,
}

impl Command {
    fn run(self) -> error::CommandResult {
        match self {
            Command::Run(args) => commands::run::run(args),
            Command::Ps(args) => commands::ps::run(args),
            Command::Exec(args) => commands::exec::run(args),
            Command::Grant(args) => commands::grant::run(args),
            Command::Resume(args) => commands::resume::run(args),
            Command::Revoke(args) => commands::revoke::run(args),
            Command::Leases(args) => commands::leases::run(args),
            Command::Pending(args) => commands::pending::run(args),
            Command::Approve(args) => commands::approve::run(args),
            Command::Deny(args) => commands::deny::run(args),
            Command::Ask(args) => commands::ask::run(args),
            Command::Child(args) => commands::child::run(args),
            Command::Channel(args) => commands::channel::run(args),
            Command::Send(args) => commands::send::send(args),
            Command::Receive(args) => commands::send::receive(args),
            Command::Logs(args) => commands::logs::run(args),
            Command::Attach(args) => commands::attach::run(args),
            Command::Inspect(args) => commands::inspect::run(args),
            Command::Stats(args) => commands::stats::run(args),
            Command::Stop(args) => commands::stop::run(args),
            Command::Wait(args) => commands::wait::run(args),
            Command::Rm(args) => commands::rm::run(args),
            Command::Plan(args) => commands::plan::run(args),
            Command::Learn(args) => commands::learn::run(args),
            Command::Policy(args) => commands::policy::run(args),
            Command::Profile(args) => commands::profile::run(args),
            Command::Trust(args) => commands::trust::run(args),
            Command::Diff(args) => commands::diff::run(args),
            Command::Apply(args) => commands::apply::run(args),
            Command::Discard(args) => commands::discard::run(args),
            Command::Changes(args) => commands::changes::run(args),
            Command::Snapshot(args) => commands::snapshot::run(args),
            Command::Restore(args) => commands::snapshot::restore(args),
            Command::Fork(args) => commands::snapshot::fork(args),
            Command::Prune(args) => commands::snapshot::prune(args),
            Command::State(args) => commands::state::run(args),
            Command::Audit(args) => commands::audit::run(args),
            Command::Why(args) => commands::why::run(args),
            Command::Net(args) => commands::net::run(args),
            Command::Intent(args) => commands::intent::run(args),
            Command::Publish(args) => commands::publish::run(args),
            Command::Bench(args) => commands::bench::run(args),
            Command::Doctor(args) => commands::doctor::run(args),
            Command::Setup(args) => commands::setup::run(args),
            Command::Probe(args) => commands::probe::run(args),
            Command::Completions(args) => commands::completions::run(args),
            Command::Man(args) => commands::man::run(args),
            Command::Tool(args) => commands::tool::run(args),
            Command::ContainerInit => ironcage_runtime::run_container_init(),
            Command::BenchFloor(args) => commands::bench::run_floor(args),
            Command::BenchLauncher(args) => commands::bench::run_launcher(args),
            Command::BenchNetwork(args) => commands::bench::run_network_client(args),
            Command::BenchSyscalls => commands::bench::run_syscalls(),
        }
    }
}

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

/// Parses the arguments. `run` and `exec` are on every tool call's path, and describing all
/// commands to the parser takes longer than mounting a cage's devices: there only the one is
/// described, and where no flag is given not even that.
fn parse() -> Result<Command, clap::Error> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some((verb, rest)) = words.split_first() else {
        return Ok(Cli::try_parse()?.command);
    };
    // How shells ask what could be written next.
    if verb == "--" {
        clap_complete::CompleteEnv::with_factory(<Cli as clap::CommandFactory>::command)
            .var(commands::completions::ASKED)
            .complete();
    }
    if verb == "run" {
        if let Some(args) = commands::run::Args::plain(rest) {
            return Ok(Command::Run(args));
        }
        let RunCommand::Run(args) = RunCli::try_parse()?.command;
        return Ok(Command::Run(args));
    }
    if verb == "exec" {
        if let Some(args) = commands::exec::Args::plain(rest) {
            return Ok(Command::Exec(args));
        }
        let ExecCommand::Exec(args) = ExecCli::try_parse()?.command;
        return Ok(Command::Exec(args));
    }
    Ok(Cli::try_parse()?.command)
}

/// What to type instead, where a command was given without `--` before it: its own flags would
/// be taken for Ironcage's.
fn missing_dashes(error: &clap::Error, args: impl Iterator<Item = OsString>) -> Option<String> {
    let words: Vec<OsString> = args.collect();
    let verb = words.first()?.to_str()?;
    let takes_command = ["run", "plan", "exec", "learn"].contains(&verb);
    // `exec` has the cage first.
    let before = match verb {
        "exec" => "exec ID",
        other => other,
    };
    if !takes_command || words.iter().any(|word| word == "--") {
        return None;
    }
    let ContextValue::String(found) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let unknown = error.kind() == ErrorKind::UnknownArgument && !found.starts_with('-');
    unknown.then(|| {
        let command = Printable::new(found);
        format!("put `--` before the command: ironcage {before} -- {command} ...")
    })
}

/// The commands below a command, where a word was given that is none of them and was taken for
/// something else.
fn commands_below(error: &clap::Error, args: impl Iterator<Item = OsString>) -> Option<String> {
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let words: Vec<OsString> = args.collect();
    let verb = words.first()?.to_str()?;
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    let given = words.find(|word| !word.starts_with('-'))?;
    let cli = Cli::command();
    let below = cli.find_subcommand(verb)?.get_subcommands();
    let names: Vec<&str> = below.map(clap::Command::get_name).collect();
    (!names.is_empty() && !names.contains(&given)).then(|| {
        let given = Printable::new(given);
        format!(
            "`ironcage {verb}` has no command `{given}`; it has {}",
            names.join(", ")
        )
    })
}

fn main() -> ExitCode {
    if let Some(name) = shim::invoked_as() {
        return shim::run(name);
    }
    let command = match parse() {
        Ok(command) => command,
        Err(error) => {
            // Printing can only fail because nobody is left to read it.
            let _ = error.print();
            let args = || std::env::args_os().skip(1);
            let tip = missing_dashes(&error, args()).or_else(|| commands_below(&error, args()));
            if let Some(tip) = tip {
                anstream::eprintln!("  hint: {tip}");
            }
            return ExitCode::from(if error.use_stderr() {
                error::EXIT_OURS
            } else {
                0
            });
        }
    };
    match command.run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.print();
            ExitCode::from(error::EXIT_OURS)
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
    fn a_plain_command_line_says_the_same_with_and_without_the_parser() {
        for line in ["-- true", "-q -- sh -c x", "--quiet -- a -q --", "-- --"] {
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
    fn anything_else_is_left_to_the_parser() {
        for line in ["--", "true", "-q", "-q -q -- true", "-d -- true", "x -- y"] {
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
