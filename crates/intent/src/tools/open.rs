//! The parts of a command that stay open: as few as its text and the conventions of its tool allow.

use super::Parsed;
use crate::needs::{Unsure, tidy};
use crate::shell::Word;
use crate::shell::walk::{MOST_NESTED, ShellInput, Walk};
use std::path::Path;

/// Programs whose output is the paths that they found.
const SEARCHES: &[&str] = &["find", "fd", "ls", "locate", "rg", "grep", "git"];

/// Programs that pass on lines of their input.
const FILTERS: &[&str] = &[
    "sort", "uniq", "head", "tail", "grep", "sed", "awk", "tr", "cut", "tee", "shuf", "tac", "cat",
];

impl Walk<'_, '_> {
    /// Code that cannot be read: it works below these directories, by convention. Without a reader
    /// of code, and without directories, everything is open.
    pub(crate) fn unread(&mut self, within: &[String], why: &str) {
        let directories: Vec<_> = within
            .iter()
            .filter_map(|place| match (place.strip_prefix('~'), &self.scope) {
                (Some(rest), scope) => {
                    let home = scope.home.as_ref()?;
                    Some(tidy(home, rest.trim_start_matches('/')))
                }
                (None, _) if place.starts_with('/') => Some(tidy(Path::new("/"), place)),
                (None, scope) => Some(tidy(scope.cwd.as_ref()?, place)),
            })
            .collect();
        // A home or a working directory that is not known may be any.
        let known = directories.len() == within.len() && !directories.is_empty();
        if self.table.sources.is_none() || !known {
            self.needs.unsure(Unsure::Everything, why);
            return;
        }
        for directory in directories {
            self.needs.unsure_below(&directory, why);
        }
    }

    /// A file that is executed and cannot be read. As code of a project it works around here and
    /// around itself, by convention; what this command downloaded may do anything.
    pub(crate) fn executes_unread(&mut self, name: &str, word: &Word) {
        self.read(word);
        let why = format!("`{name}` executes {}", word.source());
        let path = match word {
            Word::Plain(_) if self.table.sources.is_some() => self.path(word, Unsure::Reads),
            _ => None,
        };
        let downloads = ["curl", "wget", "aria2c"];
        let downloaded = |path: &Path| {
            self.needs.writes.contains(path)
                && downloads
                    .iter()
                    .any(|name| self.needs.programs.contains(*name))
        };
        match path.filter(|path| !downloaded(path)) {
            Some(path) => {
                let mut within = vec![".".to_owned()];
                within.extend(
                    path.parent()
                        .map(|place| place.to_string_lossy().into_owned()),
                );
                self.unread(&within, &why);
            }
            None => self.needs.unsure(Unsure::Everything, why),
        }
    }

    /// A program that is installed and that the table does not know: it works here and on what its
    /// arguments name, by convention. A command among its arguments is one that it starts.
    pub(super) fn installed(&mut self, arguments: &[Word], why: &str) {
        let starts = |word: &Word| {
            let tool = word.text().and_then(|text| self.table.tool(text));
            tool.is_some_and(|tool| tool.language.is_some() || tool.wraps())
        };
        let dashes = arguments
            .iter()
            .position(|word| word.text() == Some("--"))
            .map(|at| at + 1);
        let command = dashes.or_else(|| arguments.iter().position(starts));
        if let Some(words) = command.and_then(|at| arguments.get(at..))
            && words.first().is_some_and(starts)
        {
            let words = words.to_vec();
            self.apart(|walk| walk.call(&words));
        }
        self.unread(&[".".to_owned()], why);
    }

    /// Keys that are sent to a terminal in which a shell runs. What is not a command of it is for
    /// another program there.
    pub(super) fn typed(&mut self, word: &Word) {
        const KEYS: [&str; 12] = [
            "Enter", "C-m", "C-c", "C-d", "C-l", "C-z", "Escape", "Space", "Tab", "q", "BSpace",
            "Up",
        ];
        let Word::Plain(text) = word else {
            self.unread(&[".".to_owned()], "keys for a terminal are not known");
            return;
        };
        let text = text.trim().to_owned();
        if text.is_empty() || KEYS.contains(&text.as_str()) {
            return;
        }
        let first = text.split_whitespace().next().unwrap_or_default();
        let builtin = ["cd", "export", "source", ".", "for", "if", "while", "set"];
        let is_command = self.table.tool(first).is_some()
            || builtin.contains(&first)
            || first.starts_with("./")
            || (first.starts_with('/') && first.matches('/').count() > 1);
        if !is_command {
            self.unread(
                &[".".to_owned()],
                "keys are sent to a program in a terminal",
            );
            return;
        }
        let place = self.scope.typed.clone().or(self.scope.cwd.clone());
        let mut after = None;
        self.apart(|walk| {
            walk.scope.cwd = place;
            walk.inline(&text);
            after.clone_from(&walk.scope.cwd);
        });
        self.scope.typed = after;
    }

    /// Paths among the arguments of a program that is not known: what looks like one is read, and
    /// written where an option for outputs stands before it.
    pub(super) fn literal_arguments(&mut self, arguments: &[Word]) {
        let mut output = false;
        // A value of an option of which only its name tells that it is a path.
        let mut value_of = false;
        for word in arguments.iter().take(64) {
            let text = word.known().to_owned();
            if let Some(option) = text.strip_prefix("--") {
                let (option, value) = option.split_once('=').unwrap_or((option, ""));
                output = is_output(option);
                value_of = names_path(option);
                if looks_like_path(value) || (value_of && is_name(value)) {
                    self.note(output, &word.without(text.len() - value.len()));
                }
                if text.contains('=') {
                    (output, value_of) = (false, false);
                }
                continue;
            }
            if let Some(option) = text.strip_prefix('-') {
                let short = matches!(option, "o" | "O" | "w");
                output = short || (option.len() > 2 && is_output(option));
                value_of = matches!(option, "o" | "O") || (option.len() > 2 && names_path(option));
                continue;
            }
            if let Word::Pattern { .. } = word {
                if text.contains('/') {
                    self.note(output, word);
                }
            } else if let Some((name, value)) = text.split_once('=')
                && name
                    .chars()
                    .all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
            {
                if looks_like_path(value) && !value.contains("://") {
                    let made = is_output(name) || name == "of";
                    self.note(made, &word.without(text.len() - value.len()));
                }
            } else if (looks_like_path(&text) || (value_of && is_name(&text)))
                && !text.contains("://")
                && !is_address(&text)
            {
                self.note(output, word);
            }
            (output, value_of) = (false, false);
        }
    }

    fn note(&mut self, output: bool, word: &Word) {
        match output {
            true => self.write(word),
            false => self.read(word),
        }
    }

    /// Remembers what the lines on the standard output of a search are, for the next command.
    pub(super) fn note_found(&mut self, name: &str, arguments: &[Word]) {
        let from_search = self.scope.input == ShellInput::Stream && self.found.is_some();
        if FILTERS.contains(&name) && from_search {
            return;
        }
        self.found = match SEARCHES.contains(&name) {
            true => found_by(self, name, arguments),
            false if matches!(name, "xargs" | "parallel" | "read") => self.found.take(),
            false => None,
        };
    }

    /// Goes into a file that a script reads; `false` where that is too deep.
    pub(super) fn deeper(&mut self) -> bool {
        let room = self.nested < MOST_NESTED;
        self.nested += u32::from(room);
        room
    }
}

/// The place in which a search looks.
fn found_by(walk: &Walk<'_, '_>, name: &str, arguments: &[Word]) -> Option<Word> {
    let tool = walk.table.tool(name)?;
    let parsed = Parsed::read(tool, arguments);
    let lists = |flags: &[&str]| {
        let mut words = arguments.iter().filter_map(Word::text);
        words.any(|word| flags.contains(&word))
    };
    let place = match name {
        "find" | "ls" => parsed.operands.first(),
        "fd" | "locate" => parsed.operands.get(1),
        "rg" | "grep" if lists(&["-l", "-rl", "-lr", "-rlZ", "-lZ", "--files-with-matches"]) => {
            parsed.operands.get(1)
        }
        "git" if lists(&["ls-files", "--name-only"]) => None,
        _ => return None,
    };
    Some(super::repeated::found_in(place))
}

/// Whether an option is for what a program makes, by its name.
fn is_output(option: &str) -> bool {
    const WORDS: [&str; 14] = [
        "out",
        "output",
        "outfile",
        "outdir",
        "dest",
        "destination",
        "dst",
        "target",
        "save",
        "log",
        "logfile",
        "logdir",
        "export",
        "write",
    ];
    let option = option.to_ascii_lowercase();
    let mut words = option.split(['-', '_', '.']);
    words.any(|word| WORDS.contains(&word)) || option.ends_with("output")
}

/// Whether the value of an option is a path, by its name.
fn names_path(option: &str) -> bool {
    const WORDS: [&str; 8] = [
        "file",
        "path",
        "dir",
        "directory",
        "input",
        "folder",
        "out",
        "output",
    ];
    let option = option.to_ascii_lowercase();
    let mut words = option.split(['-', '_', '.']);
    words.any(|word| WORDS.contains(&word) || (word.len() > 3 && word.ends_with("dir")))
}

/// Whether a text can be the name of a file at all.
fn is_name(text: &str) -> bool {
    let fits = |char: char| char.is_alphanumeric() || "/._-+@~".contains(char);
    let is_number = text
        .chars()
        .all(|char| char.is_ascii_digit() || char == '.');
    !text.is_empty() && text.len() <= 255 && text.chars().all(fits) && !is_number
}

/// Whether a text is an address of a network, or a version: digits and dots, and a slash at most.
fn is_address(text: &str) -> bool {
    text.contains('.')
        && !text.starts_with(['.', '/'])
        && text
            .chars()
            .all(|char| char.is_ascii_digit() || "./:".contains(char))
}

/// Whether an argument looks like a path: it has a slash, or the ending of a file.
fn looks_like_path(text: &str) -> bool {
    let fits = |char: char| char.is_alphanumeric() || "/._-+@~%".contains(char);
    if text.is_empty() || text.len() > 512 || !text.chars().all(fits) {
        return false;
    }
    let ending = text.rsplit_once('.').is_some_and(|(stem, end)| {
        !stem.is_empty()
            && (1..=5).contains(&end.len())
            && end.chars().any(|char| char.is_ascii_alphabetic())
            && end.chars().all(|char| char.is_ascii_alphanumeric())
    });
    text.starts_with('/') || text.starts_with("./") || text.contains('/') || ending
}
