//! The documentation is executed: every console session of every page runs as it stands, as root and as an
//! unprivileged user, and prints what the page says.
//!
//! `UPDATE=1 cargo test -p ironcage-tests documentation::` writes what is printed into the pages; read the
//! difference before you commit it.

use ironcage_tests::{Stage, Who, agrees, both, play, renewed, steps};
use std::path::{Path, PathBuf};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The page whose sessions need a binary that knows the language.
const CEDAR: &str = "docs/guides/cedar.md";

/// Every Markdown page of the repository.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut places = vec![top().join("docs"), top().join("tests/cli")];
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(&place).expect("a directory of pages") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                places.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    for entry in std::fs::read_dir(top()).expect("the repository") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

fn hold(stage: &Stage, page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).expect("the page");
    let steps = steps(&text);
    if steps.is_empty() {
        return Vec::new();
    }
    let printed = play(stage, &steps);
    if std::env::var_os("UPDATE").is_some() && stage.who() == Who::User {
        std::fs::write(page, renewed(&text, &steps, &printed)).expect("to write the page");
        return Vec::new();
    }
    steps
        .iter()
        .zip(&printed)
        .filter(|(step, printed)| !agrees(&step.output, printed))
        .map(|(step, printed)| {
            format!(
                "{}:{}: $ {}\nsays:\n{}prints:\n{printed}",
                page.display(),
                step.line,
                step.command,
                step.output
            )
        })
        .collect()
}

both! {
    fn every_console_session_prints_what_its_page_says(stage) {
        let mut played = 0;
        let mut wrong = Vec::new();
        for page in pages() {
            // It is played by a test of its own.
            if page.ends_with(CEDAR) || steps(&std::fs::read_to_string(&page).expect("the page")).is_empty() {
                continue;
            }
            // Each page begins with an empty home.
            let own = Stage::new(stage.who()).expect("a stage");
            wrong.extend(hold(&own, &page));
            played += 1;
        }
        assert!(played >= 2, "only {played} pages have sessions");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[cfg(feature = "cedar")]
both! {
    fn the_page_about_cedar_prints_what_it_says(stage) {
        let wrong = hold(stage, &top().join(CEDAR));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn the_picture_of_the_readme_is_that_of_its_session() {
    let script = top().join("scripts/picture");
    let ran = std::process::Command::new(script).arg("--check").output();
    let ran = ran.expect("the script starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}

/// Cells of a table, by the first one of each row.
fn rows(page: &str) -> Vec<Vec<String>> {
    let lines = page.lines().filter(|line| line.starts_with('|'));
    lines
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect()
}

#[test]
fn the_comparison_in_the_readme_is_that_of_the_probes_page() {
    let read = |path: &str| std::fs::read_to_string(top().join(path)).expect("a page");
    let (readme, probes) = (rows(&read("README.md")), rows(&read("docs/probes.md")));
    for (shown, name) in [
        ("bubblewrap, `--ro-bind / /`", "bwrap"),
        ("sandbox-runtime (srt)", "srt"),
        ("bubblewrap, every flag", "bwrap-hard"),
        ("Docker", "docker"),
        ("gVisor (runsc)", "runsc"),
        ("Ironcage", "Ironcage"),
    ] {
        let own = readme.iter().find(|row| row[0] == shown).expect(shown);
        let source = probes
            .iter()
            .find(|row| row[0] == name && row[1].contains(" of "))
            .expect(name);
        let surfaces = source[3].split(',').next();
        assert_eq!(
            (own[1].as_str(), Some(own[2].as_str())),
            (source[1].as_str(), surfaces),
            "{shown}"
        );
    }
}

#[test]
fn flags_in_shell_blocks_exist() {
    let Some(stage) = Stage::new(Who::User) else {
        return;
    };
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("the page");
        for line in shell_lines(&text) {
            if let Err(flag) = known(&stage, line) {
                wrong.push(format!("{}: `{line}`: {flag}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lines of `sh` blocks that call ironcage.
fn shell_lines(page: &str) -> Vec<&str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            inside = !inside && kind == "sh";
        } else if inside && line.trim_start().starts_with("ironcage ") {
            found.push(line.trim());
        }
    }
    found
}

/// Whether the command and its flags are known to the binary's own help.
fn known(stage: &Stage, line: &str) -> Result<(), String> {
    let line = line.split(" #").next().unwrap_or(line);
    let own = line.split(" -- ").next().unwrap_or(line);
    let words: Vec<&str> = own.split_whitespace().skip(1).collect();
    let verbs: Vec<&&str> = words
        .iter()
        .take_while(|word| {
            word.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
                && !word.starts_with('-')
        })
        .collect();
    // As many words as there are commands; the rest are arguments.
    let help = (1..=verbs.len()).rev().find_map(|count| {
        let mut command = stage.ironcage(["help"]);
        command.args(&verbs[..count]);
        let ran =
            ironcage_tests::Running::start(&mut command).finish(std::time::Duration::from_secs(60));
        (ran.code() == 0).then(|| ran.stdout())
    });
    let help = help.ok_or("no such command")?;
    for flag in words.iter().filter(|word| word.starts_with('-')) {
        let flag = flag.split('=').next().unwrap_or(flag);
        let there = help
            .split(|c: char| c.is_whitespace() || c == ',' || c == '[' || c == '=')
            .any(|word| word == flag);
        if !there {
            return Err(format!("{flag} is not in its help"));
        }
    }
    Ok(())
}

#[test]
fn sessions_are_compared_by_what_stays_the_same() {
    assert!(agrees(
        "cage csyxcnw64cxk2: done\n",
        "cage c7b1yhe3sem9p: done\n"
    ));
    assert!(!agrees(
        "cage csyxcnw64cxk2: done\n",
        "cage c7b1yhe3sem9p: gone\n"
    ));
    assert!(agrees("cage cabcdefghjkmn\n", "cage c7b1yhe3sem9p\n"));
    assert!(agrees("kept as wzpyzdgp9;\n", "kept as wabcdefgh;\n"));
    assert!(agrees("a\n...\nd\n", "a\nb\nc\nd\n"));
    assert!(agrees("a\n...\n", "a\nb\n"));
    assert!(!agrees("a\n...\nd\n", "a\nb\n"));
    assert!(!agrees("a\n", "a\nb\n"));
    assert!(!agrees("", "b\n") && agrees("", ""));
    assert!(agrees(
        "at 2026-11-15 23:29:03.163, after 0.123 s",
        "at 2027-01-01 00:00:00.000, after 9.999 s"
    ));
    assert!(!agrees("limit of 1s", "limit of 2s"));
    let page = "x\n```console\n$ one\n> more\nsaid\n$ two\n```\n```sh\n$ not\n```\n";
    let found = steps(page);
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].command.as_str(), found[0].output.as_str()),
        ("one\nmore", "said\n")
    );
    let printed = ["printed\n".to_owned(), String::new()];
    assert_eq!(
        renewed(page, &found, &printed),
        page.replace("said", "printed")
    );
}
