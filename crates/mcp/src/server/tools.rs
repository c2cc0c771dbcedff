//! The tools: what each takes, and the command of Ironcage that carries it out.

use super::cage::{Cage, Output};
use crate::error::McpError;
use crate::settings::hex;
use ironcage_client::WaitingCall;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long a command may take where the call does not say, and at most.
const USUAL: u64 = 120;
const LONGEST: u64 = 3600;
/// Where agents find Ironcage's own program in a cage.
const INSIDE: &str = "/.ironcage/bin/ironcage";

fn tool(
    name: &'static str,
    about: &'static str,
    properties: Value,
    required: &[&str],
    read_only: bool,
) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    let output = json!({
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "ok, failed, timed-out, or the code of a denial"},
            "exit_status": {"type": ["integer", "null"]},
            "stdout": {"type": "string"},
            "stderr": {"type": "string"},
            "truncated": {"type": "boolean"}
        },
        "required": ["code"]
    });
    let mut tool = Tool::new(name, about, Arc::new(schema));
    tool.output_schema = output.as_object().cloned().map(Arc::new);
    tool.annotations = Some(ToolAnnotations::new().read_only(read_only));
    tool
}

/// Every tool.
pub(super) fn all() -> Vec<Tool> {
    let text = |about: &str| json!({"type": "string", "description": about});
    let number = |about: &str| json!({"type": "integer", "minimum": 0, "description": about});
    vec![
        tool(
            "run_command",
            "Run a shell command in the cage. It sees the workspace; its changes stay pending until the user applies them.",
            json!({"command": text("Script for bash"), "cwd": text("Working directory [default: the workspace]"),
                   "stdin": text("Text on standard input"), "timeout_seconds": number("Most seconds [default: 120]")}),
            &["command"],
            false,
        ),
        tool(
            "read_file",
            "Read a text file in the cage.",
            json!({"path": text("Path, absolute or below the workspace"), "first_line": number("First line, from 1"), "lines": number("Number of lines")}),
            &["path"],
            true,
        ),
        tool(
            "write_file",
            "Create or replace a text file in the cage.",
            json!({"path": text("Path, absolute or below the workspace"), "content": text("The whole content")}),
            &["path", "content"],
            false,
        ),
        tool(
            "list_files",
            "List a directory in the cage.",
            json!({"path": text("Path [default: the workspace]")}),
            &[],
            true,
        ),
        tool(
            "start_process",
            "Start a shell command in the background of the cage. It ends with the session.",
            json!({"command": text("Script for bash"), "cwd": text("Working directory")}),
            &["command"],
            false,
        ),
        tool(
            "publish_port",
            "Make a port of a server in the cage reachable at a free port of 127.0.0.1 of the user's machine.",
            json!({"port": number("Port in the cage")}),
            &["port"],
            false,
        ),
        tool(
            "request_permission",
            "Ask for access to a path or a host. The user decides about everything that the policy does not grant by itself.",
            json!({"read": text("Path to read"), "write": text("Path to write"), "host": text("NAME or NAME:PORT"),
                   "reason": text("Reason in one sentence, for the user"), "wait_seconds": number("Seconds to wait for the user")}),
            &["reason"],
            false,
        ),
        tool(
            "explain_denial",
            "Explain what was denied in the cage, and what would allow it.",
            json!({"code": text("Code of a denial [default: everything that was denied]")}),
            &[],
            true,
        ),
        tool(
            "show_change",
            "Show the pending change of the workspace as a diff.",
            json!({"names_only": {"type": "boolean", "description": "Only the names of files"}}),
            &[],
            true,
        ),
        tool(
            "apply_change",
            "Apply the pending change to the user's real files. Needs the user's approval of exactly this change: call again after it. Ends background processes.",
            json!({}),
            &[],
            false,
        ),
    ]
}

/// A result with what a command printed.
fn result(output: Output) -> CallToolResult {
    let denial = code_in(&output.stderr);
    let code = match (output.timed_out, output.succeeded(), denial) {
        (true, ..) => "timed-out".to_owned(),
        (_, true, _) => "ok".to_owned(),
        (_, false, Some(code)) => code,
        (_, false, None) => "failed".to_owned(),
    };
    let mut text = output.stdout.clone();
    if !output.stderr.is_empty() {
        text.push_str(&output.stderr);
    }
    if output.timed_out {
        text.push_str("[timed out]");
    } else if !output.succeeded() {
        let status = output
            .status
            .map_or("a signal".to_owned(), |status| status.to_string());
        text.push_str(&format!("\n[exit status {status}]"));
    }
    let structured = json!({
        "code": code,
        "exit_status": output.status,
        "stdout": output.stdout,
        "stderr": output.stderr,
        "truncated": output.cut
    });
    let mut result = match output.succeeded() {
        true => CallToolResult::success(vec![ContentBlock::text(text)]),
        false => CallToolResult::error(vec![ContentBlock::text(text)]),
    };
    result.structured_content = Some(structured);
    result
}

/// The code that Ironcage's own errors have in brackets.
fn code_in(stderr: &str) -> Option<String> {
    let mut lines = stderr.lines().filter(|line| line.starts_with("ironcage: "));
    lines.find_map(|line| {
        let (_, rest) = line.rsplit_once('[')?;
        let code = rest.strip_suffix(']')?;
        ironcage_model::find_reason(code).map(|_| code.to_owned())
    })
}

fn failure(code: &str, text: &str) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = Some(json!({"code": code, "reason": text}));
    result
}

/// The arguments of a call, checked against the schema of the tool.
struct Arguments<'a>(&'a JsonObject);

impl Arguments<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64)
    }
}

/// What does not fit the schema of the tool.
fn unfit(tool: &Tool, arguments: &JsonObject) -> Option<String> {
    let schema = Value::Object((*tool.input_schema).clone());
    let known = schema.get("properties").and_then(Value::as_object)?;
    if let Some(name) = arguments.keys().find(|name| !known.contains_key(*name)) {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let name = ironcage_tools::printable(name);
        return Some(format!(
            "unknown argument `{name}`; expected {}",
            names.join(", ")
        ));
    }
    let required = schema.get("required").and_then(Value::as_array)?;
    let mut required = required.iter().filter_map(Value::as_str);
    if let Some(name) = required.find(|name| !arguments.contains_key(*name)) {
        return Some(format!("the argument `{name}` is missing"));
    }
    let wrong = arguments.iter().find(|(name, value)| {
        let kind = known.get(*name).and_then(|property| property.get("type"));
        match kind.and_then(Value::as_str) {
            Some("string") => value.as_str().is_none_or(|text| text.contains('\0')),
            Some("integer") => !value.is_u64(),
            Some("boolean") => !value.is_boolean(),
            _ => false,
        }
    });
    wrong.map(|(name, _)| format!("the argument `{name}` has the wrong type"))
}

pub(super) async fn call(
    cage: &Cage,
    name: &str,
    arguments: &JsonObject,
) -> Result<CallToolResult, ErrorData> {
    let tools = all();
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
        let name = ironcage_tools::printable(name);
        return Err(ErrorData::invalid_params(format!("no tool {name}"), None));
    };
    if let Some(problem) = unfit(tool, arguments) {
        return Ok(failure("invalid-arguments", &problem));
    }
    let done = carry_out(cage, name, &Arguments(arguments)).await;
    Ok(done.unwrap_or_else(|error| failure("cage-failed", &ironcage_model::in_full(&error))))
}

async fn carry_out(
    cage: &Cage,
    name: &str,
    arguments: &Arguments<'_>,
) -> Result<CallToolResult, McpError> {
    // Without a cage: what does not touch one.
    if name == "explain_denial"
        && let Some(code) = arguments.text("code")
    {
        return Ok(result(
            cage.ironcage(&["why", "--code", code], None, None).await?,
        ));
    }
    if name == "apply_change" {
        let _alone = cage.using.write().await;
        return apply(cage).await;
    }
    let _with_others = cage.using.read().await;
    let id = cage.id().await?;
    let id = id.as_str();
    let path = arguments.text("path").unwrap_or(".");
    let mut words: Vec<&str> = vec!["exec"];
    match name {
        "run_command" | "start_process" => {
            let command = arguments.text("command").unwrap_or_default();
            if name == "start_process" {
                words.push("--detach");
            } else if arguments.text("stdin").is_some() {
                words.push("--interactive");
            }
            if let Some(cwd) = arguments.text("cwd") {
                words.extend(["--cwd", cwd]);
            }
            words.extend([id, "--"]);
            words.extend(["bash", "-c", command]);
            let seconds = arguments
                .number("timeout_seconds")
                .unwrap_or(USUAL)
                .min(LONGEST);
            let deadline = (name == "run_command").then(|| Duration::from_secs(seconds));
            let input = arguments.text("stdin").filter(|_| name == "run_command");
            Ok(result(cage.ironcage(&words, input, deadline).await?))
        }
        "read_file" => {
            let first = arguments.number("first_line").unwrap_or(1).max(1);
            let last = arguments
                .number("lines")
                .map(|lines| first.saturating_add(lines).saturating_sub(1));
            let script = match last {
                Some(last) => format!("{first},{last}p"),
                None => format!("{first},$p"),
            };
            words.extend([id, "--"]);
            words.extend(["sed", "-n", "-e", &script, "--", path]);
            Ok(result(cage.ironcage(&words, None, None).await?))
        }
        "write_file" => {
            words.push("--interactive");
            words.extend([id, "--"]);
            words.extend([
                "sh",
                "-c",
                r#"mkdir -p -- "$(dirname -- "$1")" && cat > "$1""#,
                "sh",
                path,
            ]);
            let content = arguments.text("content").unwrap_or_default();
            Ok(result(cage.ironcage(&words, Some(content), None).await?))
        }
        "list_files" => {
            words.extend([id, "--"]);
            words.extend(["ls", "-lA", "--", path]);
            Ok(result(cage.ironcage(&words, None, None).await?))
        }
        "publish_port" => {
            let port = arguments.number("port").unwrap_or_default();
            // A free port: an agent that chose one could pass for a server that the user expects there.
            let ports = format!("0:{port}");
            Ok(result(
                cage.ironcage(&["net", "publish", id, &ports], None, None)
                    .await?,
            ))
        }
        "request_permission" => {
            words.extend([id, "--"]);
            words.extend([INSIDE, "ask", "--json"]);
            let mut given = 0;
            for (name, flag) in [("read", "--read"), ("write", "--write"), ("host", "--host")] {
                if let Some(value) = arguments.text(name) {
                    words.extend([flag, value]);
                    given += 1;
                }
            }
            if given != 1 {
                return Ok(failure(
                    "invalid-arguments",
                    "expected one of read, write and host",
                ));
            }
            let wait = arguments
                .number("wait_seconds")
                .unwrap_or(0)
                .min(LONGEST)
                .to_string();
            let reason = arguments.text("reason").unwrap_or_default();
            words.extend(["--reason", reason, "--wait", &wait]);
            Ok(result(cage.ironcage(&words, None, None).await?))
        }
        "explain_denial" => Ok(result(cage.ironcage(&["why", id], None, None).await?)),
        _ => {
            let workspace = cage.workspace().to_string_lossy().into_owned();
            let mut words = vec!["diff", "--workspace", &workspace];
            if arguments.0.get("names_only") == Some(&Value::Bool(true)) {
                words.push("--name-only");
            }
            Ok(result(cage.ironcage(&words, None, None).await?))
        }
    }
}

/// Longest diff that a person is asked about here.
const MOST_DIFF: usize = 48 << 10;

/// What `ironcage diff --json` says of how much of a change its diff shows.
#[derive(Debug, serde::Deserialize)]
struct DiffDocument {
    files: Vec<DiffFile>,
    /// Differences in git directories, which no diff shows.
    git: u64,
}

#[derive(Debug, serde::Deserialize)]
struct DiffFile {
    content: DiffContent,
}

/// `ironcage_workspace::ShownContent`. One that is not known here is an error.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum DiffContent {
    Same,
    Text,
    Binary,
    TooLarge,
    Unreadable,
}

/// Why a person cannot approve a change by its diff: not everything that would be applied is in
/// it.
fn unseen(diff: &str, document: &DiffDocument) -> Option<&'static str> {
    if diff.len() > MOST_DIFF {
        return Some("the diff is too long to show");
    }
    let mut files = document.files.iter();
    let hidden = files.find_map(|file| match file.content {
        DiffContent::Same | DiffContent::Text => None,
        DiffContent::Binary => Some("a file is binary"),
        DiffContent::TooLarge => Some("a file is too large to compare"),
        DiffContent::Unreadable => Some("a file cannot be read"),
    });
    hidden.or_else(|| (document.git > 0).then_some("the git directory changed"))
}

/// Applies the change if a person has approved what it is now. Whoever calls it has the cage alone.
async fn apply(cage: &Cage) -> Result<CallToolResult, McpError> {
    let workspace = cage.workspace().to_string_lossy().into_owned();
    // Nothing in the cage may change what is being applied.
    cage.stop().await?;
    let bytes = cage
        .ironcage(&["diff", "--raw", "--workspace", &workspace], None, None)
        .await?;
    // With the end that says what is withheld, and what is in git directories.
    let diff = cage
        .ironcage(&["diff", "--workspace", &workspace], None, None)
        .await?;
    let listed = cage
        .ironcage(&["diff", "--json", "--workspace", &workspace], None, None)
        .await?;
    for output in [&bytes, &diff, &listed] {
        if !output.succeeded() {
            return Ok(result(output.clone()));
        }
    }
    let why = match bytes.cut || diff.cut || listed.cut {
        true => Some("the diff is too long to show"),
        false => {
            let document = serde_json::from_str(&listed.unchanged);
            unseen(&diff.unchanged, &document.map_err(McpError::Diff)?)
        }
    };
    if let Some(why) = why {
        return Ok(failure(
            "failed",
            &format!(
                "this change cannot be approved here: {why}; the user looks at it with `ironcage diff` and applies it with `ironcage apply`"
            ),
        ));
    }
    let waiting = WaitingCall {
        number: 0,
        server: "ironcage".to_owned(),
        tool: "apply_change".to_owned(),
        digest: hex(format!("apply {} {}", bytes.digest, diff.digest).as_bytes()),
        arguments: json!({"change": diff.unchanged}),
        reason: "apply the pending change to the real files".to_owned(),
        workspace: cage.workspace().to_owned(),
        allowed: None,
    };
    match cage.approved(waiting)? {
        Some(true) => Ok(result(
            cage.ironcage(&["apply", "--workspace", &workspace], None, None)
                .await?,
        )),
        Some(false) => Ok(failure(
            "tool-denied-by-operator",
            "the user denied this change",
        )),
        None => Ok(failure(
            "tool-approval-required",
            "the user was asked: `ironcage mcp pins` shows the change, `ironcage mcp approve NUMBER` approves it; then call apply_change again",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_its_diff_does_not_show_whole_is_not_approved_by_it() {
        let document = |content: &str, git: u64| -> DiffDocument {
            let files =
                json!([{"path": "x", "content": "text"}, {"path": "y", "content": content}]);
            serde_json::from_value(json!({"id": "w", "files": files, "git": git})).unwrap()
        };
        // What a file says of itself decides nothing.
        let shown = "+Binary files x\nBinary files a/x and b/x differ\n";
        for whole in ["text", "same"] {
            assert_eq!(unseen(shown, &document(whole, 0)), None);
        }
        for hidden in ["binary", "too-large", "unreadable"] {
            assert!(unseen("", &document(hidden, 0)).is_some(), "{hidden}");
        }
        assert!(unseen("", &document("text", 3)).is_some());
        let unknown = json!({"files": [{"content": "device"}], "git": 0});
        assert!(serde_json::from_value::<DiffDocument>(unknown).is_err());
        let long = "+x\n".repeat(MOST_DIFF);
        assert!(unseen(&long, &document("text", 0)).is_some());
    }
}
