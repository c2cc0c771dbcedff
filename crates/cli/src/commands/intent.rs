//! `ironcage intent`: what a shell command needs, as its text tells.

use super::audit::print;
use crate::error::{CliError, CommandResult};
use ironcage_intent::{Context, Needs, Shell, Table};
use ironcage_model::Printable;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// Say what a shell command needs: programs, files, hosts, and what its text does not tell.
///
/// Nothing is executed and nothing is granted. With `-` the command is read from the standard
/// input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, as it would be given to a shell
    command: String,
    /// Where it would run [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// More than this of a command is not read.
const LONGEST: u64 = 1024 * 1024;

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let here = std::env::current_dir()
        .map_err(|error| CliError::new(format!("cannot tell the current directory: {error}")))?;
    let context = Context {
        cwd: args.cwd.map_or_else(|| here.clone(), |cwd| here.join(cwd)),
        home: std::env::var_os("HOME").map(PathBuf::from),
    };
    let command = match args.command.as_str() {
        "-" => {
            let mut text = String::new();
            let read = io::stdin().lock().take(LONGEST).read_to_string(&mut text);
            read.map_err(|error| CliError::new(format!("cannot read the command: {error}")))?;
            text
        }
        _ => args.command,
    };
    let table = Table::shipped().map_err(|error| CliError::from_error(&error))?;
    let needs = Shell::new(&table).read(&command, &context);
    print(|out| match args.json {
        true => {
            serde_json::to_writer_pretty(&mut *out, &needs)?;
            writeln!(out)
        }
        false => tell(out, &needs),
    })?;
    Ok(0)
}

fn tell(out: &mut dyn Write, needs: &Needs) -> io::Result<()> {
    let mut line = |label: &str, entries: Vec<String>| {
        for (index, entry) in entries.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            writeln!(out, "{label:<10}{}", Printable::new(entry))?;
        }
        Ok::<(), io::Error>(())
    };
    let paths = |paths: &std::collections::BTreeSet<PathBuf>| {
        paths
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    line("runs", needs.programs.iter().cloned().collect())?;
    line("reads", paths(&needs.reads))?;
    line("writes", paths(&needs.writes))?;
    line(
        "contacts",
        needs.destinations.iter().map(ToString::to_string).collect(),
    )?;
    let unknown = needs.unknown.iter();
    line(
        "unknown",
        unknown
            .map(|unknown| format!("{}: {}", unknown.what, unknown.why))
            .collect(),
    )
}
