//! `ironcage mcp approve SERVER` and `ironcage mcp pins`: a person looks at what servers say.

use crate::catalog::{Catalog, Described};
use crate::error::{McpError, ServerStartError};
use crate::launch;
use crate::pins::{Lock, ToolPin};
use crate::settings::Settings;
use crate::upstream::{Era, Reports, Upstream};
use ironcage_command::mcp::Approve;
use ironcage_tools::{FirstUse, findings, one_line};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use tokio::sync::mpsc;

pub(crate) async fn run(settings: Settings, args: Approve) -> Result<(), McpError> {
    let name = args.what.clone();
    if !settings.policy.rules.servers.contains_key(&name) {
        return Err(McpError::NoServer(name));
    }
    let server = launch::server(&settings, &name, &args.env, &args.command)?;
    let (changes, _changes) = mpsc::channel(64);
    let (refused, _refused) = mpsc::channel(64);
    let reports = Reports { changes, refused };
    let upstream = Upstream::start(&settings, &name, server, Era::Handshake, reports, None).await?;
    let described = upstream.describe().await;
    upstream.stop().await;
    let described = described.map_err(|error| McpError::Start {
        server: name.clone(),
        cause: ServerStartError::Describe(Box::new(error)),
    })?;
    let (pin, tools) = described;
    for wanted in &args.tool {
        if !pin.tools.contains_key(wanted) {
            return Err(McpError::NoTool {
                server: name,
                tool: one_line(wanted),
            });
        }
    }
    // Nothing is pinned before the question is answered.
    let mut launch = upstream.launch.clone();
    launch.first_use = FirstUse::Ask;
    let one = Described {
        name: name.clone(),
        launch,
        pin: pin.clone(),
        tools,
    };
    let mut lock = Lock::read(&settings)?;
    let catalog = Catalog::make(&settings, &[one], true)?;
    let known = lock.servers.get(&name).cloned();
    let mut news = 0;
    let mut out = String::new();
    if let Some(text) = pin
        .instructions
        .as_ref()
        .filter(|text| known.as_ref().and_then(|known| known.instructions.as_ref()) != Some(text))
    {
        news += 1;
        out.push_str(&format!("instructions of {name}:\n{}\n", indented(text)));
    }
    let chosen = |tool: &str| args.tool.is_empty() || args.tool.iter().any(|wanted| wanted == tool);
    for (tool, now) in pin.tools.iter().filter(|(tool, _)| chosen(tool)) {
        let Some(kept) = catalog.find(tool).and_then(|entry| entry.kept.as_ref()) else {
            continue;
        };
        news += 1;
        let listed = match settings.policy.lists(&name, tool) {
            true => "",
            false => " (the policy does not list it)",
        };
        out.push_str(&format!("\n{}{listed}: {}\n", one_line(tool), kept.text()));
        let before = known.as_ref().and_then(|known| known.tools.get(tool));
        out.push_str(&difference(before, now));
    }
    anstream::print!("{out}");
    if news == 0 {
        anstream::println!("{name}: every tool is as it was approved");
        return Ok(());
    }
    if !args.yes && !confirmed(&name)? {
        anstream::println!("nothing was approved");
        return Ok(());
    }
    lock.version = 1;
    let entry = lock.servers.entry(name.clone()).or_default();
    entry.launch.clone_from(&pin.launch);
    entry.instructions.clone_from(&pin.instructions);
    for (tool, now) in pin.tools.iter().filter(|(tool, _)| chosen(tool)) {
        entry.tools.insert(tool.clone(), now.clone());
    }
    // What the server no longer has is not approved if it comes back.
    entry.tools.retain(|tool, _| pin.tools.contains_key(tool));
    let count = entry.tools.len();
    lock.write(&settings)?;
    anstream::println!("approved: {name}, {count} tools");
    Ok(())
}

/// The text with hidden characters made visible, set off from the left.
fn indented(text: &str) -> String {
    let shown: String = text
        .chars()
        .flat_map(|c| match c != '\r' && findings(&c.to_string()).is_empty() {
            true => vec![c],
            false => c.escape_unicode().collect(),
        })
        .collect();
    shown.lines().map(|line| format!("    {line}\n")).collect()
}

fn pretty(tool: &Value) -> String {
    serde_json::to_string_pretty(tool).unwrap_or_default()
}

/// What differs from what was approved, or all of it.
fn difference(before: Option<&ToolPin>, now: &ToolPin) -> String {
    let new = pretty(&now.tool);
    let Some(before) = before else {
        let description = now.tool.get("description").and_then(Value::as_str);
        return format!(
            "{}  all that a client sees of it:\n{}",
            indented(description.unwrap_or_default()),
            indented(&new)
        );
    };
    let old = pretty(&before.tool);
    let text = similar::TextDiff::from_lines(&old, &new);
    let diff = text.unified_diff().context_radius(1).to_string();
    indented(&diff)
}

fn confirmed(server: &str) -> Result<bool, McpError> {
    if !std::io::stdin().is_terminal() {
        return Err(McpError::NoTerminal);
    }
    anstream::print!("\nApprove this for {server}? [y/N] ");
    std::io::stdout().flush().map_err(McpError::Print)?;
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(McpError::Print)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Lists what was approved and what waits.
pub(crate) fn list(settings: &Settings, as_json: bool) -> Result<(), McpError> {
    let lock = Lock::read(settings)?;
    let waiting = settings.calls()?.list()?;
    if as_json {
        let servers: Value = lock
            .servers
            .iter()
            .map(|(name, pin)| {
                let tools: Value = pin
                    .tools
                    .iter()
                    .map(|(tool, pin)| (tool.clone(), json!(pin.hash)))
                    .collect::<serde_json::Map<_, _>>()
                    .into();
                (name.clone(), json!({"launch": pin.launch, "tools": tools}))
            })
            .collect::<serde_json::Map<_, _>>()
            .into();
        let all = json!({"file": Lock::path(settings), "servers": servers, "calls": waiting});
        let text = ironcage_command::json::pretty(&all).map_err(McpError::Print)?;
        anstream::println!("{text}");
        return Ok(());
    }
    for (name, pin) in &lock.servers {
        anstream::println!("{name}: {} tools approved", pin.tools.len());
        for (tool, pin) in &pin.tools {
            let short = pin.hash.get(..12).unwrap_or(&pin.hash);
            anstream::println!("  {short}  {}", one_line(tool));
        }
    }
    if lock.servers.is_empty() {
        anstream::println!("no server is approved; `ironcage mcp approve SERVER` reviews one");
    }
    for call in waiting.iter().filter(|call| call.allowed.is_none()) {
        anstream::println!(
            "call {}: {} of {}: {}",
            call.number,
            one_line(&call.tool),
            call.server,
            one_line(&call.reason)
        );
        anstream::print!("{}", indented(&pretty(&call.arguments)));
        // Lines of a text are read as lines.
        for (name, text) in call.arguments.as_object().into_iter().flatten() {
            if let Some(text) = text.as_str().filter(|text| text.contains('\n')) {
                anstream::print!("    {} as text:\n{}", one_line(name), indented(text));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_tool_is_shown_with_everything_that_is_pinned() {
        let now = ToolPin {
            hash: String::new(),
            tool: json!({
                "name": "t", "title": "The title", "description": "Reads.",
                "annotations": {"readOnlyHint": true},
                "inputSchema": {"properties": {"a": {"description": "first\rlast"}}}
            }),
        };
        let shown = difference(None, &now);
        for part in ["Reads.", "The title", "readOnlyHint", "first\\rlast"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let hidden = indented("a\rb\u{200b}\nc");
        assert_eq!(hidden, "    a\\u{d}b\\u{200b}\n    c\n");
    }
}
