//! Tool calls that wait at the MCP gateway, as commands name them: mcp:NUMBER.

use crate::error::{CliError, CommandResult};
use crate::{json, paths};
use ironcage_client::{ToolCallError, WaitingCall, WaitingCalls};
use ironcage_host::SystemFiles;
use ironcage_model::Printable;
use serde_json::{Value, json};
use std::path::PathBuf;

/// No cage has a name with a colon.
const PREFIX: &str = "mcp:";

fn state() -> Result<PathBuf, CliError> {
    Ok(paths::state_dir(&paths::home(&SystemFiles::default())?))
}

fn failed(error: ToolCallError) -> CliError {
    let shown = CliError::from_error(&error);
    match error.hint() {
        Some(hint) => shown.hint(hint),
        None => shown,
    }
}

/// Every call that waits, of every workspace.
pub(crate) fn pending() -> Result<Vec<WaitingCall>, CliError> {
    WaitingCalls::pending(&state()?).map_err(failed)
}

/// The number of a call, where an argument names one.
pub(crate) fn number(text: &str) -> Result<Option<u64>, CliError> {
    let Some(number) = text.strip_prefix(PREFIX) else {
        return Ok(None);
    };
    let number = number.parse().map_err(|_| {
        let shown = Printable::new(text);
        CliError::new(format!("invalid call `{shown}`: expected {PREFIX}NUMBER"))
            .hint("`ironcage request list` lists the calls that wait")
    })?;
    Ok(Some(number))
}

pub(crate) fn name(call: &WaitingCall) -> String {
    format!("{PREFIX}{}", call.number)
}

/// Answers a call.
pub(crate) fn answer(number: u64, allowed: bool, as_json: bool) -> CommandResult {
    let answered = WaitingCalls::answer_pending(&state()?, number, allowed).map_err(failed)?;
    if as_json {
        anstream::println!("{}", in_json(&answered)?);
        return Ok(0);
    }
    let what = match allowed {
        true => "approved once",
        false => "denied",
    };
    anstream::println!(
        "{}: {what}: {} of {}",
        name(&answered),
        Printable::new(&answered.tool),
        Printable::new(&answered.server)
    );
    Ok(0)
}

/// The call with everything that an approval is for.
pub(crate) fn entry(call: &WaitingCall) -> String {
    let mut text = format!(
        "{}  the agent calls {} of {} in {}",
        name(call),
        Printable::new(&call.tool),
        Printable::new(&call.server),
        Printable::new(&call.workspace)
    );
    let arguments = match &call.arguments {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect(),
        other => vec![("arguments", other)],
    };
    for (argument, value) in arguments {
        let value = value.to_string();
        text.push_str(&format!(
            "\n    {}: {}",
            Printable::new(argument),
            Printable::new(&value)
        ));
    }
    text.push_str(&format!("\n    {}", Printable::new(&call.reason)));
    text
}

pub(crate) fn in_json(call: &WaitingCall) -> Result<String, CliError> {
    let value = json!({
        "call": name(call),
        "server": call.server,
        "tool": call.tool,
        "arguments": call.arguments,
        "reason": call.reason,
        "workspace": call.workspace,
    });
    json::line(&value).map_err(CliError::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_and_shown_with_all_of_its_arguments_on_lines_of_its_own() {
        assert_eq!(number("mcp:12").unwrap(), Some(12));
        assert_eq!(number("mcp/12").unwrap(), None);
        assert!(number("mcp:x").is_err());
        let call = WaitingCall {
            number: 12,
            server: "mail".into(),
            tool: "send".into(),
            digest: String::new(),
            arguments: json!({"to": "a@b", "text": "one\ntwo\u{1b}[2J"}),
            reason: "the policy asks".into(),
            workspace: "/w".into(),
            allowed: None,
        };
        let shown = entry(&call);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 4, "{shown}");
        assert_eq!(lines[0], "mcp:12  the agent calls send of mail in /w");
        for line in [
            "    text: \"one\\ntwo\\u001b[2J\"",
            "    to: \"a@b\"",
            "    the policy asks",
        ] {
            assert!(lines.contains(&line), "{line}: {shown}");
        }
    }
}
