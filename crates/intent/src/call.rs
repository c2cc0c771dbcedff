//! Tool calls, as models write them, and what each needs.

use crate::json;
use crate::needs::{Needs, Unsure, tidy};
use crate::shell::{Context, Shell};
use crate::tools::Table;
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;

/// The table that ships.
const SHIPPED: &str = include_str!("../../../policies/tool-calls.toml");

/// Largest call that is read, in bytes.
pub(crate) const LONGEST: usize = 1024 * 1024;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The name by which its result will refer to it.
    pub id: Option<String>,
    pub name: String,
    pub input: Value,
}

/// Why a text is not a valid tool call.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCall {
    /// It is longer than any call that is read.
    #[error("the tool call is longer than {LONGEST} bytes")]
    TooLong,
    /// It is no JSON, or it is ambiguous.
    #[error("cannot parse the tool call: {0}")]
    Json(#[from] serde_json::Error),
    /// None of the shapes that are known.
    #[error(
        "not a tool call; expected Anthropic's `tool_use`, OpenAI's `function` or `function_call`, or MCP's `tools/call`"
    )]
    Shape,
}

impl Call {
    /// Reads a call in the shape of Anthropic's messages, OpenAI's chat completions or responses,
    /// or MCP.
    pub fn read(text: &[u8]) -> Result<Self, InvalidCall> {
        if text.len() > LONGEST {
            return Err(InvalidCall::TooLong);
        }
        Call::of(&json::read(text)?)?.ok_or(InvalidCall::Shape)
    }

    /// The call that a value is. `None` when it is something else.
    pub(crate) fn of(value: &Value) -> Result<Option<Self>, InvalidCall> {
        let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
        if value.get("method").and_then(Value::as_str) == Some("tools/call") {
            let Some(params) = value.get("params") else {
                return Ok(None);
            };
            let id = value.get("id").map(|id| match id {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            let input = params.get("arguments").cloned().unwrap_or(Value::Null);
            return Ok(text(params, "name").map(|name| Call { id, name, input }));
        }
        match value.get("type").and_then(Value::as_str) {
            Some("tool_use") => {
                let input = value.get("input").cloned().unwrap_or(Value::Null);
                let id = text(value, "id");
                Ok(text(value, "name").map(|name| Call { id, name, input }))
            }
            Some("function_call") => {
                let input = arguments(value.get("arguments"))?;
                let id = text(value, "call_id").or_else(|| text(value, "id"));
                Ok(full_name(value).map(|name| Call { id, name, input }))
            }
            Some("custom_tool_call") => {
                let input = value.get("input").cloned().unwrap_or(Value::Null);
                let id = text(value, "call_id");
                Ok(full_name(value).map(|name| Call { id, name, input }))
            }
            Some("local_shell_call") => Ok(Some(Call {
                id: text(value, "call_id"),
                name: "local_shell".to_owned(),
                input: value.get("action").cloned().unwrap_or(Value::Null),
            })),
            Some("function") | None => {
                let Some(function) = value.get("function") else {
                    return Ok(None);
                };
                let input = arguments(function.get("arguments"))?;
                let id = text(value, "id");
                Ok(text(function, "name").map(|name| Call { id, name, input }))
            }
            Some(_) => Ok(None),
        }
    }
}

/// The name of an item of OpenAI's responses. The namespace is part of it: `run_command` in `mcp__notes` is a tool of the server
/// `notes`, and no shell.
fn full_name(value: &Value) -> Option<String> {
    let name = value.get("name")?.as_str()?;
    match value.get("namespace") {
        None | Some(Value::Null) => Some(name.to_owned()),
        Some(Value::String(space)) => {
            let space = space.strip_suffix("__").unwrap_or(space);
            Some(format!("{space}__{name}"))
        }
        Some(_) => None,
    }
}

/// Arguments stand in a string that is JSON itself.
pub(crate) fn arguments(value: Option<&Value>) -> Result<Value, InvalidCall> {
    match value {
        Some(Value::String(text)) if text.is_empty() => Ok(Value::Null),
        Some(Value::String(text)) => Ok(json::read(text.as_bytes())?),
        Some(value) => Ok(value.clone()),
        None => Ok(Value::Null),
    }
}

/// What is known of tools that models call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    call: Vec<Entry>,
}

/// Tools that take the same arguments.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Entry {
    names: Vec<String>,
    /// Arguments that are scripts of the shell, or a program with its arguments.
    pub(crate) commands: Vec<String>,
    pub(crate) cwd: Vec<String>,
    pub(crate) reads: Vec<String>,
    pub(crate) writes: Vec<String>,
    pub(crate) urls: Vec<String>,
    /// Patches that name the files they change.
    pub(crate) patches: Vec<String>,
    /// Read where no argument names a path.
    pub(crate) reads_here: bool,
    /// Where none of the arguments above is given, nothing is needed.
    harmless: bool,
    /// Why what it does cannot be known.
    unknown: Option<String>,
}

/// A table that does not say what a table says.
#[derive(Debug, thiserror::Error)]
#[error("cannot parse the table of tool calls: {0}")]
pub struct InvalidCalls(#[from] toml::de::Error);

impl Calls {
    /// The table that ships.
    pub fn shipped() -> Result<Self, InvalidCalls> {
        Ok(toml::from_str(SHIPPED)?)
    }

    /// What is known of a tool.
    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        let mut entries = self.call.iter();
        entries.find(|entry| entry.names.iter().any(|known| known == name))
    }

    /// Whether a call is of a shell: a command is what it brings.
    pub fn is_shell(&self, call: &Call) -> bool {
        let entry = self.entry(&call.name);
        entry.is_some_and(|entry| !entry.commands.is_empty())
    }

    pub fn needs(&self, call: &Call, tools: &Table, context: &Context) -> Needs {
        let mut needs = Needs::default();
        // A server's tools are called `mcp__server__tool`: what they do is the server's affair.
        let Some(entry) = self.entry(&call.name) else {
            let why = format!("the tool `{}` is not in the table of tool calls", call.name);
            needs.unsure(Unsure::Everything, why);
            return needs;
        };
        let given = |names: &[String]| {
            let input = call.input.clone();
            names
                .iter()
                .filter_map(move |name| input.get(name).cloned())
                .collect::<Vec<_>>()
        };
        let mut seen = false;
        let mut here = context.clone();
        for value in given(&entry.cwd) {
            if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
                here.cwd = tidy(&context.cwd, text);
            }
        }
        for value in given(&entry.commands) {
            seen = true;
            command(&value, tools, &here, &mut needs);
        }
        for (names, write) in [(&entry.reads, false), (&entry.writes, true)] {
            for value in given(names) {
                seen = true;
                match value.as_str() {
                    Some(text) if !text.is_empty() => {
                        let path = place(text, &here);
                        match write {
                            true => needs.write(path),
                            false => needs.read(path),
                        }
                    }
                    Some(_) => {}
                    None => needs.unsure(Unsure::Everything, "a path in the call is not a string"),
                }
            }
        }
        for value in given(&entry.urls) {
            seen = true;
            let url = value.as_str().unwrap_or_default().to_owned();
            // As curl would be given it, in one word.
            let quoted = format!("curl -- '{}'", url.replace('\'', "'\\''"));
            let asked = Shell::new(tools).read(&quoted, &here);
            needs.destinations.extend(asked.destinations);
            needs.unknown.extend(asked.unknown);
            if needs.destinations.is_empty() && needs.unknown.is_empty() {
                needs.unsure(Unsure::Destinations, "the URL of the call cannot be parsed");
            }
        }
        for value in given(&entry.patches) {
            seen = true;
            patch(&value, &here, &mut needs);
        }
        if let (Value::String(_), [_, ..]) = (&call.input, entry.patches.as_slice()) {
            seen = true;
            patch(&call.input, &here, &mut needs);
        }
        if entry.reads_here && needs.reads.is_empty() {
            seen = true;
            needs.read(here.cwd.clone());
        }
        if let Some(why) = &entry.unknown {
            needs.unsure(Unsure::Everything, why.clone());
        } else if !seen && !entry.harmless {
            let why = format!(
                "the call to `{}` has none of the known arguments",
                call.name
            );
            needs.unsure(Unsure::Everything, why);
        }
        needs
    }
}

/// Where a path of a call leads, from the text alone.
pub(crate) fn place(text: &str, here: &Context) -> PathBuf {
    match (text.strip_prefix("~/"), &here.home) {
        (Some(rest), Some(home)) => tidy(home, rest),
        _ => tidy(&here.cwd, text.strip_prefix("file://").unwrap_or(text)),
    }
}

/// A script, or a program with its arguments.
fn command(value: &Value, tools: &Table, here: &Context, needs: &mut Needs) {
    let found = match value {
        Value::String(script) => Shell::new(tools).read(script, here),
        Value::Array(words) => {
            let words: Option<Vec<String>> = words
                .iter()
                .map(|word| {
                    word.as_str()
                        .map(|word| format!("'{}'", word.replace('\'', "'\\''")))
                })
                .collect();
            match words {
                Some(words) => Shell::new(tools).read(&words.join(" "), here),
                None => {
                    needs.unsure(
                        Unsure::Everything,
                        "the command of the call is not a string",
                    );
                    return;
                }
            }
        }
        _ => {
            needs.unsure(
                Unsure::Everything,
                "the command of the call is not a string",
            );
            return;
        }
    };
    needs.merge(found);
}

/// The files that a patch changes: of the form that Codex writes, or a unified diff.
fn patch(value: &Value, here: &Context, needs: &mut Needs) {
    let Some(text) = value.as_str() else {
        needs.unsure(Unsure::Everything, "the patch of the call is not a string");
        return;
    };
    let marks = [
        "*** Add File: ",
        "*** Update File: ",
        "*** Delete File: ",
        "*** Move to: ",
    ];
    let mut found = false;
    for line in text.lines() {
        let named = marks.iter().find_map(|mark| line.strip_prefix(mark));
        let diff = line
            .strip_prefix("+++ ")
            .or_else(|| line.strip_prefix("--- "));
        let diff = diff.map(|path| path.split('\t').next().unwrap_or(path));
        let diff = diff.map(|path| {
            let plain = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/"));
            plain.unwrap_or(path)
        });
        if let Some(path) = named.or(diff).filter(|path| *path != "/dev/null") {
            found = true;
            needs.write(tidy(&here.cwd, path.trim()));
        }
    }
    if !found {
        needs.unsure(Unsure::Writes, "the patch does not name a file");
    }
}
