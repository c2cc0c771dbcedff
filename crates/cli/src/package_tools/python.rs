//! pip and uv.

use super::{ToolAnswer, UserDirectories, ask, variable};
use crate::paths;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where uv reads the settings of the system: below those of a project, as the user's own are.
const UV_FILE: &str = "/etc/uv/uv.toml";

pub(super) fn pip(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let settings = ["pip3", "pip"]
        .iter()
        .find_map(|pip| ask(dirs, pip, &["config", "list"]))
        .unwrap_or_default();
    let mut answer = ToolAnswer::default();
    let settings = pip_settings(&settings);
    let urls = |answer: &mut ToolAnswer, kind: &str| -> Vec<String> {
        let Some((key, value)) = settings.get(kind) else {
            return Vec::new();
        };
        value
            .split_whitespace()
            .filter(|url| url.contains("://") && !url.starts_with("file:"))
            .map(|url| answer.take(&format!("pip's {key}"), url))
            .collect()
    };
    for (kind, variable) in [
        ("index-url", "PIP_INDEX_URL"),
        ("extra-index-url", "PIP_EXTRA_INDEX_URL"),
        ("find-links", "PIP_FIND_LINKS"),
    ] {
        let urls = urls(&mut answer, kind);
        if !urls.is_empty() {
            answer.set(variable, urls.join(" "));
        }
    }
    if let Some((_, hosts)) = settings.get("trusted-host") {
        let hosts: Vec<&str> = hosts.split_whitespace().collect();
        answer.set("PIP_TRUSTED_HOST", hosts.join(" "));
    }
    if !settings.contains_key("index-url") {
        for url in default_index(dirs) {
            answer.take("pip itself", &url);
        }
    }
    answer
}

/// The settings that count, by their kind: with the whole name of each. A variable wins over the
/// section of a command, and that over the global one.
fn pip_settings(text: &str) -> BTreeMap<&str, (&str, String)> {
    let rank = |key: &str| match key.split('.').next() {
        Some(":env:") => 2,
        Some("install") => 1,
        _ => 0,
    };
    let mut found: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let kind = key.rsplit('.').next().unwrap_or_default();
        let value = value.trim_matches(['\'', '"']).replace("\\n", " ");
        let wins = found
            .get(kind)
            .is_none_or(|(known, _)| rank(known) <= rank(key));
        if wins {
            found.insert(kind, (key, value));
        }
    }
    found
}

/// The default index of Python's tools is only in their source.
fn default_index(dirs: &UserDirectories<'_>) -> Vec<String> {
    let program = "from pip._internal.models.index import PyPI as p\n\
                   print(p.simple_url)\nprint('https://' + p.file_storage_domain)";
    let own = ask(dirs, "python3", &["-I", "-c", program]).unwrap_or_default();
    own.lines().map(|line| line.trim().to_owned()).collect()
}

/// An index of uv's.
#[derive(Debug, PartialEq, Eq)]
struct UvIndex {
    name: Option<String>,
    url: String,
    is_default: bool,
}

pub(super) fn uv(dirs: &UserDirectories<'_>) -> ToolAnswer {
    let own = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let own = own.filter(|path| path.is_absolute() && !path.starts_with(dirs.workspace));
    let own = own.unwrap_or_else(|| dirs.home.join(".config"));
    let files = [own.join("uv/uv.toml"), PathBuf::from(UV_FILE)];
    let text = |path: &PathBuf| paths::text(path).unwrap_or_default();
    let mut indexes = uv_variables(variable);
    for path in &files {
        indexes.extend(uv_file(&text(path)));
    }
    let mut answer = ToolAnswer::default();
    let mut tables = toml::value::Array::new();
    let mut has_default = false;
    for index in indexes {
        if index.is_default && std::mem::replace(&mut has_default, true) {
            continue;
        }
        let setting = format!("uv's index {}", index.name.as_deref().unwrap_or("url"));
        let mut table = toml::Table::new();
        table.extend(index.name.map(|name| ("name".to_owned(), name.into())));
        table.insert("url".into(), answer.take(&setting, &index.url).into());
        if index.is_default {
            table.insert("default".into(), true.into());
        }
        tables.push(table.into());
    }
    if !has_default {
        for url in default_index(dirs) {
            answer.take("pip itself, whose index is uv's", &url);
        }
    }
    let mut settings = toml::Table::new();
    if let Some(hosts) = variable("UV_INSECURE_HOST") {
        let hosts: Vec<toml::Value> = hosts.split_whitespace().map(Into::into).collect();
        settings.insert("allow-insecure-host".into(), hosts.into());
    }
    if !tables.is_empty() {
        settings.insert("index".into(), tables.into());
    }
    if !settings.is_empty() {
        let file = (Path::new(UV_FILE).to_owned(), settings.to_string());
        answer.files.push(file);
    }
    answer
}

fn uv_variables(variable: impl Fn(&str) -> Option<String>) -> Vec<UvIndex> {
    let mut found = Vec::new();
    for (names, is_default) in [
        (["UV_DEFAULT_INDEX", "UV_INDEX_URL"], true),
        (["UV_INDEX", "UV_EXTRA_INDEX_URL"], false),
    ] {
        for value in names.iter().filter_map(|name| variable(name)) {
            for entry in value.split_whitespace() {
                let (name, url) = match entry.split_once('=') {
                    Some((name, url)) if !name.contains(':') => (Some(name.to_owned()), url),
                    _ => (None, entry),
                };
                found.push(UvIndex {
                    name,
                    url: url.to_owned(),
                    is_default,
                });
            }
        }
    }
    found
}

fn uv_file(text: &str) -> Vec<UvIndex> {
    let Ok(table) = text.parse::<toml::Table>() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let listed = table.get("index").and_then(toml::Value::as_array);
    for entry in listed.into_iter().flatten() {
        let text = |key: &str| Some(entry.get(key)?.as_str()?.to_owned());
        if let Some(url) = text("url") {
            found.push(UvIndex {
                name: text("name"),
                url,
                is_default: entry.get("default").and_then(toml::Value::as_bool) == Some(true),
            });
        }
    }
    let plain = |url: &str, is_default| UvIndex {
        name: None,
        url: url.to_owned(),
        is_default,
    };
    if let Some(url) = table.get("index-url").and_then(toml::Value::as_str) {
        found.push(plain(url, true));
    }
    let extra = table.get("extra-index-url").and_then(toml::Value::as_array);
    let extra = extra.into_iter().flatten().filter_map(toml::Value::as_str);
    found.extend(extra.map(|url| plain(url, false)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_of_pip_that_counts_is_found() {
        let text = "global.index-url='https://a/'\n:env:.index-url='https://b/'\ninstall.index-url='https://c/'\nglobal.extra-index-url='\\nhttps://d/\\nhttps://e/'\n";
        let found = pip_settings(text);
        assert_eq!(found["index-url"], (":env:.index-url", "https://b/".into()));
        assert_eq!(found["extra-index-url"].1, " https://d/ https://e/");
    }

    #[test]
    fn the_indexes_of_uv_are_read_from_variables_and_files() {
        let index = |name: Option<&str>, url: &str, is_default| UvIndex {
            name: name.map(Into::into),
            url: url.into(),
            is_default,
        };
        let said = |name: &str| match name {
            "UV_INDEX_URL" => Some("https://a/simple".to_owned()),
            "UV_INDEX" => Some("own=https://b/simple https://c/?x=y".to_owned()),
            _ => None,
        };
        assert_eq!(
            uv_variables(said),
            [
                index(None, "https://a/simple", true),
                index(Some("own"), "https://b/simple", false),
                index(None, "https://c/?x=y", false)
            ]
        );
        let text = "extra-index-url = [\"https://f/\"]\n[[index]]\nname = \"own\"\nurl = \"https://d/\"\ndefault = true\n[[index]]\nurl = \"https://e/\"\n";
        assert_eq!(
            uv_file(text),
            [
                index(Some("own"), "https://d/", true),
                index(None, "https://e/", false),
                index(None, "https://f/", false)
            ]
        );
    }
}
