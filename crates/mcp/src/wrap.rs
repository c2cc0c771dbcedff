//! `ironcage mcp wrap` and `unwrap`: the configurations of clients, to go through the gateway and back.

use crate::error::{McpError, ParseError};
use crate::settings::replace;
use serde_json::{Map, Value, json};
use std::path::Path;
use toml_edit::{Array, DocumentMut};

/// Largest configuration that is read.
const LARGEST: u64 = 16 << 20;
/// What the gateway is started with for one server.
const GATEWAY: [&str; 3] = ["mcp", "gateway", "--server"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Wrap,
    Unwrap,
}

/// One server as clients write it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    command: String,
    args: Vec<String>,
}

/// What was changed, and the sections that the policy needs.
#[derive(Debug, Default)]
struct Changed {
    text: String,
    servers: Vec<String>,
    /// Servers without a command, which stay as they are.
    left: Vec<String>,
}

pub(crate) fn run(file: &Path, direction: Direction, dry_run: bool) -> Result<(), McpError> {
    let text = ironcage_files::read_text(file, LARGEST, ironcage_files::Links::Follow);
    let text = text.map_err(|error| McpError::Read(file.to_owned(), error.into()))?;
    let is_toml = file
        .extension()
        .is_some_and(|extension| extension == "toml");
    let parsed = match is_toml {
        true => toml(&text, direction),
        false => json_text(&text, direction),
    };
    let changed = parsed.map_err(|cause| McpError::Parse {
        path: file.to_owned(),
        cause,
    })?;
    if dry_run {
        anstream::print!("{}", changed.text);
        return Ok(());
    }
    let real =
        std::fs::canonicalize(file).map_err(|error| McpError::Read(file.to_owned(), error))?;
    if !changed.servers.is_empty() {
        let mode = std::fs::metadata(&real).map(|found| found.permissions());
        replace(&real, changed.text.as_bytes())?;
        if let Ok(mode) = mode {
            std::fs::set_permissions(&real, mode)
                .map_err(|error| McpError::Write(real.clone(), error))?;
        }
    }
    for name in &changed.left {
        let name = ironcage_tools::printable(name);
        anstream::eprintln!(
            "ironcage: note: {name} has no command, or a name that no policy can have, and stays as it is"
        );
    }
    match (changed.servers.as_slice(), direction) {
        ([], _) => anstream::println!("nothing to change in {}", file.display()),
        (servers, Direction::Unwrap) => anstream::println!("unwrapped: {}", servers.join(", ")),
        (servers, Direction::Wrap) => {
            anstream::println!("wrapped: {}", servers.join(", "));
            anstream::println!(
                "\nAdd to ironcage.toml what each may do, then run `ironcage trust` and `ironcage mcp approve SERVER`:\n"
            );
            for name in servers {
                anstream::println!("[mcp.{name}]\nallow = []");
            }
        }
    }
    Ok(())
}

fn is_server_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(plain)
}

/// The entry in the other form, or `None` where it is not one to change.
fn change(name: &str, entry: &Entry, env: &[String], direction: Direction) -> Option<Entry> {
    let wrapped = entry.command.ends_with("ironcage")
        && entry.args.iter().map(String::as_str).take(3).eq(GATEWAY);
    // Ironcage's own server makes cages, which cannot be done from inside one.
    let own =
        entry.command.ends_with("ironcage") && entry.args.first().is_some_and(|word| word == "mcp");
    match (direction, wrapped) {
        (Direction::Wrap, false) if !own && is_server_name(name) && !entry.command.is_empty() => {
            let mut args: Vec<String> = GATEWAY.map(str::to_owned).to_vec();
            args.push(name.to_owned());
            for variable in env {
                args.extend(["--env".to_owned(), variable.clone()]);
            }
            args.extend(["--".to_owned(), entry.command.clone()]);
            args.extend(entry.args.iter().cloned());
            let command = "ironcage".to_owned();
            Some(Entry { command, args })
        }
        (Direction::Unwrap, true) => {
            let end = entry.args.iter().position(|word| word == "--")?;
            let mut rest = entry.args.get(end + 1..)?.iter().cloned();
            let command = rest.next()?;
            let args = rest.collect();
            Some(Entry { command, args })
        }
        _ => None,
    }
}

/// `mcpServers` of .mcp.json, Claude and Cursor, below `projects` too; `servers` of VS Code.
fn json_text(text: &str, direction: Direction) -> Result<Changed, ParseError> {
    let mut value: Value = serde_json::from_str(text)?;
    let mut changed = Changed::default();
    let mut found = false;
    let mut change_in = |servers: Option<&mut Value>| {
        if let Some(Value::Object(servers)) = servers {
            found = true;
            json_servers(servers, direction, &mut changed);
        }
    };
    if let Some(projects) = value.get_mut("projects").and_then(Value::as_object_mut) {
        for project in projects.values_mut() {
            change_in(project.get_mut("mcpServers"));
        }
    }
    for key in ["mcpServers", "servers"] {
        change_in(value.get_mut(key));
    }
    change_in(value.pointer_mut("/mcp/servers"));
    if !found {
        return Err(ParseError::NoJsonServers);
    }
    let text = serde_json::to_string_pretty(&value)?;
    changed.text = format!("{text}\n");
    Ok(changed)
}

fn json_servers(servers: &mut Map<String, Value>, direction: Direction, changed: &mut Changed) {
    for (name, server) in servers {
        let words = |value: Option<&Value>| -> Vec<String> {
            let items = value.and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let entry = Entry {
            command: server
                .get("command")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            args: words(server.get("args")),
        };
        let env = server.get("env").and_then(Value::as_object);
        let env: Vec<String> = env
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        match (
            change(name, &entry, &env, direction),
            server.as_object_mut(),
        ) {
            (Some(new), Some(server)) => {
                server.insert("command".to_owned(), json!(new.command));
                server.insert("args".to_owned(), json!(new.args));
                changed.servers.push(name.clone());
            }
            _ if direction == Direction::Wrap && entry.command != "ironcage" => {
                changed.left.push(name.clone());
            }
            _ => {}
        }
    }
}

/// `[mcp_servers.NAME]` of Codex. Comments and order stay.
fn toml(text: &str, direction: Direction) -> Result<Changed, ParseError> {
    let mut document: DocumentMut = text.parse()?;
    let mut changed = Changed::default();
    let servers = document
        .get_mut("mcp_servers")
        .and_then(|servers| servers.as_table_like_mut());
    let Some(servers) = servers else {
        return Err(ParseError::NoTomlServers);
    };
    for (name, server) in servers.iter_mut() {
        let name = name.get().to_owned();
        let Some(server) = server.as_table_like_mut() else {
            continue;
        };
        let args = server.get("args").and_then(|args| args.as_array());
        let args = args.into_iter().flatten().filter_map(|word| word.as_str());
        let entry = Entry {
            command: server
                .get("command")
                .and_then(|word| word.as_str())
                .unwrap_or_default()
                .to_owned(),
            args: args.map(str::to_owned).collect(),
        };
        let env = server.get("env").and_then(|env| env.as_table_like());
        let env: Vec<String> = env
            .into_iter()
            .flat_map(|env| env.iter())
            .map(|(name, _)| name.to_owned())
            .collect();
        match change(&name, &entry, &env, direction) {
            Some(new) => {
                let args: Array = new.args.into_iter().collect();
                server.insert("command", toml_edit::value(new.command));
                server.insert("args", toml_edit::value(args));
                changed.servers.push(name);
            }
            None if direction == Direction::Wrap && entry.command != "ironcage" => {
                changed.left.push(name);
            }
            None => {}
        }
    }
    changed.text = document.to_string();
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named_once_with_its_cause() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("absent.json");
        let error = run(&file, Direction::Wrap, true).unwrap_err();
        let shown = ironcage_model::in_full(&error);
        assert_eq!(shown.matches("cannot read").count(), 1, "{shown}");
        assert!(shown.contains("No such file"), "{shown}");
    }

    #[test]
    fn json_is_wrapped_and_unwrapped_to_what_it_was() {
        let text = json!({
            "mcpServers": {
                "files": {"command": "npx", "args": ["-y", "server", "--", "."], "env": {"KEY": "1"}},
                "web": {"url": "https://example.com/mcp"},
                "ironcage": {"command": "ironcage", "args": ["mcp"]}
            },
            "projects": {"/x": {"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git"]}}}},
            "other": [1, 2]
        })
        .to_string();
        let wrapped = json_text(&text, Direction::Wrap).unwrap();
        assert_eq!(wrapped.servers, ["git", "files"]);
        assert_eq!(wrapped.left, ["web"]);
        let value: Value = serde_json::from_str(&wrapped.text).unwrap();
        assert_eq!(value["mcpServers"]["files"]["command"], "ironcage");
        assert_eq!(
            value["mcpServers"]["files"]["args"],
            json!([
                "mcp", "gateway", "--server", "files", "--env", "KEY", "--", "npx", "-y", "server",
                "--", "."
            ])
        );
        // A second time changes nothing.
        assert!(
            json_text(&wrapped.text, Direction::Wrap)
                .unwrap()
                .servers
                .is_empty()
        );
        let back = json_text(&wrapped.text, Direction::Unwrap).unwrap();
        let (before, after): (Value, Value) = (
            serde_json::from_str(&text).unwrap(),
            serde_json::from_str(&back.text).unwrap(),
        );
        assert_eq!(before, after);
        assert!(json_text("{}", Direction::Wrap).is_err());
    }

    #[test]
    fn codex_is_wrapped_and_unwrapped_and_keeps_its_comments() {
        let text = "model = \"x\" # mine\n\n[mcp_servers.files]\ncommand = \"npx\"\nargs = [\"-y\", \"server\"]\nenv = { KEY = \"1\" }\n";
        let wrapped = toml(text, Direction::Wrap).unwrap();
        assert!(wrapped.text.contains("# mine"), "{}", wrapped.text);
        assert!(
            wrapped.text.contains(
                r#"args = ["mcp", "gateway", "--server", "files", "--env", "KEY", "--", "npx", "-y", "server"]"#
            ),
            "{}",
            wrapped.text
        );
        assert_eq!(toml(&wrapped.text, Direction::Unwrap).unwrap().text, text);
    }
}
