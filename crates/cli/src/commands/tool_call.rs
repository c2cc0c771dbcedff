//! `ironcage exec --intent`: executes a tool call in a scope with the leases it needs.

use super::intent::contents;
use crate::cages;
use crate::error::{CliError, CommandResult};
use ironcage_client::{Called, call};
use ironcage_control::DeniedLease;
use ironcage_intent::Call;
use ironcage_model::{Ending, Resource};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Executes the call in a file or on standard input, and prints its result in the call's format.
pub(super) fn run(id: &str, path: &Path, wait: u64) -> CommandResult {
    let text = contents(path)?;
    let (read, shape) =
        Call::read_with_shape(&text).map_err(|error| CliError::from_error(&error))?;
    let text = String::from_utf8(text)
        .map_err(|_| CliError::new("cannot execute the tool call: it is not valid UTF-8"))?;
    let connection = cages::connect(id)?;
    let on_request = |question: u32, resource: &Resource| {
        if wait > 0 {
            anstream::eprintln!(
                "ironcage: waiting for approval of request {question}: {resource}; `ironcage approve {id}/{question}` or `ironcage deny {id}/{question}`"
            );
        }
    };
    let called = call(&connection, &text, wait, on_request);
    let (text, error, code) = match called.map_err(cages::client_error)? {
        Called::Done {
            ending,
            stdout,
            stderr,
            cut,
        } => {
            let text = output(&ending, &stdout, &stderr, cut);
            (text, ending.exit_code() != 0, 0)
        }
        Called::NotGiven(refused) => (denials(id, &refused), true, 1),
        Called::Refused(reason) => {
            let told = json!({"refused": reason.to_string(), "code": reason.code()});
            (told.to_string(), true, 1)
        }
    };
    let result = shape.result(&read, &text, error);
    let mut out = std::io::stdout().lock();
    let printed = writeln!(out, "{result}").and_then(|()| out.flush());
    printed.map_err(|error| CliError::new(format!("cannot print the result: {error}")))?;
    Ok(code)
}

/// The output of a command, for the model.
fn output(ending: &Ending, stdout: &[u8], stderr: &[u8], cut: bool) -> String {
    let mut text = String::from_utf8_lossy(stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(stderr));
    if cut {
        text.push_str("\n[output truncated]");
    }
    if ending.exit_code() != 0 {
        let end = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        text.push_str(&format!("{end}[exit status {}]", ending.exit_code()));
    }
    text
}

/// JSON for the model: what was denied, why, and what to do about it.
fn denials(id: &str, refused: &[DeniedLease]) -> String {
    let each = |one: &DeniedLease| {
        let how = match one.ask {
            true => format!(
                "the user was asked; call again after they have answered (ironcage request list, ironcage approve {id}/NUMBER)"
            ),
            false => "it cannot be granted while the cage runs; continue without it".to_owned(),
        };
        json!({
            "what": one.resource.to_string(), "why": one.reason.to_string(),
            "code": one.reason.code(), "ask": one.ask, "how": how,
        })
    };
    let list: Vec<_> = refused.iter().map(each).collect();
    json!({"refused": list}).to_string()
}
