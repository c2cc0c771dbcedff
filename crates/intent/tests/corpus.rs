//! Commands as agents write them, and what they need: `corpus.txt`.
//!
//! Each entry was checked by hand: what the command writes or contacts is there, or it is marked
//! as unknown. `UPDATE=1` writes what is read today, to be looked through line by line.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used)]

use ironcage_intent::{Context, Needs, Shell, Table};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const CWD: &str = "/w";
const HOME: &str = "/h";

fn context() -> Context {
    Context {
        cwd: PathBuf::from(CWD),
        home: Some(PathBuf::from(HOME)),
    }
}

/// Short forms: what is below the working directory without it, what is below the home with `~`.
fn short(path: &Path) -> String {
    shortened(path).replace(' ', "\\ ").replace('\t', "\\t")
}

fn shortened(path: &Path) -> String {
    if path == Path::new(CWD) {
        return ".".to_owned();
    }
    if let Ok(rest) = path.strip_prefix(CWD) {
        return rest.display().to_string();
    }
    match path.strip_prefix(HOME) {
        Ok(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Ok(rest) => format!("~/{}", rest.display()),
        Err(_) => path.display().to_string(),
    }
}

fn told(needs: &Needs) -> String {
    let mut text = String::new();
    let mut line = |label: &str, entries: Vec<String>| {
        if !entries.is_empty() {
            writeln!(text, "    {label} {}", entries.join(" ")).expect("text");
        }
    };
    line("runs", needs.programs.iter().cloned().collect());
    line(
        "reads",
        needs.reads.iter().map(|path| short(path)).collect(),
    );
    line(
        "writes",
        needs.writes.iter().map(|path| short(path)).collect(),
    );
    line(
        "enters",
        needs.enters.iter().map(|path| short(path)).collect(),
    );
    let contacts = needs.destinations.iter();
    line(
        "contacts",
        contacts
            .map(|to| to.to_string().replace(' ', "="))
            .collect(),
    );
    if needs.leaves_running {
        line("leaves", vec!["running".to_owned()]);
    }
    let mut unknown: Vec<String> = needs
        .unknown
        .iter()
        .map(|unknown| unknown.what.to_string())
        .collect();
    unknown.dedup();
    line("unknown", unknown);
    text
}

/// The commands, and what is written below each.
fn entries(text: &str) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        if line.starts_with("    ") {
            if let Some((_, expected)) = entries.last_mut() {
                expected.push_str(line);
                expected.push('\n');
            }
        } else {
            entries.push((line.replace("\\n", "\n"), String::new()));
        }
    }
    entries
}

#[test]
fn every_command_needs_what_the_corpus_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus.txt");
    let text = std::fs::read_to_string(&path).expect("the corpus");
    let table = Table::shipped().expect("the table");
    let shell = Shell::new(&table);
    let mut wrong = String::new();
    let mut written = String::new();
    for line in text.lines().take_while(|line| line.starts_with('#')) {
        written.push_str(line);
        written.push('\n');
    }
    let entries = entries(&text);
    assert!(entries.len() >= 300, "only {} commands", entries.len());
    for (command, expected) in &entries {
        let found = told(&shell.read(command, &context()));
        write!(written, "\n{}\n{found}", command.replace('\n', "\\n")).expect("text");
        if found != *expected {
            write!(wrong, "{command}\n  expected\n{expected}  found\n{found}").expect("text");
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, written).expect("the corpus");
        return;
    }
    assert!(wrong.is_empty(), "{wrong}");
}
