//! docs/reference/reasons.md is what the tables of reasons say. `UPDATE=1` writes it again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_model::reason_tables;
use std::fmt::Write as _;
use std::path::Path;

const HEAD: &str = "# Reasons

Every denial and every failure to start has a code. The code is stable; the text beside it may change between versions, so scripts and agents should branch on the code.

The code is in the field `code`, beside the text in `reason`:

- in the answers of the ask socket and of `ironcage ask --json`;
- in the body of an HTTP error that comes from the egress proxy and not from the server;
- in the output of commands with `--json`;
- in brackets behind the message of an error, where the environment variable `IRONCAGE_ERROR_CODES` is set; with the value `json`, the error is one JSON object on a line;
- in the [audit log](audit-log.md). Where the reason has values of its own, the object `data` holds them. Logs of older versions have no codes.

`ironcage why --code CODE` prints one entry of this page.

This page is generated from `crates/model/src/reason`.
";

#[test]
fn the_reference_lists_every_code() {
    let mut page = HEAD.to_owned();
    for (heading, table) in reason_tables() {
        write!(page, "\n## {heading}\n\n").unwrap();
        page.push_str("| Code | Meaning | What to do |\n|---|---|---|\n");
        for entry in table {
            let cell = |text: &str| text.trim().replace('|', "\\|");
            let (meaning, remedy) = (cell(entry.meaning), cell(entry.remedy));
            writeln!(page, "| `{}` | {meaning} | {remedy} |", entry.code).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/reasons.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap_or_default(),
        page,
        "docs/reference/reasons.md is out of date: UPDATE=1 cargo test --workspace --test reasons"
    );
}
