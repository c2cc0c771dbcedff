//! docs/casf/README.md has the requirements as a table. `UPDATE=1` writes it anew.

// Helpers of a test are not seen as tests by clippy.
#![allow(clippy::unwrap_used)]

use ironcage_probe::casf::{Check, Requirement, Standard, level_name};
use ironcage_probe::probes;
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- begin: the requirements, written by crates/probe/tests/casf.rs -->\n";
const END: &str = "<!-- end -->\n";

fn table() -> String {
    let mut text = String::new();
    let mut level = 0;
    for requirement in Standard::shipped().unwrap().requirements {
        if requirement.level != level {
            level = requirement.level;
            writeln!(text, "\n### Level {level}: {}\n", level_name(level)).unwrap();
            writeln!(text, "| id | requirement | checked by | answers to |").unwrap();
            writeln!(text, "|---|---|---|---|").unwrap();
        }
        let Requirement {
            id,
            title,
            text: sentence,
            ..
        } = &requirement;
        let (by, answers) = (checked_by(&requirement), answers_to(&requirement));
        writeln!(
            text,
            "| {id} | **{title}.** {sentence} | {by} | {answers} |"
        )
        .unwrap();
    }
    text.push('\n');
    text
}

fn checked_by(requirement: &Requirement) -> String {
    match &requirement.check {
        Check::Claim { claim } => format!("the claim: {claim}"),
        Check::MustWork { .. } => "what must work".to_owned(),
        check @ Check::Probes { .. } => {
            let ids: Vec<&str> = probes()
                .filter(|probe| {
                    check.takes(
                        probe.id,
                        &probe.kind.to_string(),
                        &probe.severity.to_string(),
                    )
                })
                .map(|probe| probe.id)
                .collect();
            let otherwise = match check {
                Check::Probes {
                    otherwise: Some(claim),
                    ..
                } => format!("; where none can be put to it, the claim: {claim}"),
                _ => String::new(),
            };
            format!("{}{otherwise}", ids.join(" "))
        }
    }
}

fn answers_to(requirement: &Requirement) -> String {
    let parts = requirement.maps.iter().map(|(name, ids)| {
        let name = match name.as_str() {
            "attack" => "ATT&CK",
            "atlas" => "ATLAS",
            "cis-docker" => "CIS Docker",
            "eu-ai-act" => "EU 2024/1689 Art.",
            "nist-800-190" => "SP 800-190",
            "owasp-agentic" | "owasp-llm" => "OWASP",
            other => panic!("{other} has no name in the table"),
        };
        format!("{name} {}", ids.join(", "))
    });
    parts.collect::<Vec<_>>().join("; ")
}

#[test]
fn the_standard_lists_its_requirements() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/casf/README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (listed, after) = rest.split_once(END).unwrap();
    let current = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{current}{END}{after}")).unwrap();
        return;
    }
    assert!(
        listed == current,
        "docs/casf/README.md is old: UPDATE=1 cargo test -p ironcage-probe --test casf"
    );
}
