//! `ironcage intent`: what a command, a tool call or a model's answer says that it needs.

use super::audit::print;
use crate::error::{CliError, CommandResult};
use crate::json;
use ironcage_intent::{Answer, Call, Calls, Context, Encoding, Format, Needs, Said, Shell, Table};
use ironcage_model::Printable;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Say what a shell command needs: programs, files, hosts, and what its text does not tell.
///
/// Also for a tool call as a model writes it (`--call`), and for each call in a model's recorded
/// answer (`--answer`). Nothing is executed and nothing is granted.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("text").required(true))]
pub(crate) struct Args {
    /// The command, as it would be given to a shell; `-` reads it from the standard input
    #[arg(group = "text")]
    command: Option<String>,
    /// A tool call in a file, or `-`: of Anthropic's messages, OpenAI's chat completions or
    /// responses, or MCP
    #[arg(long, value_name = "FILE", group = "text", value_hint = clap::ValueHint::FilePath)]
    call: Option<PathBuf>,
    /// A model's answer in a file, or `-`: a stream of events or one JSON document
    #[arg(long, value_name = "FILE", group = "text", value_hint = clap::ValueHint::FilePath)]
    answer: Option<PathBuf>,
    /// Where it would run [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// As JSON: one object, for an answer one for each call
    #[arg(long)]
    json: bool,
}

/// More than this is not read.
const LONGEST: u64 = 16 * 1024 * 1024;

/// One reading.
#[derive(Debug, serde::Serialize)]
struct Reading {
    /// The tool that is called, and the call's name for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(flatten)]
    needs: Needs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let here = std::env::current_dir()
        .map_err(|error| CliError::new(format!("cannot tell the current directory: {error}")))?;
    let context = Context {
        cwd: args.cwd.map_or_else(|| here.clone(), |cwd| here.join(cwd)),
        home: std::env::var_os("HOME").map(PathBuf::from),
    };
    let tools = Table::shipped().map_err(|error| CliError::from_error(&error))?;
    let mut not_read = Vec::new();
    let readings = if let Some(path) = &args.call {
        let call = Call::read(&contents(path)?).map_err(|error| CliError::from_error(&error))?;
        vec![of_call(call, &tools, &context)?]
    } else if let Some(path) = &args.answer {
        of_answer(&contents(path)?, &tools, &context, &mut not_read)?
    } else {
        let command = args.command.unwrap_or_default();
        let command = match command.as_str() {
            "-" => String::from_utf8_lossy(&contents(Path::new("-"))?).into_owned(),
            _ => command,
        };
        vec![Reading {
            call: None,
            id: None,
            needs: Shell::new(&tools).read(&command, &context),
        }]
    };
    print(|out| {
        for reading in &readings {
            match args.json {
                true => writeln!(out, "{}", json::line(reading)?)?,
                false => tell(out, reading)?,
            }
        }
        Ok(())
    })?;
    for why in &not_read {
        eprintln!(
            "ironcage: a part of the answer was not read: {}",
            Printable::new(why)
        );
    }
    Ok(0)
}

/// What is in a file, or comes to the standard input.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |error: io::Error| {
        CliError::new(format!(
            "cannot read `{}`: {error}",
            Printable::new(path.as_os_str())
        ))
    };
    let mut bytes = Vec::new();
    match path.as_os_str().to_str() {
        Some("-") => io::stdin().lock().take(LONGEST).read_to_end(&mut bytes),
        _ => File::open(path)
            .map_err(failed)?
            .take(LONGEST)
            .read_to_end(&mut bytes),
    }
    .map_err(failed)?;
    Ok(bytes)
}

fn of_call(call: Call, tools: &Table, context: &Context) -> Result<Reading, CliError> {
    let calls = Calls::shipped().map_err(|error| CliError::from_error(&error))?;
    let needs = calls.needs(&call, tools, context);
    Ok(Reading {
        call: Some(call.name),
        id: call.id,
        needs,
    })
}

fn of_answer(
    bytes: &[u8],
    tools: &Table,
    context: &Context,
    not_read: &mut Vec<String>,
) -> Result<Vec<Reading>, CliError> {
    let document = bytes.trim_ascii_start().starts_with(b"{");
    let format = if document {
        Format::Document
    } else {
        Format::Events
    };
    let mut answer = Answer::new(format, Encoding::Identity);
    let mut said = answer.feed(bytes);
    said.extend(answer.end());
    let mut readings = Vec::new();
    for said in said {
        match said {
            Said::Call(call) => readings.push(of_call(call, tools, context)?),
            Said::Words(_) | Said::Pause => {}
            Said::NotRead(why) => not_read.push(why),
        }
    }
    Ok(readings)
}

fn tell(out: &mut dyn Write, reading: &Reading) -> io::Result<()> {
    let needs = &reading.needs;
    let mut line = |label: &str, entries: Vec<String>| {
        for (index, entry) in entries.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            writeln!(out, "{label:<10}{}", Printable::new(entry))?;
        }
        Ok::<(), io::Error>(())
    };
    let paths = |paths: &BTreeSet<PathBuf>| {
        let paths = paths.iter().map(|path| path.to_string_lossy().into_owned());
        paths.collect::<Vec<_>>()
    };
    line("call", reading.call.iter().cloned().collect())?;
    line("runs", needs.programs.iter().cloned().collect())?;
    line("reads", paths(&needs.reads))?;
    line("writes", paths(&needs.writes))?;
    line("removes", paths(&needs.removes))?;
    let contacts = needs.destinations.iter();
    line("contacts", contacts.map(ToString::to_string).collect())?;
    let unknown = needs.unknown.iter();
    let unknown = unknown.map(|unknown| format!("{}: {}", unknown.what, unknown.why));
    line("unknown", unknown.collect())
}
