//! The list of what the host would execute: every tool under every name that it documents.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

#[path = "executed/names.rs"]
mod names;

use ironcage_catalog::{Class, executed, protected};
use names::{FLAGGED, WITHHELD};
use std::ffi::OsStr;
use std::path::Path;

fn class(path: &str) -> Option<Class> {
    let parts: Vec<&OsStr> = Path::new(path).iter().collect();
    let found = executed::found_in(&parts);
    found.into_iter().map(|(listed, _)| listed.class).max()
}

fn is_listed(name: &str) -> bool {
    let mut names = executed::NAMES.iter();
    names.any(|listed| listed.path.eq_ignore_ascii_case(name)) || class(name).is_some()
}

/// The other names that a name has by the extensions that tools take for one another.
fn siblings(name: &str) -> Vec<String> {
    let family = |family: &&&[&str]| {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| family.contains(&extension))
    };
    let Some(family) = executed::FAMILIES.iter().find(family) else {
        return Vec::new();
    };
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    family
        .iter()
        .map(|member| format!("{stem}.{member}"))
        .filter(|sibling| sibling != name)
        .collect()
}

#[test]
fn every_extension_of_a_family_is_listed_or_is_an_exception() {
    let excepted = |name: &str| {
        let mut exceptions = executed::EXCEPTIONS.iter();
        exceptions.any(|exception| exception.path == name)
    };
    for listed in executed::NAMES {
        for sibling in siblings(listed.path) {
            assert!(
                is_listed(&sibling) || excepted(&sibling),
                "{} is listed; list {sibling} too, or say in an [[exception]] why not",
                listed.path
            );
        }
    }
    // An exception from nothing is a mistake.
    for exception in executed::EXCEPTIONS {
        let siblings = siblings(exception.path);
        assert!(
            siblings.iter().any(|sibling| is_listed(sibling)),
            "{} is a variant of nothing",
            exception.path
        );
    }
}

#[test]
fn every_documented_name_of_a_tool_is_listed_at_any_depth() {
    for (wanted, tools) in [(Class::Withheld, WITHHELD), (Class::Flagged, FLAGGED)] {
        for (tool, names) in tools {
            for name in *names {
                for path in [(*name).to_owned(), format!("a/b/{name}")] {
                    assert_eq!(class(&path), Some(wanted), "{tool}: {path}");
                }
            }
        }
    }
}

/// What agents write all day is neither withheld nor flagged.
#[test]
fn ordinary_files_are_not_listed() {
    for path in [
        "src/main.rs",
        "src/lib/config.ts",
        "src/compose.ts",
        "src/compose.rs",
        "app/tasks.py",
        "app/models/mise.py",
        "lib/venv/__init__.py",
        "src/prettier.ts",
        "src/settings.json",
        "config/app.yml",
        "docs/README.md",
        "docs/agents/overview.md",
        "go.mod",
        "main.go",
        "index.html",
        "tsconfig.json",
        "package-lock.json",
        "src/bin/tool.rs",
        "crates/workspace/src/lib.rs",
        "src/app.config.json",
        "tests/test_x.py",
        "main.tf",
        ".gitignore",
        ".editorconfig",
        ".config/other",
        "pipelines/etl.py",
        "build/output.txt",
    ] {
        assert_eq!(class(path), None, "{path}");
    }
}

#[test]
fn a_tool_that_is_protected_under_one_name_is_protected_under_all() {
    let has = |name: &str| protected::ENTRIES.iter().any(|entry| entry.path == name);
    for name in [
        "lefthook.yml",
        "lefthook.yaml",
        ".config/lefthook-local.toml",
        "opencode.jsonc",
        ".mise.toml",
        ".config/mise.toml",
        ".pnpmfile.mjs",
        ".pre-commit-config.yml",
    ] {
        assert!(has(name), "{name}");
    }
    // A name with a star cannot be mounted over, and another tool's is another matter.
    assert!(!has("mise.*.toml") && !has("Makefile") && !has(".terraform.lock.hcl"));
    let mut names: Vec<&str> = protected::ENTRIES.iter().map(|entry| entry.path).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}
