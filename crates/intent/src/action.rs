//! The action of a tool call, for those that Ironcage carries out itself, and the shape in
//! which its result is told.

use crate::call::{Call, Calls, InvalidCall, LONGEST, place};
use crate::json;
use crate::patch::{self, PatchedFile};
use crate::search::{self, Search};
use crate::shell::Context;
use serde_json::{Value, json};
use std::path::PathBuf;

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A script of the shell.
    Script {
        text: String,
        /// Where it runs, if not where the cage's command does.
        cwd: Option<String>,
    },
    /// A program with its arguments.
    Program {
        argv: Vec<String>,
        /// Where it runs, if not where the cage's command does.
        cwd: Option<String>,
    },
    /// What is at a URL.
    Fetch {
        url: String,
    },
    File(FileAction),
    /// Something is looked for below a directory, or in a file.
    Search {
        path: PathBuf,
        search: Search,
    },
    /// Several files are changed at once.
    Patch(Vec<PatchedFile>),
}

/// Something that is done with one file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAction {
    /// Its absolute path, from the text alone.
    pub path: PathBuf,
    pub what: FileWork,
}

/// What is done with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileWork {
    /// Its lines are told.
    Read {
        /// The first, from 1.
        first: u64,
        /// How many; all where none is said.
        count: Option<u64>,
    },
    /// The names in a directory are told.
    List,
    /// It is made, or made anew.
    Write {
        /// What is in it then.
        content: String,
    },
    /// Parts of it are replaced.
    Edit {
        /// Which, in this order.
        edits: Vec<Edit>,
    },
}

/// A replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub old: String,
    /// What is to be there.
    pub new: String,
    /// Wherever it is; else it must be there once.
    pub everywhere: bool,
}

impl FileAction {
    /// Whether the file is changed.
    pub fn writes(&self) -> bool {
        matches!(self.what, FileWork::Write { .. } | FileWork::Edit { .. })
    }
}

fn text<'a>(input: &'a Value, names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| input.get(name)?.as_str())
}

impl Calls {
    /// What a call asks to be done; `None` where it is nothing that is carried out here.
    pub fn action(&self, call: &Call, context: &Context) -> Option<Action> {
        let entry = self.entry(&call.name)?;
        let named = |names: &[String]| {
            let mut values = names.iter().filter_map(|name| call.input.get(name));
            values.next()
        };
        let cwd = named(&entry.cwd).and_then(Value::as_str);
        let cwd = cwd.filter(|cwd| !cwd.is_empty()).map(str::to_owned);
        match named(&entry.commands) {
            Some(Value::String(script)) => {
                let text = script.clone();
                return Some(Action::Script { text, cwd });
            }
            Some(Value::Array(words)) => {
                let words = words.iter().map(|word| word.as_str().map(str::to_owned));
                let argv = words.collect::<Option<Vec<_>>>()?;
                return Some(Action::Program { argv, cwd });
            }
            Some(_) => return None,
            None => {}
        }
        if let Some(url) = named(&entry.urls) {
            let url = url.as_str()?.to_owned();
            return Some(Action::Fetch { url });
        }
        if !entry.patches.is_empty() {
            let text = match &call.input {
                Value::String(text) => Some(text.as_str()),
                _ => named(&entry.patches).and_then(Value::as_str),
            };
            return patch::read(text?, context).map(Action::Patch);
        }
        let paths = match entry.writes.is_empty() {
            true => &entry.reads,
            false => &entry.writes,
        };
        let path = match named(paths).and_then(Value::as_str) {
            Some(path) if !path.is_empty() => place(path, context),
            _ if entry.reads_here => context.cwd.clone(),
            _ => return None,
        };
        if entry.reads_here
            && let Some(search) = search::read(call, &entry.reads)
        {
            return Some(Action::Search { path, search });
        }
        let what = match entry.writes.is_empty() {
            true => read(call)?,
            false => write(&call.input)?,
        };
        Some(Action::File(FileAction { path, what }))
    }
}

fn read(call: &Call) -> Option<FileWork> {
    match call.name.as_str() {
        "LS" | "list_directory" | "list_dir" | "list_files" => Some(FileWork::List),
        "Read" | "read_file" | "read_text_file" | "get_file_contents" | "open_file" => {
            let number =
                |names: &[&str]| names.iter().find_map(|name| call.input.get(name)?.as_u64());
            Some(FileWork::Read {
                first: number(&["offset", "start_line"]).unwrap_or(1).max(1),
                count: number(&["limit"]),
            })
        }
        // Images, metadata: nothing that is done here.
        _ => None,
    }
}

/// What the arguments of a tool that writes ask for.
fn write(input: &Value) -> Option<FileWork> {
    // One tool that does several things says which.
    match input.get("command").and_then(Value::as_str) {
        Some("view") => {
            let range = input.get("view_range").and_then(Value::as_array);
            let at = |index: usize| range.and_then(|range| range.get(index)?.as_u64());
            let first = at(0).unwrap_or(1).max(1);
            let count = at(1).map(|last| (last + 1).saturating_sub(first));
            return Some(FileWork::Read { first, count });
        }
        Some("create" | "str_replace") | None => {}
        Some(_) => return None,
    }
    if let Some(content) = text(input, &["content", "file_text", "contents"]) {
        let content = content.to_owned();
        return Some(FileWork::Write { content });
    }
    let edits = match input.get("edits").and_then(Value::as_array) {
        Some(edits) => edits.iter().map(edit).collect::<Option<Vec<_>>>()?,
        None => vec![edit(input)?],
    };
    Some(FileWork::Edit { edits })
}

fn edit(input: &Value) -> Option<Edit> {
    Some(Edit {
        old: text(input, &["old_string", "old_str", "oldText"])?.to_owned(),
        new: text(input, &["new_string", "new_str", "newText"])?.to_owned(),
        everywhere: input.get("replace_all").and_then(Value::as_bool) == Some(true),
    })
}

/// How a call was written, and so how its result is.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Anthropic's messages.
    ToolUse,
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses: what the item of the result is called.
    Response(&'static str),
    /// MCP, with the request's own id.
    Mcp(Value),
}

impl Call {
    /// Reads a call, and how it was written.
    ///
    /// # Errors
    /// As [`Call::read`] does.
    pub fn read_with_shape(text: &[u8]) -> Result<(Call, Shape), InvalidCall> {
        if text.len() > LONGEST {
            return Err(InvalidCall::TooLong);
        }
        let value = json::read(text)?;
        let call = Call::of(&value)?.ok_or(InvalidCall::Shape)?;
        let shape = match (
            value.get("method"),
            value.get("type").and_then(Value::as_str),
        ) {
            (Some(_), _) => Shape::Mcp(value.get("id").cloned().unwrap_or(Value::Null)),
            (None, Some("tool_use")) => Shape::ToolUse,
            (None, Some("function_call")) => Shape::Response("function_call_output"),
            (None, Some("custom_tool_call")) => Shape::Response("custom_tool_call_output"),
            (None, Some("local_shell_call")) => Shape::Response("local_shell_call_output"),
            (None, _) => Shape::Chat,
        };
        Ok((call, shape))
    }
}

impl Shape {
    /// The result of a call, as the one who made it expects it.
    pub fn result(&self, call: &Call, text: &str, error: bool) -> Value {
        match self {
            Shape::ToolUse => json!({
                "type": "tool_result", "tool_use_id": call.id, "content": text, "is_error": error,
            }),
            Shape::Chat => json!({"role": "tool", "tool_call_id": call.id, "content": text}),
            Shape::Response(kind) => json!({"type": kind, "call_id": call.id, "output": text}),
            Shape::Mcp(id) => json!({
                "jsonrpc": "2.0", "id": id,
                "result": {"content": [{"type": "text", "text": text}], "isError": error},
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context {
            cwd: "/project".into(),
            home: Some("/home/user".into()),
        }
    }

    fn action(text: &str) -> Option<Action> {
        let call = Call::read(text.as_bytes()).unwrap();
        Calls::shipped().unwrap().action(&call, &context())
    }

    fn use_of(name: &str, input: &str) -> String {
        format!(r#"{{"type":"tool_use","id":"t1","name":"{name}","input":{input}}}"#)
    }

    #[test]
    fn each_kind_of_tool_is_read_by_its_arguments() {
        let script = action(&use_of("Bash", r#"{"command":"ls"}"#));
        assert_eq!(
            script,
            Some(Action::Script {
                text: "ls".into(),
                cwd: None
            })
        );
        let program = action(
            r#"{"type":"function_call","name":"shell","call_id":"c","arguments":"{\"command\":[\"ls\",\"-l\"],\"workdir\":\"sub\"}"}"#,
        );
        assert_eq!(
            program,
            Some(Action::Program {
                argv: vec!["ls".into(), "-l".into()],
                cwd: Some("sub".into())
            })
        );
        let fetch = action(&use_of("WebFetch", r#"{"url":"https://a.example/"}"#));
        assert_eq!(
            fetch,
            Some(Action::Fetch {
                url: "https://a.example/".into()
            })
        );
        let file = |name: &str, input: &str| match action(&use_of(name, input)) {
            Some(Action::File(file)) => (file.path.display().to_string(), file.what),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(
            file("Read", r#"{"file_path":"~/a","offset":3,"limit":2}"#),
            (
                "/home/user/a".into(),
                FileWork::Read {
                    first: 3,
                    count: Some(2)
                }
            )
        );
        assert_eq!(
            file("Write", r#"{"file_path":"../b","content":"x"}"#),
            (
                "/b".into(),
                FileWork::Write {
                    content: "x".into()
                }
            )
        );
        let edit = Edit {
            old: "a".into(),
            new: "b".into(),
            everywhere: false,
        };
        for (name, input) in [
            (
                "Edit",
                r#"{"file_path":"f","old_string":"a","new_string":"b"}"#,
            ),
            (
                "MultiEdit",
                r#"{"file_path":"f","edits":[{"old_string":"a","new_string":"b"}]}"#,
            ),
            (
                "str_replace_based_edit_tool",
                r#"{"command":"str_replace","path":"f","old_str":"a","new_str":"b"}"#,
            ),
        ] {
            let edits = vec![edit.clone()];
            assert_eq!(
                file(name, input),
                ("/project/f".into(), FileWork::Edit { edits })
            );
        }
        assert_eq!(
            file(
                "str_replace_based_edit_tool",
                r#"{"command":"view","path":"f","view_range":[2,4]}"#
            )
            .1,
            FileWork::Read {
                first: 2,
                count: Some(3)
            }
        );
        assert_eq!(file("LS", "{}"), ("/project".into(), FileWork::List));
        let search = action(&use_of("Glob", r#"{"pattern":"*.rs","path":"src"}"#));
        assert_eq!(
            search,
            Some(Action::Search {
                path: "/project/src".into(),
                search: Search::Names {
                    glob: "*.rs".into()
                }
            })
        );
        // Codex calls it with the patch alone, and with an object.
        let text = r"*** Begin Patch\n*** Delete File: f\n*** End Patch";
        for call in [
            format!(
                r#"{{"type":"custom_tool_call","name":"apply_patch","call_id":"c","input":"{text}"}}"#
            ),
            use_of("apply_patch", &format!(r#"{{"input":"{text}"}}"#)),
        ] {
            let Some(Action::Patch(files)) = action(&call) else {
                panic!("{call}");
            };
            assert_eq!(files[0].path, PathBuf::from("/project/f"));
        }
    }

    #[test]
    fn what_is_not_carried_out_here_is_nothing_and_not_something_near_it() {
        for (name, input) in [
            ("Task", r#"{"prompt":"x"}"#),
            ("no_such_tool", r#"{"command":"ls"}"#),
            ("Grep", r#"{"pattern":"x","type":"rust"}"#),
            ("apply_patch", r#"{"input":"--- a/f\n+++ b/f\n"}"#),
            ("Bash", r#"{"command":7}"#),
            ("Bash", "{}"),
            ("Edit", r#"{"file_path":"f","old_string":"a"}"#),
            ("Write", r#"{"content":"x"}"#),
            ("delete_file", r#"{"path":"f"}"#),
            (
                "str_replace_based_edit_tool",
                r#"{"command":"undo_edit","path":"f"}"#,
            ),
        ] {
            assert_eq!(action(&use_of(name, input)), None, "{name}");
        }
    }

    #[test]
    fn a_tool_in_a_namespace_is_not_the_one_outside_of_it() {
        let call = |kind: &str, space: &str| {
            let text = format!(
                r#"{{"type":"{kind}","name":"run_command","namespace":{space},"call_id":"c","arguments":"{{}}","input":"x"}}"#
            );
            Call::read(text.as_bytes()).ok().map(|call| call.name)
        };
        for kind in ["function_call", "custom_tool_call"] {
            let of = |space: &str| call(kind, space);
            assert_eq!(of("null").as_deref(), Some("run_command"));
            for space in [r#""mcp__notes""#, r#""mcp__notes__""#] {
                assert_eq!(of(space).as_deref(), Some("mcp__notes__run_command"));
            }
            assert_eq!(of(r#"["mcp__notes"]"#), None);
        }
        let item = r#"{"type":"function_call","name":"run_command","namespace":"mcp__notes","arguments":"{\"command\":\"ls\"}"}"#;
        assert_eq!(action(item), None);
        let plain = item.replace(r#""namespace":"mcp__notes","#, "");
        assert!(matches!(action(&plain), Some(Action::Script { .. })));
    }

    #[test]
    fn a_result_has_the_shape_of_its_call() {
        let told = |text: &str| {
            let (call, shape) = Call::read_with_shape(text.as_bytes()).unwrap();
            shape.result(&call, "said", true)
        };
        assert_eq!(
            told(&use_of("Bash", "{}")),
            json!({"type":"tool_result","tool_use_id":"t1","content":"said","is_error":true})
        );
        assert_eq!(
            told(r#"{"id":"c1","type":"function","function":{"name":"shell","arguments":"{}"}}"#),
            json!({"role":"tool","tool_call_id":"c1","content":"said"})
        );
        assert_eq!(
            told(r#"{"type":"function_call","name":"shell","call_id":"c2","arguments":"{}"}"#),
            json!({"type":"function_call_output","call_id":"c2","output":"said"})
        );
        assert_eq!(
            told(
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fetch","arguments":{}}}"#
            ),
            json!({"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"said"}],"isError":true}})
        );
    }
}
