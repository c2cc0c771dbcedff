//! Shell builtins that affect later commands.

use super::walk::{ShellInput, Walk};
use super::word::Word;
use crate::needs::Unsure;

/// Interprets a builtin. Returns `false` if the table of tools is enough for it.
pub(super) fn run(walk: &mut Walk<'_, '_>, name: &str, arguments: &[Word]) -> bool {
    match name {
        "cd" | "pushd" => change_directory(walk, arguments),
        "popd" => walk.scope.cwd = None,
        "eval" => eval(walk, arguments),
        "source" | "." => {
            if let Some(file) = arguments.first() {
                walk.read(file);
                if let Some(text) = walk.file_of(file) {
                    walk.inline(&text);
                    return true;
                }
                let follows = walk.table.sources.is_some();
                if follows && activates(file) {
                    return true;
                }
                // The file of a project: it stays around there, as a script does.
                if follows && file.text().is_some() {
                    walk.executes_unread(name, file);
                    return true;
                }
            }
            walk.needs.unsure(
                Unsure::Everything,
                format!("`{name}` executes a file in this shell"),
            );
            walk.scope.cwd = None;
        }
        // What the file of an environment defines.
        "deactivate" if !arguments.iter().any(|word| word.known().contains('/')) => {}
        "exec" | "command" | "builtin" | "time" | "coproc" | "!" => wrapped(walk, arguments),
        "trap" => {
            if let Some(script) = arguments.first() {
                later(walk, script);
            }
        }
        "read" | "mapfile" | "readarray" if walk.found.is_some() => {
            let found = walk.found.clone();
            forget(walk, arguments);
            for name in arguments.iter().filter_map(Word::text) {
                if !name.starts_with('-') && !name.is_empty() {
                    let held = found.clone().map(|word| vec![word]);
                    walk.scope.variables.set(name, held, false);
                }
            }
        }
        "read" | "mapfile" | "readarray" | "getopts" | "let" | "local" | "declare" | "readonly"
        | "typeset" | "unset" => forget(walk, arguments),
        "export" => forget(walk, arguments),
        "printf" => {
            if let [option, variable, ..] = arguments
                && option.text() == Some("-v")
            {
                forget(walk, std::slice::from_ref(variable));
            }
            // With a program of the same name outside the shell, nothing else is different.
        }
        "set" => {
            let at = arguments.iter().position(|word| word.text() == Some("--"));
            if let Some(given) = at.and_then(|at| arguments.get(at + 1..)) {
                walk.scope.arguments = Some(given.to_vec());
            }
        }
        "shift" => walk.scope.arguments = None,
        // Which of several jobs is meant does not matter: what ends one is not meant to leave another.
        "wait" | "fg" | "kill" | "pkill" | "killall" => {
            walk.jobs = false;
            return false;
        }
        "alias" | "enable" => {
            if !arguments.is_empty() {
                walk.needs.unsure(
                    Unsure::Everything,
                    format!("`{name}` changes which commands run after it"),
                );
            }
        }
        _ => return false,
    }
    true
}

/// Files that only set variables for the programs of an installed environment.
const ACTIVATES: [&str; 8] = [
    "/bin/activate",
    "/.cargo/env",
    "/etc/profile",
    "/.bashrc",
    "/.profile",
    "/nvm.sh",
    "/etc/profile.d/conda.sh",
    "/etc/os-release",
];

fn activates(file: &Word) -> bool {
    let path = format!("/{}", file.known());
    ACTIVATES.iter().any(|end| path.ends_with(end))
}

fn change_directory(walk: &mut Walk<'_, '_>, arguments: &[Word]) {
    let to = arguments
        .iter()
        .find(|word| !matches!(word.text(), Some("-P" | "-L" | "-e" | "--" | "-n")));
    walk.scope.cwd = match to {
        None => walk.scope.home.clone(),
        Some(Word::Plain(text)) if text == "-" => None,
        Some(Word::Plain(text)) if text.is_empty() => return,
        Some(word @ Word::Plain(_)) => {
            let path = walk.path(word, Unsure::Everything);
            if let Some(path) = &path {
                walk.needs.enter(path.clone());
            }
            path
        }
        // Which of several is not known.
        Some(_) => None,
    };
}

fn eval(walk: &mut Walk<'_, '_>, arguments: &[Word]) {
    let texts: Option<Vec<&str>> = arguments
        .iter()
        .map(|word| match word {
            Word::Plain(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    match texts {
        Some(texts) => walk.inline(&texts.join(" ")),
        None => {
            walk.needs
                .unsure(Unsure::Everything, "`eval` executes text that is not known");
            walk.scope.cwd = None;
        }
    }
}

/// A command whose words follow, after options.
fn wrapped(walk: &mut Walk<'_, '_>, arguments: &[Word]) {
    let mut words = arguments;
    while let Some((first, rest)) = words.split_first() {
        match first.text() {
            Some("-a") => words = rest.get(1..).unwrap_or_default(),
            // These only tell where a command is.
            Some("-v" | "-V") => return,
            Some(option) if option.starts_with('-') => words = rest,
            _ => break,
        }
    }
    walk.call(words);
}

/// A script that is executed when something happens.
fn later(walk: &mut Walk<'_, '_>, script: &Word) {
    match script {
        Word::Plain(text) if text.is_empty() || text.starts_with('-') => {}
        Word::Plain(text) => {
            let text = text.clone();
            walk.script(&text, None);
        }
        _ => walk
            .needs
            .unsure(Unsure::Everything, "`trap` executes text that is not known"),
    }
}

/// Variables that are set to what is not known.
fn forget(walk: &mut Walk<'_, '_>, names: &[Word]) {
    for name in names {
        match name.text() {
            Some(text) if text.starts_with('-') => {}
            Some(text) => {
                let name = text
                    .split(['=', '[', '+', '-', '*'])
                    .next()
                    .unwrap_or_default();
                walk.scope.variables.set(name, None, false);
            }
            None => walk.needs.unsure(
                Unsure::Everything,
                "it sets a variable whose name is not known",
            ),
        }
    }
    if walk.scope.input == ShellInput::Inherited {
        return;
    }
    // What it reads comes from the text; its value still is not known here.
    walk.scope.input = ShellInput::Stream;
}
