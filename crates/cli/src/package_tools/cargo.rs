//! cargo.

use super::{ToolAnswer, UserDirectories, ask, tool_path};
use crate::paths;
use ironcage_files::{Links, open_regular};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// In the cage: cargo looks in every directory above a package, so this one counts everywhere, and
/// settings of the package win as they do outside.
const FILE: &str = "/.cargo/config.toml";
/// The name of the registry that cargo has without settings.
const DEFAULT: &str = "crates-io";
/// Longest program that is searched for its default registry.
const LONGEST_PROGRAM: u64 = 256 << 20;

pub(super) fn cargo(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let own = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && !path.starts_with(dirs.workspace))
        .unwrap_or_else(|| dirs.home.join(".cargo"));
    let mut answer = ToolAnswer::default();
    // The first is the only one that cargo reads, where both are there.
    let text = ["config", "config.toml"]
        .iter()
        .find_map(|name| paths::text(&own.join(name)));
    let settings = settings(&text.unwrap_or_default(), &mut answer);
    let is_replaced = (settings.get("source"))
        .and_then(|sources| sources.get(DEFAULT)?.get("replace-with"))
        .is_some();
    if !settings.is_empty() {
        answer.files.push((FILE.into(), settings.to_string()));
    }
    for (name, value) in std::env::vars() {
        let index = name.strip_prefix("CARGO_REGISTRIES_");
        if index.is_some_and(|rest| rest.ends_with("_INDEX")) {
            let url = answer.take(&name, &value);
            answer.set(&name, url);
        } else if name == "CARGO_REGISTRY_DEFAULT" {
            answer.set(&name, value);
        }
    }
    used(&own, &mut answer);
    let knows_default = |answer: &ToolAnswer| answer.urls.iter().any(|(by, _)| by == USED);
    if !is_replaced && !knows_default(&answer) {
        default_registry(dirs, &mut answer);
    }
    answer
}

/// The registries of a configuration, as far as a cage gets them: where they are, and nothing that
/// names a program or a token.
fn settings(text: &str, answer: &mut ToolAnswer) -> toml::Table {
    let mut kept = toml::Table::new();
    let Ok(table) = text.parse::<toml::Table>() else {
        return kept;
    };
    for (section, url, others) in [
        ("source", "registry", &["replace-with"][..]),
        ("registries", "index", &[][..]),
    ] {
        let entries = table.get(section).and_then(toml::Value::as_table);
        let mut own = toml::Table::new();
        for (name, entry) in entries.into_iter().flatten() {
            let mut values = toml::Table::new();
            if let Some(index) = entry.get(url).and_then(toml::Value::as_str) {
                let bare = answer.take(&format!("cargo's {section}.{name}.{url}"), index);
                values.insert(url.to_owned(), bare.into());
            }
            for other in others {
                if let Some(value) = entry.get(*other).and_then(toml::Value::as_str) {
                    values.insert((*other).to_owned(), value.into());
                }
            }
            if !values.is_empty() {
                own.insert(name.clone(), values.into());
            }
        }
        if !own.is_empty() {
            kept.insert(section.to_owned(), own.into());
        }
    }
    let default = table
        .get("registry")
        .and_then(|registry| registry.get("default"));
    if let Some(default) = default.and_then(toml::Value::as_str) {
        let mut registry = toml::Table::new();
        registry.insert("default".into(), default.into());
        kept.insert("registry".into(), registry.into());
    }
    kept
}

const USED: &str = "a registry that cargo has used";

/// Registries that it has used, and their download hosts.
fn used(own: &Path, answer: &mut ToolAnswer) {
    let used = std::fs::read_dir(own.join("registry/index"));
    for entry in used.into_iter().flatten().flatten().take(64) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((host, _)) = name.rsplit_once('-') {
            answer.take(USED, &format!("https://{host}"));
        }
        let text = paths::text(&entry.path().join("config.json")).unwrap_or_default();
        let settings: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        for key in ["dl", "api"] {
            if let Some(url) = settings.get(key).and_then(|value| value.as_str()) {
                answer.take(&format!("a registry's {key}"), url);
            }
        }
    }
}

/// The registry of a cargo that has no settings and has used none is only in the program. It serves
/// crates from the name `static` beside that of its index.
fn default_registry(dirs: &UserDirectories<'_>, answer: &mut ToolAnswer) {
    let toolchains = ask(dirs, "rustup", &["which", "cargo"]);
    let program = toolchains
        .map(|path| PathBuf::from(path.trim()))
        .or_else(|| tool_path(dirs.workspace, "cargo"));
    let real = program.and_then(|program| std::fs::canonicalize(program).ok());
    let file = real
        .filter(|real| !real.starts_with(dirs.workspace))
        .and_then(|real| open_regular(&real, Links::Refuse).ok());
    let mut bytes = Vec::new();
    if let Some((file, _)) = file
        && file.take(LONGEST_PROGRAM).read_to_end(&mut bytes).is_ok()
        && let Some(index) = index_in(&bytes)
    {
        answer.take("cargo itself", &format!("https://{index}"));
        if let Some(parent) = index.strip_prefix("index.") {
            answer.take("cargo itself", &format!("https://static.{parent}"));
        }
    }
}

/// The host of the first whole URL of a sparse index in a program.
fn index_in(bytes: &[u8]) -> Option<&str> {
    const BEGIN: &[u8] = b"sparse+https://";
    let mut rest = bytes;
    while let Some(at) = find(rest, BEGIN) {
        rest = rest.get(at + BEGIN.len()..)?;
        let is_host = |byte: &u8| byte.is_ascii_lowercase() || matches!(byte, b'.' | b'-');
        let end = rest.iter().position(|byte| !is_host(byte))?;
        let host = std::str::from_utf8(rest.get(..end)?).ok()?;
        if rest.get(end) == Some(&b'/') && host.contains('.') {
            return Some(host);
        }
    }
    None
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if bytes.get(at..)?.starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_kept_and_nothing_that_runs_programs() {
        let mut answer = ToolAnswer::default();
        let kept = settings(
            "[source.crates-io]\nreplace-with = \"own\"\n[source.own]\nregistry = \"sparse+https://ann:pw@mirror.test/index/\"\n[registries.corp]\nindex = \"https://corp.test/git\"\ntoken = \"secret\"\ncredential-provider = \"run-me\"\n[registry]\ndefault = \"corp\"\ntoken = \"secret\"\n[build]\nrustc-wrapper = \"run-me\"\n",
            &mut answer,
        );
        let text = kept.to_string();
        for part in [
            "replace-with = \"own\"",
            "sparse+https://mirror.test/index/",
            "default = \"corp\"",
        ] {
            assert!(text.contains(part), "{text}");
        }
        for part in ["secret", "run-me", "pw@"] {
            assert!(!text.contains(part), "{text}");
        }
        assert_eq!(answer.urls.len(), 2);
        assert!(settings("not toml [", &mut answer).is_empty());
    }

    #[test]
    fn the_default_registry_is_found_in_the_program() {
        let program = b"\0xsparse+https://: sparse+https://index.example.test/\0\0";
        assert_eq!(index_in(program), Some("index.example.test"));
        assert_eq!(index_in(b"sparse+https://nothing"), None);
    }
}
