//! Reads programs: what the code that a command executes reads, writes, contacts and starts.
//!
//! The text is untrusted. Reading it is bounded in time, size and depth, executes nothing, and
//! grants nothing: what it finds is a request. Unknown needs are reported as
//! precisely as possible.
#![forbid(unsafe_code)]

mod calls;
mod follow;
mod ir;
mod language;
mod parse;
mod value;

pub use calls::InvalidCallTable;

use calls::LibraryCalls;
use ironcage_files::Links;
use ironcage_intent::{Code, CodeNeeds, Sources, Unsure};
use language::Language;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Largest file that is read.
const LARGEST: u64 = 512 * 1024;

/// Bytes of files that are read for one command, and how many files.
const MOST_BYTES: usize = 4 * 1024 * 1024;
const MOST_FILES: usize = 400;

/// A reader of code, with or without the files of the place where it runs.
#[derive(Debug)]
pub struct Reader {
    calls: LibraryCalls,
    files: Option<Mutex<Files>>,
}

/// Files that were read, so that each is read once.
#[derive(Debug, Default)]
struct Files {
    read: std::collections::BTreeMap<PathBuf, Option<String>>,
    bytes: usize,
}

impl Reader {
    /// One that opens no file: only text that a command carries is read.
    pub fn without_files() -> Result<Self, InvalidCallTable> {
        let calls = LibraryCalls::shipped()?;
        Ok(Reader { calls, files: None })
    }

    /// One that opens the files which a command would execute.
    pub fn with_files() -> Result<Self, InvalidCallTable> {
        let calls = LibraryCalls::shipped()?;
        let files = Some(Mutex::default());
        Ok(Reader { calls, files })
    }

    fn follow(&self, code: &Code<'_>, language: Language) -> CodeNeeds {
        let known = match language {
            Language::Python => &self.calls.python,
            Language::JavaScript => &self.calls.javascript,
        };
        match language.lower(code.text) {
            Some((body, complete)) => follow::follow(code, known, language, (&body, complete)),
            None => {
                let mut found = CodeNeeds::default();
                found
                    .needs
                    .unsure(Unsure::Everything, "the code is too long to parse");
                found
            }
        }
    }

    fn tests(&self, code: &Code<'_>) -> CodeNeeds {
        let mut found = CodeNeeds::default();
        let looked = Cell::new(0_usize);
        let list = |path: &Path| {
            let written = code.written.iter().filter(|file| file.starts_with(path));
            let written = written.cloned();
            if self.files.is_none() || looked.replace(looked.get() + 1) > 200 {
                return written.collect();
            }
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let entries = entries.take(2000).map(|entry| entry.path());
            let mut paths: Vec<PathBuf> = entries.chain(written).collect();
            paths.sort();
            paths.dedup();
            paths
        };
        let files = match language::tests::files(code, &list) {
            Ok(files) => files,
            Err((what, why)) => {
                found.needs.unsure(what, why);
                return found;
            }
        };
        for path in files {
            found.needs.read(path.clone());
            let Some(text) = (code.file)(&path) else {
                let why = format!("the tests in `{}` cannot be read", path.display());
                match code.cwd {
                    Some(cwd) => found.needs.unsure_below(cwd, &why),
                    None => found.needs.unsure(Unsure::Everything, why),
                }
                continue;
            };
            let code = Code {
                text: &text,
                path: Some(&path),
                arguments: &[],
                ..*code
            };
            let inner = self.follow(&code, Language::Python);
            found.needs.merge(inner.needs);
            found.commands.extend(inner.commands);
        }
        found
    }
}

impl Sources for Reader {
    fn file(&self, path: &Path) -> Option<String> {
        let mut files = self.files.as_ref()?.lock().ok()?;
        if let Some(known) = files.read.get(path) {
            return known.clone();
        }
        if files.bytes > MOST_BYTES || files.read.len() >= MOST_FILES {
            return None;
        }
        let read = ironcage_files::read(path, LARGEST, Links::Follow).ok();
        let text = read.and_then(|bytes| String::from_utf8(bytes).ok());
        // A compiled program is not text.
        let text = text.filter(|text| !text.contains('\0'));
        files.bytes += text.as_ref().map_or(0, String::len);
        files.read.insert(path.to_owned(), text.clone());
        text
    }

    fn code(&self, code: &Code<'_>) -> Option<CodeNeeds> {
        Some(match code.language {
            "python" => self.follow(code, Language::Python),
            "javascript" => self.follow(code, Language::JavaScript),
            "awk" => language::awk::read(code),
            "expect" => language::expect::read(code),
            "make" => language::makefile::read(code),
            "package-scripts" => language::package::read(code),
            "pytest" => self.tests(code),
            "perl" | "ruby" | "php" | "r" | "compiled" => language::literals::any(code),
            _ => return None,
        })
    }
}
