//! docs/probes.md lists what the catalogue has. `UPDATE=1` writes it anew.

// Helpers of a test are not seen as tests by clippy.
#![allow(clippy::unwrap_used)]

use ironcage_probe::{Class, accepted, probes};
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- begin: the catalogue, written by crates/probe/tests/docs.rs -->\n";
const END: &str = "<!-- end -->\n";

fn catalogue() -> String {
    let mut text = String::new();
    for class in Class::ALL {
        let subject = class.subject();
        writeln!(text, "\n### {class}: {subject}\n").unwrap();
        writeln!(
            text,
            "| id | kind | severity | what it tries | canary | what stops it |"
        )
        .unwrap();
        writeln!(text, "|---|---|---|---|---|---|").unwrap();
        for probe in probes().filter(|probe| probe.class == class) {
            let layers = probe.layers.join("; ");
            let (kind, severity) = (probe.kind, probe.severity);
            let (id, title, canary) = (probe.id, probe.title, probe.canary);
            writeln!(
                text,
                "| {id} | {kind} | {severity} | {title} | {canary} | {layers} |"
            )
            .unwrap();
        }
    }
    writeln!(text, "\n## Surfaces that stay open by design\n").unwrap();
    writeln!(
        text,
        "| id | why it is not closed | what stands behind it |"
    )
    .unwrap();
    writeln!(text, "|---|---|---|").unwrap();
    for entry in accepted::SURFACES {
        writeln!(
            text,
            "| {} | {} | {} |",
            entry.id, entry.reason, entry.behind
        )
        .unwrap();
    }
    text.push('\n');
    text
}

#[test]
fn the_documentation_lists_the_catalogue() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/probes.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (listed, after) = rest.split_once(END).unwrap();
    let current = catalogue();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{current}{END}{after}")).unwrap();
        return;
    }
    assert!(
        listed == current,
        "docs/probes.md is old: UPDATE=1 cargo test -p ironcage-probe --test docs"
    );
}
