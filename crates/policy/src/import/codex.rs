//! Reads the sandbox settings of Codex: `sandbox_mode` and `[sandbox_workspace_write]` of its
//! `config.toml`.

use super::settings::{Rule, Rules};
use super::{Finding, ImportError, Kind, Place};
use toml::{Table, Value};

const SECTION: &str = "sandbox_workspace_write";
/// Codex protects these in every writable root.
const PROTECTED: [&str; 2] = [".git", ".codex"];

pub(super) fn read(
    text: &str,
    place: &Place,
    findings: &mut Vec<Finding>,
) -> Result<Rules, ImportError> {
    let top: Table = text.parse().map_err(ImportError::Toml)?;
    let mut rules = Rules::default();
    let mut tell = |kind, subject: &str, value: Option<String>, note: &str| {
        findings.push(Finding {
            kind,
            subject: subject.to_owned(),
            value,
            note: note.to_owned(),
        });
    };
    let shape = |key: &str, wanted| ImportError::Shape {
        key: key.to_owned(),
        wanted,
    };
    let rule = |key: &str, text: &str| Rule {
        key: key.to_owned(),
        text: text.to_owned(),
        literal: true,
        from: place.workspace.clone(),
    };
    let mode = match top.get("sandbox_mode") {
        None => "read-only",
        Some(Value::String(mode)) => mode.as_str(),
        Some(_) => return Err(shape("sandbox_mode", "a string")),
    };
    let section = match top.get(SECTION) {
        None => None,
        Some(Value::Table(section)) => Some(section),
        Some(_) => return Err(shape(SECTION, "a table")),
    };
    match mode {
        "read-only" => tell(
            Kind::Kept,
            "sandbox_mode",
            Some(mode.into()),
            "the workspace is read-only",
        ),
        "workspace-write" => {
            rules.allow_write.push(rule("sandbox_mode", "."));
            for name in PROTECTED {
                if place.workspace.join(name).exists() {
                    rules.deny_write.push(rule("sandbox_mode", name));
                }
            }
        }
        "danger-full-access" => {
            rules.allow_write.push(rule("sandbox_mode", "."));
            tell(
                Kind::Narrower,
                "sandbox_mode",
                Some(mode.into()),
                "no cage has the whole host: the workspace is writable, and the rest has to be named",
            );
        }
        _ => {
            return Err(shape(
                "sandbox_mode",
                "read-only, workspace-write or danger-full-access",
            ));
        }
    }
    for (key, value) in section.into_iter().flatten() {
        let whole = format!("{SECTION}.{key}");
        let shown = Some(value.to_string());
        match key.as_str() {
            "writable_roots" if mode == "workspace-write" => {
                let Value::Array(roots) = value else {
                    return Err(shape(&whole, "a list of paths"));
                };
                for root in roots {
                    let Value::String(root) = root else {
                        return Err(shape(&whole, "a list of paths"));
                    };
                    rules.allow_write.push(rule(&whole, root));
                }
            }
            "network_access" => match value {
                Value::Boolean(false) => {
                    tell(
                        Kind::Kept,
                        &whole,
                        shown,
                        "a cage has no network by default",
                    );
                }
                Value::Boolean(true) => tell(
                    Kind::Narrower,
                    &whole,
                    shown,
                    "only `--network open` allows every host, for one run; list the needed hosts in network.allow",
                ),
                _ => return Err(shape(&whole, "true or false")),
            },
            "exclude_tmpdir_env_var" | "exclude_slash_tmp" => {
                tell(Kind::NoEqual, &whole, shown, "a cage has its own /tmp");
            }
            "writable_roots" => tell(
                Kind::NoEqual,
                &whole,
                shown,
                "Codex uses it only with sandbox_mode = \"workspace-write\"",
            ),
            _ => tell(Kind::Unknown, &whole, shown, "not known to this version"),
        }
    }
    Ok(rules)
}
