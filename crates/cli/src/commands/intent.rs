//! `ironcage intent`.

use crate::error::{CliError, CommandResult};
use crate::json;
use crate::output::print;
use ironcage_files::Links;
use ironcage_intent::{
    Action, AnswerPart, AnswerReader, Call, Calls, Context, Encoding, Format, Needs, Table,
    read_with,
};
use ironcage_model::Printable;
use ironcage_programs::Program;
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Analyse what a shell command or tool call needs
///
/// Lists programs, files and hosts, and what the text does not reveal. Also analyses a tool call
/// (--call), or each call in a model's recorded response (--answer). Nothing is executed or granted.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("text").required(true))]
pub(crate) struct Args {
    /// Shell command; `-` reads it from standard input
    #[arg(group = "text")]
    command: Option<String>,
    /// Tool call in FILE, or `-`: Anthropic messages, OpenAI chat completions or responses, or MCP
    #[arg(long, value_name = "FILE", group = "text", value_hint = clap::ValueHint::FilePath)]
    call: Option<PathBuf>,
    /// Model response in FILE, or `-`: an event stream or one JSON document
    #[arg(long, value_name = "FILE", group = "text", value_hint = clap::ValueHint::FilePath)]
    answer: Option<PathBuf>,
    /// Directory where it would run [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// Print JSON, one object per command or call
    #[arg(long)]
    json: bool,
}

const LONGEST_INPUT: u64 = 16 * 1024 * 1024;

#[derive(Debug, serde::Serialize)]
struct Analysis {
    /// Name of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(flatten)]
    needs: Needs,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let here = std::env::current_dir().map_err(|error| {
        CliError::new(format!("cannot determine the current directory: {error}"))
    })?;
    let context = Context {
        cwd: args.cwd.map_or_else(|| here.clone(), |cwd| here.join(cwd)),
        home: std::env::var_os("HOME").map(PathBuf::from),
    };
    let tools = Table::shipped().map_err(|error| CliError::from_error(&error))?;
    let mut not_read = Vec::new();
    let analyses = if let Some(path) = &args.call {
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
        vec![Analysis {
            call: None,
            id: None,
            needs: follow(&tools, &command, &context)?,
        }]
    };
    print(|out| {
        for analysis in &analyses {
            match args.json {
                true => writeln!(out, "{}", json::line(analysis)?)?,
                false => report(out, analysis)?,
            }
        }
        Ok(())
    })?;
    for why in &not_read {
        eprintln!(
            "ironcage: part of the response was not parsed: {}",
            Printable::new(why)
        );
    }
    Ok(0)
}

/// The needs of a command and of the programs that it executes.
fn follow(tools: &Table, command: &str, context: &Context) -> Result<Needs, CliError> {
    let reader = Program::Reader
        .find()
        .map_err(|error| CliError::from_error(&error).hint(error.hint()))?;
    Ok(read_with(&reader, tools, command, context))
}

/// Reads a file, or standard input for `-`.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |error: io::Error| {
        CliError::new(format!(
            "cannot read `{}`: {error}",
            Printable::new(path.as_os_str())
        ))
    };
    let mut bytes = Vec::new();
    match path.as_os_str().to_str() {
        Some("-") => io::stdin()
            .lock()
            .take(LONGEST_INPUT)
            .read_to_end(&mut bytes),
        _ => {
            return ironcage_files::read(path, LONGEST_INPUT, Links::Follow)
                .map_err(|error| CliError::from_error(&error));
        }
    }
    .map_err(failed)?;
    Ok(bytes)
}

fn of_call(call: Call, tools: &Table, context: &Context) -> Result<Analysis, CliError> {
    let calls = Calls::shipped().map_err(|error| CliError::from_error(&error))?;
    let needs = match calls.action(&call, context) {
        Some(Action::Script { text, cwd }) => {
            let cwd = cwd.map_or_else(|| context.cwd.clone(), |cwd| context.cwd.join(cwd));
            let context = Context {
                cwd,
                home: context.home.clone(),
            };
            follow(tools, &text, &context)?
        }
        _ => calls.needs(&call, tools, context),
    };
    Ok(Analysis {
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
) -> Result<Vec<Analysis>, CliError> {
    let document = bytes.trim_ascii_start().starts_with(b"{");
    let format = if document {
        Format::Document
    } else {
        Format::Events
    };
    let mut answer = AnswerReader::new(format, Encoding::Identity);
    let mut items = answer.feed(bytes);
    items.extend(answer.end());
    let mut analyses = Vec::new();
    for item in items {
        match item {
            AnswerPart::Call(call) => analyses.push(of_call(call, tools, context)?),
            AnswerPart::Words(_) | AnswerPart::Pause => {}
            AnswerPart::NotRead(why) => not_read.push(why),
        }
    }
    Ok(analyses)
}

fn report(out: &mut dyn Write, analysis: &Analysis) -> io::Result<()> {
    let needs = &analysis.needs;
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
    line("call", analysis.call.iter().cloned().collect())?;
    line("runs", needs.programs.iter().cloned().collect())?;
    line("reads", paths(&needs.reads))?;
    line("writes", paths(&needs.writes))?;
    line("removes", paths(&needs.removes))?;
    line("enters", paths(&needs.enters))?;
    let contacts = needs.destinations.iter();
    line("contacts", contacts.map(ToString::to_string).collect())?;
    let stays = needs
        .leaves_running
        .then(|| "a process in the background".to_owned());
    line("leaves", stays.into_iter().collect())?;
    let unknown = needs.unknown.iter();
    line("unknown", unknown.map(ToString::to_string).collect())
}
