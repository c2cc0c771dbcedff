//! The generated reference is what the code says. `UPDATE=1 cargo test` writes it anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_policy::{Policy, TimeLimit, profiles, resolve_profile, schema};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/reference")
        .join(name)
}

fn check(path: &Path, wanted: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, wanted).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == wanted,
        "{} is out of date; run with UPDATE=1",
        path.display()
    );
}

#[test]
fn the_json_schema_is_up_to_date() {
    check(
        &reference("policy.schema.json"),
        &schema::json_schema().unwrap(),
    );
}

/// Adds every key of a schema that has a value, by its full name. Tables with names of the user's
/// choosing count as one.
fn keys(schema: &Value, node: &Value, above: &str, found: &mut Vec<String>) {
    let own = |node: &Value| -> Option<Value> {
        if let Some(named) = node["$ref"].as_str() {
            return schema.pointer(named.trim_start_matches('#')).cloned();
        }
        let mut forms = node["anyOf"].as_array()?.iter();
        forms.find(|form| form["type"] != "null").cloned()
    };
    let mut node = node.clone();
    while let Some(inner) = own(&node) {
        node = inner;
    }
    match node["properties"].as_object() {
        Some(properties) => {
            for (name, inner) in properties {
                let dot = if above.is_empty() { "" } else { "." };
                keys(schema, inner, &format!("{above}{dot}{name}"), found);
            }
        }
        None => found.push(above.to_owned()),
    }
}

#[test]
fn the_reference_names_every_key() {
    let schema: Value = serde_json::from_str(&schema::json_schema().unwrap()).unwrap();
    let mut found = Vec::new();
    keys(&schema, &schema, "", &mut found);
    assert!(found.iter().any(|key| key == "limits.memory"), "{found:?}");
    let text = std::fs::read_to_string(reference("policy.md")).unwrap();
    let missing: Vec<&String> = found
        .iter()
        .filter(|key| !text.contains(&format!("`{key}`")))
        .collect();
    assert!(missing.is_empty(), "not in policy.md: {missing:?}");
}

const BEGIN: &str = "<!-- generated: profiles -->\n";
const END: &str = "<!-- end of generated -->\n";

#[test]
fn the_table_of_profiles_is_up_to_date() {
    let path = reference("policy.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    check(&path, &format!("{before}{BEGIN}{}{END}{after}", table()));
}

fn row(title: &str, policies: &[Policy], cell: impl Fn(&Policy) -> String) -> String {
    let cells: Vec<String> = policies.iter().map(cell).collect();
    format!("| {title} | {} |\n", cells.join(" | "))
}

fn table() -> String {
    let policies: Vec<Policy> = profiles()
        .map(|profile| resolve_profile(profile.name, Path::new("/home/user")).unwrap())
        .collect();
    let mut out = String::new();
    for profile in profiles() {
        let _ = writeln!(out, "- `{}`: {}", profile.name, profile.about);
    }
    out.push('\n');
    out.push_str(&row("key", &policies, |policy| {
        format!("`{}`", policy.profile.value)
    }));
    let _ = writeln!(out, "|---|{}", "---|".repeat(policies.len()));
    out.push_str(&row("`workspace.mode`", &policies, |p| {
        p.workspace_mode.value.name().to_owned()
    }));
    out.push_str(&row("`files.toolchains`", &policies, |p| {
        p.toolchains.value.to_string()
    }));
    out.push_str(&row("`state.keep`", &policies, |p| match p.keep.len() {
        0 => "-".to_owned(),
        _ => p
            .keep
            .iter()
            .map(|path| path.value.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    }));
    out.push_str(&row("`state.caches`", &policies, |p| {
        match p.caches.len() {
            0 => "-".to_owned(),
            _ => p
                .caches
                .iter()
                .map(|name| name.value.clone())
                .collect::<Vec<_>>()
                .join(", "),
        }
    }));
    out.push_str(&row("`process.side-channels`", &policies, |p| {
        p.side_channels.value.to_string()
    }));
    out.push_str(&row("`ceiling`", &policies, |p| {
        let parts = p.ceiling.paths.iter().map(|part| {
            let part = &part.value;
            let (mark, right) = (part.mark.name(), part.right.name());
            format!("{mark}: {right} `{}`", part.path.display())
        });
        let others = p.ceiling.others.iter().map(|part| {
            let key = part.value.key();
            let key = key.trim_start_matches("ceiling.");
            let (mark, key) = key.split_once('.').unwrap_or_default();
            format!("{mark}: {key} `{}`", part.value.as_written())
        });
        let parts = parts.chain(others);
        match parts.collect::<Vec<_>>().join(", ").as_str() {
            "" => "-".to_owned(),
            parts => parts.to_owned(),
        }
    }));
    out.push_str(&row("`process.git-identity`", &policies, |p| {
        p.git_identity.value.to_string()
    }));
    out.push_str(&row("`syscalls.list`", &policies, |p| {
        p.syscalls.value.clone()
    }));
    out.push_str(&row("`limits.memory`", &policies, |p| {
        p.limits.memory.value.to_string()
    }));
    out.push_str(&row("`limits.cpus`", &policies, |p| {
        p.limits.cpus.value.to_string()
    }));
    out.push_str(&row("`limits.pids`", &policies, |p| {
        p.limits.pids.value.to_string()
    }));
    out.push_str(&row("`limits.disk`", &policies, |p| {
        p.limits.disk.value.to_string()
    }));
    out.push_str(&row("`limits.inodes`", &policies, |p| {
        p.limits.inodes.value.to_string()
    }));
    out.push_str(&row("`limits.files`", &policies, |p| {
        p.limits.files.value.to_string()
    }));
    out.push_str(&row("`limits.time`", &policies, |p| {
        TimeLimit(p.limits.time.value).to_string()
    }));
    out.push_str(&row("`limits.idle`", &policies, |p| {
        TimeLimit(p.limits.idle.value).to_string()
    }));
    let common: Vec<_> = policies[0]
        .require
        .iter()
        .map(|layer| layer.value)
        .filter(|layer| {
            policies
                .iter()
                .all(|p| p.require.iter().any(|known| known.value == *layer))
        })
        .collect();
    let names: Vec<String> = common.iter().map(|layer| format!("`{layer}`")).collect();
    out.push_str(&row("further `layers.require`", &policies, |p| {
        let further: Vec<&str> = p
            .require
            .iter()
            .filter(|layer| !common.contains(&layer.value))
            .map(|layer| layer.value.name())
            .collect();
        if further.is_empty() {
            "-".to_owned()
        } else {
            further.join(", ")
        }
    }));
    let _ = writeln!(out, "\nEvery profile requires {}.", names.join(", "));
    out
}
