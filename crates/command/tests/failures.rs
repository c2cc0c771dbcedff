//! docs/reference/failures.md is what the table of failures says. `UPDATE=1` writes it again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_command::failure::FailureCode;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "# Failures of commands

Denials and failed starts have [codes of their own](reasons.md). This page lists the codes of other failures of `ironcage`, such as a
cage that has ended. Codes are stable; messages may change. A failure without a code is not listed.

With the environment variable `IRONCAGE_ERROR_CODES`, the code follows the message in brackets. With the value `json`, the error is one
JSON object with `message`, `code` and `hints`. `ironcage why --code CODE` prints one entry of this page.

This page is generated from `crates/command/src/failure.rs`.

| Code | Meaning | What to do |
|---|---|---|
";

#[test]
fn the_reference_lists_every_failure() {
    let mut page = HEAD.to_owned();
    for entry in FailureCode::TABLE {
        writeln!(
            page,
            "| `{}` | {} | {} |",
            entry.code, entry.meaning, entry.remedy
        )
        .unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/failures.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap_or_default(),
        page,
        "docs/reference/failures.md is out of date: UPDATE=1 cargo test -p ironcage-command --test failures"
    );
}

#[test]
fn no_code_is_used_twice_or_taken_by_a_reason() {
    let codes: BTreeSet<&str> = FailureCode::TABLE.iter().map(|entry| entry.code).collect();
    assert_eq!(codes.len(), FailureCode::TABLE.len());
    for code in codes {
        assert!(ironcage_model::find_reason(code).is_none(), "{code}");
    }
}
