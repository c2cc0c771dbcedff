//! What stays open of a command: as little as its text and the conventions of its tool allow.

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

    /// Paths among the arguments of a program that is not known: what looks like one is read, and
    /// written where an option for outputs stands before it.
    pub(super) fn literal_arguments(&mut self, arguments: &[Word]) {
        let mut output = false;
        for word in arguments.iter().take(64) {
            let text = word.known().to_owned();
            if let Some(option) = text.strip_prefix("--") {
                let (option, value) = option.split_once('=').unwrap_or((option, ""));
                output = option.starts_with("out") || option.ends_with("output");
                if looks_like_path(value) {
                    self.note(output, &word.without(text.len() - value.len()));
                }
                continue;
            }
            if text.starts_with('-') {
                output = matches!(text.as_str(), "-o" | "-O" | "-out" | "-output");
                continue;
            }
            if looks_like_path(&text) && !text.contains("://") {
                self.note(output, word);
            }
            output = false;
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
            false if name == "xargs" || name == "read" => self.found.take(),
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
    Some(super::found_in(place))
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
