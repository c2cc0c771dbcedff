//! Code that a command executes besides the shell's own text: files, and code in other languages.
//!
//! The grammars of other languages are not here: whoever has them implements [`Sources`]. Without
//! it, such code is unknown, and only scripts that the same command wrote are followed.

use crate::needs::Needs;
use std::fmt;
use std::path::{Path, PathBuf};

/// Reads files and code for the shell reader.
pub trait Sources: fmt::Debug + Send + Sync {
    /// The text of a file that a command would execute. `None` if it cannot be read, or is not
    /// text, or is too large.
    fn file(&self, path: &Path) -> Option<String>;

    /// What code in a language other than the shell's needs. `None` if the language is not known.
    fn code(&self, code: &Code<'_>) -> Option<CodeNeeds>;
}

/// Code that a command executes.
pub struct Code<'a> {
    /// The language, as the table of tools names it: `python`, `javascript`, `make`, …
    pub language: &'a str,
    pub text: &'a str,
    /// The file that it comes from, if it is one.
    pub path: Option<&'a Path>,
    /// Where it runs, if that is known.
    pub cwd: Option<&'a Path>,
    pub home: Option<&'a Path>,
    /// Its arguments, without its own name.
    pub arguments: &'a [Argument],
    /// The text of another file, also of one that an earlier command wrote.
    pub file: &'a dyn Fn(&Path) -> Option<String>,
    /// Files that earlier commands wrote.
    pub written: &'a [PathBuf],
}

/// A word of a command, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The known part, from its beginning.
    pub text: String,
    /// Whether that is all of it.
    pub whole: bool,
}

/// What code needs: its own needs, and the commands that it starts.
#[derive(Debug, Clone, Default)]
pub struct CodeNeeds {
    /// Read from the code itself.
    pub needs: Needs,
    /// The shell reader reads these as if they stood in the command.
    pub commands: Vec<CodeCommand>,
}

/// A command that code starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeCommand {
    pub text: CommandText,
    /// Where, if not where the code runs.
    pub cwd: Option<PathBuf>,
}

/// The two ways to start a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandText {
    /// A script of the shell.
    Script(String),
    /// A program and its arguments.
    Words(Vec<Argument>),
}
