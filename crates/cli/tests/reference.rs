//! The command reference that is checked in is the one that the binary prints.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

fn print(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ironcage"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_command_reference_is_in_step() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let printed = print(&["man", "--markdown"]);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(
        kept == printed,
        "docs/reference/cli.md is out of step: run this test with UPDATE=1"
    );
}

#[test]
fn manual_pages_name_the_run_command_and_completions_ask_for_it() {
    assert!(print(&["man"]).contains("run"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(print(&["completions", shell]).contains("IRONCAGE_COMPLETE"));
    }
}
