//! `ironcage exec --intent`: a tool call, carried out in a scope with what it needs.

use super::intent::contents;
use crate::error::{CliError, CommandResult};
use crate::running;
use ironcage_control::NotGiven;
use ironcage_intent::Call;
use ironcage_model::{Ending, Resource};
use ironcage_runtime::client::{Called, call};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Carries out the call in a file, or on the standard input, and prints its result in the shape of
/// the call.
pub(super) fn run(id: &str, path: &Path, wait: u64) -> CommandResult {
    let text = contents(path)?;
    let (read, shape) =
        Call::read_with_shape(&text).map_err(|error| CliError::from_error(&error))?;
    let text = String::from_utf8(text).map_err(|_| CliError::new("the tool call is not text"))?;
    let connection = running::connect(id)?;
    let asked = |question: u32, resource: &Resource| {
        if wait > 0 {
            anstream::eprintln!(
                "ironcage: waiting for an answer to question {question}: {resource}; `ironcage approve {id}/{question}` or `ironcage deny {id}/{question}`"
            );
        }
    };
    let called = call(&connection, &text, wait, asked);
    let (said, error, code) = match called.map_err(running::said)? {
        Called::Done {
            ending,
            stdout,
            stderr,
            cut,
        } => {
            let said = output(&ending, &stdout, &stderr, cut);
            (said, ending.exit_code() != 0, 0)
        }
        Called::NotGiven(refused) => (refusal(id, &refused), true, 1),
        Called::Refused(reason) => (json!({"refused": reason}).to_string(), true, 1),
    };
    let result = shape.result(&read, &said, error);
    let mut out = std::io::stdout().lock();
    let printed = writeln!(out, "{result}").and_then(|()| out.flush());
    printed.map_err(|error| CliError::new(format!("cannot print the result: {error}")))?;
    Ok(code)
}

/// What a command said, as a model reads it.
fn output(ending: &Ending, stdout: &[u8], stderr: &[u8], cut: bool) -> String {
    let mut said = String::from_utf8_lossy(stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(stderr));
    if cut {
        said.push_str("\n[the rest of the output was cut off]");
    }
    if ending.exit_code() != 0 {
        let end = if said.is_empty() || said.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        said.push_str(&format!("{end}[exit status {}]", ending.exit_code()));
    }
    said
}

/// What was not given, why, and what can be done about it: JSON, for a model.
fn refusal(id: &str, refused: &[NotGiven]) -> String {
    let each = |one: &NotGiven| {
        let how = match one.ask {
            true => format!(
                "the user was asked; call again when they have answered (ironcage pending, ironcage approve {id}/NUMBER)"
            ),
            false => "nobody can give it while the cage runs; do without it".to_owned(),
        };
        json!({
            "what": one.resource.to_string(), "why": one.reason, "ask": one.ask, "how": how,
        })
    };
    let list: Vec<_> = refused.iter().map(each).collect();
    json!({"refused": list}).to_string()
}
