//! Reads the sandbox settings of VS Code's agent: `chat.agent.sandbox.*` of its `settings.json`.

use super::settings::{Rule, Rules};
use super::{Finding, ImportError, Kind, Place};
use serde_json::Value;

const PREFIX: &str = "chat.agent.sandbox.";

pub(super) fn read(
    value: &Value,
    place: &Place,
    findings: &mut Vec<Finding>,
) -> Result<Rules, ImportError> {
    let shape = |key: &str, wanted| ImportError::Shape {
        key: key.to_owned(),
        wanted,
    };
    let top = value
        .as_object()
        .ok_or_else(|| shape("the settings", "an object"))?;
    let mut rules = Rules::default();
    let rule = |key: &str, text: &str| Rule {
        key: key.to_owned(),
        text: text.to_owned(),
        literal: true,
        from: place.workspace.clone(),
    };
    let list = |key: &str, value: &Value| -> Result<Vec<Rule>, ImportError> {
        let wrong = || shape(key, "a list of strings");
        let entries = value.as_array().ok_or_else(wrong)?.iter();
        entries
            .map(|entry| Ok(rule(key, entry.as_str().ok_or_else(wrong)?)))
            .collect()
    };
    // The sandbox of VS Code always lets the workspace be written.
    rules.allow_write.push(rule("the workspace", "."));
    for (key, value) in top {
        let Some(name) = key.strip_prefix(PREFIX) else {
            continue;
        };
        let mut tell = |kind, note: &str| {
            findings.push(Finding {
                kind,
                subject: key.clone(),
                value: Some(value.to_string()),
                note: note.to_owned(),
            });
        };
        match name {
            "enabled" => tell(Kind::Kept, "always on in a cage"),
            "network.allowedDomains" => rules.allow_hosts.extend(list(key, value)?),
            "network.deniedDomains" => rules.deny_hosts.extend(list(key, value)?),
            "network.allowNetwork" => match value {
                Value::Bool(false) => tell(Kind::Kept, "a cage has no network by default"),
                Value::Bool(true) => tell(
                    Kind::Narrower,
                    "only listed hosts are allowed; add what is missing to network.allow",
                ),
                _ => return Err(shape(key, "true or false")),
            },
            "network.allowLocalNetwork" => {
                tell(
                    Kind::Narrower,
                    "network.host-ports allows loopback ports one by one",
                );
            }
            "fileSystem.userConfiguredPaths" => {
                let paths = value.as_object().ok_or_else(|| shape(key, "an object"))?;
                for (kind, value) in paths {
                    let whole = format!("{key}.{kind}");
                    match kind.as_str() {
                        "readwritePaths" => rules.allow_write.extend(list(&whole, value)?),
                        "readonlyPaths" => {
                            let named = list(&whole, value)?;
                            rules.deny_write.extend(named.clone());
                            rules.allow_read.extend(named);
                        }
                        "deniedPaths" => rules.deny_read.extend(list(&whole, value)?),
                        _ => tell(Kind::Unknown, "not known to this version"),
                    }
                }
            }
            "fileSystem.allowDevToolAccess" => {
                tell(
                    Kind::NoEqual,
                    "files.toolchains shows the toolchains in your PATH, read-only",
                );
            }
            "allowUnsandboxedCommands" => {
                tell(Kind::Narrower, "never: no command leaves the cage");
            }
            "mcpServers" | "lspServers" => {
                tell(
                    Kind::NoEqual,
                    "start these servers with `ironcage run` each",
                );
            }
            _ if name.starts_with("credentials.") => {
                tell(
                    Kind::NoEqual,
                    "network.secrets adds a token to requests; the agent never holds it",
                );
            }
            _ => tell(Kind::Unknown, "not known to this version"),
        }
    }
    Ok(rules)
}
