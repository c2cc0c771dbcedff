//! Names that a tool, or a file system, takes for one that the list of executed files has.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

use ironcage_catalog::{Class, executed};
use std::ffi::OsStr;
use std::path::Path;

fn class(path: &str) -> Option<Class> {
    let parts: Vec<&OsStr> = Path::new(path).iter().collect();
    let found = executed::found_in(&parts);
    found.into_iter().map(|(listed, _)| listed.class).max()
}

/// Every kind of name under which tools have a second file, and how a rule shows that it has it.
const KINDS: [&str; 4] = ["dot", "config", "local", "toml"];

fn texts(tool: &toml::Value, key: &str) -> Vec<String> {
    let list = tool.get(key).and_then(toml::Value::as_array);
    let texts = list.into_iter().flatten().filter_map(toml::Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Whether the rule of a tool has names of a kind, for all of its stems.
fn has_kind(tool: &toml::Value, kind: &str) -> bool {
    let (prefixes, stems) = (texts(tool, "prefixes"), texts(tool, "stems"));
    let (suffixes, names) = (texts(tool, "suffixes"), texts(tool, "names"));
    let begins = |with: &str| prefixes.iter().any(|prefix| prefix.starts_with(with));
    let is_local = |text: &String| text.contains("local");
    match kind {
        "dot" => {
            prefixes.iter().any(|prefix| prefix == ".")
                || stems.iter().all(|stem| stem.starts_with('.'))
        }
        "config" => begins(".config/"),
        "local" => [suffixes, stems, names].iter().flatten().any(is_local),
        _ => texts(tool, "extensions")
            .iter()
            .any(|extension| extension == "toml"),
    }
}

#[test]
fn every_kind_of_name_is_listed_or_a_tool_says_why_not() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies/executed.toml");
    let text = std::fs::read_to_string(path).expect("the list");
    let list: toml::Value = toml::from_str(&text).expect("TOML");
    let tools = list["tool"].as_array().expect("tools");
    let (mut asked, mut had) = (0, 0);
    for tool in tools {
        let name = tool["name"].as_str().expect("a name");
        let without = tool.get("without").and_then(toml::Value::as_table);
        let without = |kind: &str| without.is_some_and(|table| table.contains_key(kind));
        let extensions = texts(tool, "extensions");
        let is_data = extensions
            .iter()
            .any(|text| matches!(&**text, "yaml" | "json" | "toml"));
        if texts(tool, "stems").is_empty() || !is_data {
            assert!(
                tool.get("without").is_none(),
                "{name}: nothing is demanded of it"
            );
            continue;
        }
        asked += 1;
        for kind in KINDS {
            // One of the two, and not both: a reason for what is there is out of date.
            let has = has_kind(tool, kind);
            had += usize::from(has);
            assert!(
                has != without(kind),
                "{name}: list its names of the kind `{kind}`, or say why not under `without`, not both"
            );
        }
        for (kind, _) in tool
            .get("without")
            .and_then(toml::Value::as_table)
            .into_iter()
            .flatten()
        {
            assert!(
                KINDS.contains(&kind.as_str()),
                "{name}: unknown kind `{kind}`"
            );
        }
    }
    assert!(asked > 15 && had > 20, "{asked} {had}");
}

/// Names that another file system takes for a listed one.
#[test]
fn names_that_a_file_system_takes_for_a_listed_one_are_listed() {
    for path in [
        ".envrc.",
        ".ENVRC ",
        ".vscode./tasks.json",
        "a/.Claude. ./x",
        ".v\u{17f}code/tasks.json",
        "\u{200b}.env\u{ad}rc",
    ] {
        assert_eq!(class(path), Some(Class::Withheld), "{path}");
    }
    assert_eq!(class("envrc."), None);
    assert_eq!(class("\u{e4}.envr\u{e7}"), None);
    assert_eq!(class("..."), None);
}
