//! Shell commands: from their text to what they need.
//!
//! The grammar is bash's. The parser produces a tree for any text and marks the parts that it
//! could not parse. The walk visits the tree as the shell would, with every branch taken.

mod assign;
mod builtin;
mod expand;
mod gaps;
mod list;
mod redirect;
pub(crate) mod walk;
mod word;

use crate::needs::{Needs, Unsure};
use crate::tools::Table;
use std::ops::ControlFlow;
use std::path::PathBuf;
use tree_sitter::{ParseOptions, ParseState, Parser};

pub(crate) use word::Word;

/// Longest command that is read, in bytes; also the longest word that variables become in it, and
/// the most that they hold together: `x=$x$x` doubles with each line.
const LONGEST: usize = 64 * 1024;

/// Pipes and here-documents that are read, in one script.
const MOST_PIPES: usize = 4096;
const MOST_DOCUMENTS: usize = 1024;

/// How often the parser reports before it is stopped: it does so every hundred steps or so.
const MOST_REPORTS: u32 = 100_000;

/// Where a command would run.
#[derive(Debug, Clone)]
pub struct Context {
    /// The working directory, absolute.
    pub cwd: PathBuf,
    /// The home directory, where there is one.
    pub home: Option<PathBuf>,
}

/// A reader of shell commands.
#[derive(Debug, Clone, Copy)]
pub struct Shell<'t> {
    table: &'t Table,
}

impl<'t> Shell<'t> {
    /// With what is known of tools.
    pub fn new(table: &'t Table) -> Self {
        Shell { table }
    }

    pub fn read(&self, command: &str, context: &Context) -> Needs {
        let mut needs = Needs::default();
        let scope = walk::Scope::new(context.clone());
        walk::script(self.table, command, scope, 0, &mut needs);
        needs.drop_entered();
        needs
    }
}

/// Parses a script; `None`, and a reason in `needs`, if that fails.
fn parse(text: &str, needs: &mut Needs) -> Option<tree_sitter::Tree> {
    if text.len() > LONGEST {
        needs.unsure(
            Unsure::Everything,
            format!("the command is longer than {LONGEST} bytes"),
        );
        return None;
    }
    // Reading them takes the square of their number.
    if text.matches('|').count() > MOST_PIPES || text.matches("<<").count() > MOST_DOCUMENTS {
        needs.unsure(
            Unsure::Everything,
            "the command has too many pipes or here-documents",
        );
        return None;
    }
    if text.contains('\0') {
        needs.unsure(Unsure::Everything, "the command contains a NUL");
        return None;
    }
    let mut parser = Parser::new();
    let language = tree_sitter_bash::LANGUAGE.into();
    if parser.set_language(&language).is_err() {
        needs.unsure(
            Unsure::Everything,
            "the shell grammar does not match the parser version",
        );
        return None;
    }
    let mut reports = 0_u32;
    let mut progress = |_: &ParseState| {
        reports = reports.saturating_add(1);
        match reports > MOST_REPORTS {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let bytes = text.as_bytes();
    let mut chunk = |at: usize, _| bytes.get(at..).unwrap_or_default();
    let tree = parser.parse_with_options(&mut chunk, None, Some(options));
    if tree.is_none() {
        needs.unsure(Unsure::Everything, "the command takes too long to parse");
    }
    tree
}
