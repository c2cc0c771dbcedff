//! Scripts of expect: what they start, what they type into a shell, and the files of their own
//! commands. Tcl is not followed any further.

use super::super::follow::UNKNOWN_VARIABLE;
use ironcage_intent::{Code, CodeCommand, CodeNeeds, CommandText, Unsure, tidy};
use std::collections::BTreeMap;

const LONGEST: usize = 256 * 1024;
const MOST_COMMANDS: usize = 200;
/// Longest word that variables are put into.
const LONGEST_WORD: usize = 8 * 1024;

/// Words of a line, with its variables in place where they are known.
fn words(line: &str, variables: &BTreeMap<String, String>) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut braces, mut any) = (false, 0_u32, false);
    for char in line.chars() {
        match char {
            '"' if braces == 0 => {
                quoted = !quoted;
                any = true;
            }
            '{' if !quoted => {
                braces += 1;
                any = true;
            }
            '}' if !quoted && braces > 0 => braces -= 1,
            char if char.is_whitespace() && !quoted && braces == 0 => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            char => word.push(char),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words
        .iter()
        .map(|word| substituted(word, variables))
        .collect()
}

fn substituted(word: &str, variables: &BTreeMap<String, String>) -> String {
    let mut whole = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        whole.push_str(before);
        let after = after.strip_prefix('{').unwrap_or(after);
        let end = after
            .find(|char: char| !char.is_ascii_alphanumeric() && char != '_')
            .unwrap_or(after.len());
        let (name, next) = after.split_at(end);
        // Variables of variables would grow without an end.
        let value = variables
            .get(name)
            .filter(|value| whole.len() + value.len() <= LONGEST_WORD);
        whole.push_str(value.map_or(UNKNOWN_VARIABLE, String::as_str));
        rest = next.strip_prefix('}').unwrap_or(next);
    }
    whole.push_str(rest);
    whole
}

pub(crate) fn read(code: &Code<'_>) -> CodeNeeds {
    let mut found = CodeNeeds::default();
    let (true, Some(cwd)) = (code.text.len() <= LONGEST, code.cwd) else {
        let why = "the expect script is too long, or where it runs is not known";
        found.needs.unsure(Unsure::Everything, why);
        return found;
    };
    let mut variables = BTreeMap::new();
    let mut shell = false;
    for line in code.text.lines().flat_map(|line| line.split("; ")) {
        let line = line.trim().trim_start_matches(['{', '}', ' ']);
        let words = words(line, &variables);
        let text = |from: usize| words.get(from..).unwrap_or_default().join(" ");
        let mut command = None;
        match words.first().map(String::as_str) {
            Some("set") if words.len() == 3 => {
                if let [_, name, value] = words.as_slice() {
                    // The result of a command is not known.
                    if !value.starts_with('[') {
                        variables.insert(name.clone(), value.clone());
                    }
                }
            }
            Some("spawn") => {
                let from = words
                    .iter()
                    .skip(1)
                    .take_while(|word| word.starts_with('-'))
                    .count()
                    + 1;
                let started = text(from);
                shell = ["bash", "sh", "/bin/bash", "/bin/sh"]
                    .contains(&words.get(from).map_or("", String::as_str))
                    && !words.iter().any(|word| word == "-c");
                match shell {
                    true => found
                        .needs
                        .program(words.get(from).map_or("", String::as_str)),
                    false => command = Some(started),
                }
            }
            Some("exec" | "system") => command = Some(text(1)),
            Some("send") if shell => {
                let typed = text(1);
                let typed = typed.trim_start_matches("-- ").to_owned();
                command = Some(typed.replace("\\r", "\n").replace("\\n", "\n"));
            }
            Some("log_file") => {
                if let Some(path) = words.iter().skip(1).find(|word| !word.starts_with('-')) {
                    found.needs.write(tidy(cwd, path));
                }
            }
            Some("source") => {
                if let Some(path) = words.get(1) {
                    found.needs.read(tidy(cwd, path));
                    found
                        .needs
                        .unsure_below(cwd, "it executes another script of expect");
                }
            }
            Some("open") => {
                if let [_, path, rest @ ..] = words.as_slice() {
                    let mode = rest.first().map_or("r", String::as_str);
                    match mode.starts_with(['w', 'a']) {
                        true => found.needs.write(tidy(cwd, path)),
                        false => found.needs.read(tidy(cwd, path)),
                    }
                }
            }
            _ => {}
        }
        if let Some(command) = command.filter(|command| !command.trim().is_empty()) {
            if found.commands.len() >= MOST_COMMANDS {
                let why = "it starts more commands than are followed";
                found.needs.unsure(Unsure::Everything, why);
                break;
            }
            found.commands.push(CodeCommand {
                text: CommandText::Script(command),
                cwd: None,
            });
        }
    }
    found
        .needs
        .unsure_below(cwd, "what the programs do that it talks to is not known");
    found
}
