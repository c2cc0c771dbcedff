//! The walk through a script, with every branch taken.

use super::gaps::{without_documents, without_gaps};
use super::redirect::is_redirect;
use super::word::{Variables, Word};
use super::{Context, builtin, parse};
use crate::needs::{Needs, Unsure, tidy};
use crate::tools::Table;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tree_sitter::Node;

/// Scripts inside scripts that are read.
pub(crate) const MOST_NESTED: u32 = 8;

/// How deep a tree is walked.
const DEEPEST: u32 = 120;

/// Values of a loop that are taken one by one.
const MOST_ROUNDS: usize = 16;

/// Nodes that are visited, all scripts together.
pub(super) const MOST_STEPS: u32 = 50_000;

/// What a part of a script runs in, and can change for the parts after it.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// `None` once it is not known.
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) home: Option<PathBuf>,
    pub(crate) variables: Variables,
    /// The arguments of the script or function, where they are known.
    pub(crate) arguments: Option<Vec<Word>>,
    /// Whether this part may not run at all.
    pub(crate) maybe: bool,
    pub(crate) input: ShellInput,
    /// The file that the command's output goes to, and whether it is added there.
    pub(super) output: Option<(PathBuf, bool)>,
    /// Files that earlier commands wrote, whose text is known.
    pub(crate) written: Rc<BTreeMap<PathBuf, String>>,
    /// Programs that earlier commands compiled, with their sources.
    pub(crate) compiled: Rc<BTreeMap<PathBuf, Vec<PathBuf>>>,
    /// Where the shell of a terminal is that the text types into.
    pub(crate) typed: Option<PathBuf>,
    pub(crate) steps: u32,
}

/// What stands at the standard input of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShellInput {
    /// Nothing that the text tells of.
    Inherited,
    /// Another command's output, or a file.
    Stream,
    Text(String),
}

impl Scope {
    pub(crate) fn new(context: Context) -> Self {
        Scope {
            cwd: Some(tidy(Path::new("/"), &context.cwd.to_string_lossy())),
            home: context.home,
            variables: Variables::default(),
            arguments: None,
            maybe: false,
            input: ShellInput::Inherited,
            output: None,
            written: Rc::default(),
            compiled: Rc::default(),
            typed: None,
            steps: 0,
        }
    }
}

/// Reads a script in this scope. Returns the scope after it.
pub(crate) fn script(
    table: &Table,
    text: &str,
    scope: Scope,
    nested: u32,
    needs: &mut Needs,
) -> Scope {
    if nested > MOST_NESTED {
        needs.unsure(Unsure::Everything, "scripts are nested too deep");
        return scope;
    }
    let Some(mut tree) = parse(text, needs) else {
        return scope;
    };
    let mut text = std::borrow::Cow::Borrowed(text);
    if tree.root_node().has_error()
        && let Some(again) = parse_quoted(&text, needs)
    {
        tree = again;
    }
    if tree.root_node().has_error()
        && let Some(other) = without_gaps(&text)
        && let Some(again) = parse(&other, needs)
            .filter(|tree| !tree.root_node().has_error())
            .or_else(|| parse_quoted(&other, needs))
    {
        tree = again;
        text = std::borrow::Cow::Owned(other);
    }
    if tree.root_node().has_error() {
        needs.unsure(Unsure::Everything, "part of the command cannot be parsed");
    }
    let mut walk = Walk {
        table,
        source: &text,
        scope,
        functions: BTreeMap::new(),
        needs,
        nested,
        depth: 0,
        piped: None,
        found: None,
        unrolled: 0,
        jobs: false,
    };
    walk.visit(tree.root_node());
    walk.needs.leaves_running |= walk.jobs;
    walk.scope
}

/// The tree of a text in whose quoted here-documents the grammar finds what it cannot parse. `None`
/// if there is an error left, or something else than a document stands there.
fn parse_quoted(text: &str, needs: &mut Needs) -> Option<tree_sitter::Tree> {
    let (plain, documents) = without_documents(text)?;
    let tree = parse(&plain, needs)?;
    let root = tree.root_node();
    let is_document = |node: Option<Node<'_>>| {
        let mut node = node;
        // A document is a node of its own, with what is in it.
        for _ in 0..4 {
            match node.map(|node| node.kind()) {
                Some("heredoc_body" | "heredoc_content") => return true,
                _ => node = node.and_then(|node| node.parent()),
            }
        }
        false
    };
    let all = documents.into_iter().all(|document| {
        let end = document.end.saturating_sub(1).max(document.start);
        is_document(root.descendant_for_byte_range(document.start, end))
    });
    (!root.has_error() && all).then_some(tree)
}

/// The walk through one script.
pub(crate) struct Walk<'a, 't> {
    pub(crate) table: &'a Table,
    pub(super) source: &'a str,
    pub(crate) scope: Scope,
    functions: BTreeMap<String, Node<'t>>,
    pub(crate) needs: &'a mut Needs,
    pub(crate) nested: u32,
    pub(crate) depth: u32,
    /// What the last command wrote to its standard output, if that is known.
    pub(super) piped: Option<String>,
    /// What the words of the standard input are, where a search wrote them.
    pub(crate) found: Option<Word>,
    /// Loops around this place whose values are taken one by one.
    unrolled: u32,
    /// Whether jobs of this script are in the background that it has neither waited for nor ended.
    pub(crate) jobs: bool,
}

impl<'t> Walk<'_, 't> {
    pub(super) fn text(&self, node: Node<'_>) -> &str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }

    pub(super) fn visit(&mut self, node: Node<'t>) {
        self.scope.steps = self.scope.steps.saturating_add(1);
        if self.scope.steps > MOST_STEPS || self.depth >= DEEPEST {
            self.needs.unsure(
                Unsure::Everything,
                "the command is too long or too deep to parse",
            );
            return;
        }
        self.depth += 1;
        self.statement(node);
        self.depth -= 1;
    }

    /// Visits a node that is not a statement, for statements below it.
    pub(super) fn descend(&mut self, node: Node<'t>) {
        if self.depth >= DEEPEST {
            self.visit_too_much();
            return;
        }
        self.depth += 1;
        self.forget(node);
        self.depth -= 1;
    }

    fn statement(&mut self, node: Node<'t>) {
        match node.kind() {
            "command" => self.command(node),
            "list" => self.list(node),
            "pipeline" => self.pipeline(node),
            "subshell" => self.apart(|walk| walk.children(node)),
            "redirected_statement" => self.redirected(node),
            "if_statement" | "elif_clause" | "else_clause" | "case_item" => {
                self.perhaps(|walk| walk.children(node));
            }
            "while_statement" => self.again(node),
            "c_style_for_statement" => {
                self.forget(node);
                self.again(node);
            }
            "for_statement" => self.for_each(node),
            "case_statement" => {
                if let Some(value) = node.child_by_field_name("value") {
                    self.expand(value);
                }
                self.children(node);
            }
            "function_definition" => {
                let name = node.child_by_field_name("name");
                if let (Some(name), Some(body)) = (name, node.child_by_field_name("body")) {
                    self.functions.insert(self.text(name).to_owned(), body);
                }
            }
            "variable_assignment" => self.assign(node, false),
            "declaration_command" => {
                let mut exported = self.text(node).starts_with("export");
                for child in named(node) {
                    match child.kind() {
                        "word" if self.text(child).starts_with('-') => {
                            exported |= self.text(child).contains('x');
                        }
                        "variable_assignment" => self.assign(child, exported),
                        "variable_name" => {}
                        _ => drop(self.expand(child)),
                    }
                }
            }
            "unset_command" => {
                for child in named(node) {
                    let name = self.text(child).to_owned();
                    self.scope.variables.set(&name, None, false);
                }
            }
            "program" | "do_group" | "negated_command" | "variable_assignments" => {
                self.children(node);
            }
            "compound_statement" => {
                if self.text(node).starts_with("((") {
                    self.forget(node);
                } else {
                    self.children(node);
                }
            }
            "comment" | "word" | "variable_name" | "extglob_pattern" | "heredoc_start"
            | "heredoc_end" | "heredoc_content" => {}
            // Tests and arithmetic, and what could not be read: what is executed inside counts.
            _ => self.forget(node),
        }
    }

    /// The statements below a node. One that is followed by `&` changes nothing for the others.
    fn children(&mut self, node: Node<'t>) {
        let mut cursor = node.walk();
        let children: Vec<_> = node.children(&mut cursor).collect();
        for (index, child) in children.iter().enumerate() {
            if !child.is_named() {
                continue;
            }
            let next = children.get(index + 1);
            if next.is_some_and(|next| next.kind() == "&") {
                self.apart(|walk| walk.visit(*child));
                self.jobs = true;
            } else {
                self.visit(*child);
            }
        }
    }

    /// Whatever happens in there, the scope after it is the one before it.
    pub(crate) fn apart(&mut self, inside: impl FnOnce(&mut Self)) {
        let scope = self.scope.clone();
        let functions = self.functions.clone();
        inside(self);
        self.scope = Scope {
            steps: self.scope.steps,
            written: Rc::clone(&self.scope.written),
            compiled: Rc::clone(&self.scope.compiled),
            typed: self.scope.typed.clone(),
            ..scope
        };
        self.functions = functions;
    }

    /// What happens in there may also not happen.
    pub(super) fn perhaps(&mut self, inside: impl FnOnce(&mut Self)) {
        let before = self.scope.maybe;
        let cwd = self.scope.cwd.clone();
        self.scope.maybe = true;
        inside(self);
        self.scope.maybe = before;
        if self.scope.cwd != cwd {
            self.scope.cwd = None;
        }
    }

    /// A body that runs any number of times: what it sets is there when it runs again.
    fn again(&mut self, node: Node<'t>) {
        let found = self.found.clone();
        for _ in 0..2 {
            self.found.clone_from(&found);
            self.perhaps(|walk| walk.children(node));
        }
    }

    fn pipeline(&mut self, node: Node<'t>) {
        for (index, child) in named(node).into_iter().enumerate() {
            let piped = self.piped.take();
            self.apart(|walk| {
                if index > 0 {
                    walk.scope.input = piped.map_or(ShellInput::Stream, ShellInput::Text);
                }
                walk.visit(child);
            });
        }
        self.piped = None;
        self.found = None;
    }

    fn for_each(&mut self, node: Node<'t>) {
        let mut cursor = node.walk();
        let values: Vec<_> = node.children_by_field_name("value", &mut cursor).collect();
        let mut held = Some(Vec::new());
        if values.is_empty() {
            held = self.scope.arguments.clone();
        }
        for value in values {
            for word in self.expand(value) {
                match (word, held.as_mut()) {
                    (Word::Open { .. }, _) => held = None,
                    (word, Some(held)) => held.push(word),
                    (_, None) => {}
                }
            }
        }
        let (Some(name), Some(body)) = (
            node.child_by_field_name("variable"),
            node.child_by_field_name("body"),
        ) else {
            return;
        };
        let name = self.text(name).to_owned();
        match held {
            // One by one, as the shell does it, where these are few.
            Some(words) if !words.is_empty() && words.len() <= MOST_ROUNDS && self.unrolled < 2 => {
                self.unrolled += 1;
                for word in words {
                    self.scope.variables.set(&name, Some(vec![word]), false);
                    self.perhaps(|walk| walk.children(body));
                }
                self.unrolled -= 1;
            }
            held => {
                self.scope.variables.set(&name, held, false);
                self.again(body);
            }
        }
    }

    fn command(&mut self, node: Node<'t>) {
        let before = self.scope.input.clone();
        let output = self.scope.output.clone();
        let mut words = Vec::new();
        let mut assignments = Vec::new();
        for child in named(node) {
            match child.kind() {
                "variable_assignment" => assignments.push(child),
                "command_name" => {
                    for part in named(child) {
                        words.extend(self.expand(part));
                    }
                }
                _ if is_redirect(child) => self.redirect(child),
                "comment" => {}
                _ => words.extend(self.expand(child)),
            }
        }
        if words.is_empty() {
            for assignment in assignments {
                self.assign(assignment, false);
            }
        } else {
            let splits = matches!(
                words.first().and_then(Word::text),
                Some("read" | "mapfile" | "readarray")
            );
            for assignment in assignments {
                self.before_command(assignment, splits);
            }
            self.call(&words);
        }
        self.scope.input = before;
        self.scope.output = output;
    }

    /// Executes a command of these words.
    pub(crate) fn call(&mut self, words: &[Word]) {
        let Some((name, arguments)) = words.split_first() else {
            return;
        };
        self.scope.steps = self.scope.steps.saturating_add(1);
        let Some(text) = name.text().map(str::to_owned) else {
            let why = format!("the program is not known: {}", name.source());
            self.needs.unsure(Unsure::Everything, why);
            return;
        };
        if let Some(body) = self.functions.get(&text).copied() {
            let before = self.scope.arguments.replace(arguments.to_vec());
            self.visit(body);
            self.scope.arguments = before;
            return;
        }
        if self.depth >= DEEPEST || self.scope.steps > MOST_STEPS {
            self.visit_too_much();
            return;
        }
        self.depth += 1;
        self.note_output(&text, arguments);
        if !builtin::run(self, &text, arguments) {
            crate::tools::run(self, &text, arguments);
        }
        self.depth -= 1;
    }

    fn visit_too_much(&mut self) {
        self.needs.unsure(
            Unsure::Everything,
            "the command is too long or too deep to parse",
        );
    }

    /// Reads a script that a command executes, as a process of its own.
    pub(crate) fn script(&mut self, text: &str, arguments: Option<Vec<Word>>) {
        let scope = Scope {
            arguments,
            input: ShellInput::Inherited,
            ..self.scope.clone()
        };
        let after = script(self.table, text, scope, self.nested + 1, self.needs);
        self.scope.steps = after.steps;
        self.scope.written = after.written;
        self.scope.compiled = after.compiled;
    }

    /// Reads a script as if it stood here.
    pub(crate) fn inline(&mut self, text: &str) {
        let scope = script(
            self.table,
            text,
            self.scope.clone(),
            self.nested + 1,
            self.needs,
        );
        self.scope = scope;
    }

    /// The path that a word is, from where the command runs. `None`, and `what` is not known.
    pub(crate) fn path(&mut self, word: &Word, what: Unsure) -> Option<PathBuf> {
        let text = match word {
            Word::Plain(text) => text.as_str(),
            // The directory in which the pattern is looked for.
            Word::Pattern { text, fixed } => {
                let fixed = text.get(..*fixed).unwrap_or_default();
                fixed
                    .rfind('/')
                    .map_or(".", |slash| fixed.get(..=slash).unwrap_or("."))
            }
            // Something below a directory that is known.
            Word::Open { known, .. } if self.below(known).is_some() => {
                self.below(known).unwrap_or_default()
            }
            Word::Open { source, .. } => {
                self.needs
                    .unsure(what, format!("a path is not known: {source}"));
                return None;
            }
        };
        if text.is_empty() {
            return None;
        }
        if text.starts_with('/') {
            return Some(tidy(Path::new("/"), text));
        }
        match &self.scope.cwd {
            Some(cwd) => Some(tidy(cwd, text)),
            None => {
                let why = format!("the working directory of `{text}` is not known");
                self.needs.unsure(what, why);
                None
            }
        }
    }

    /// The directory in which a path lies whose beginning is known; `None` if that says nothing.
    fn below<'k>(&self, known: &'k str) -> Option<&'k str> {
        let slash = known.rfind('/')?;
        let directory = known.get(..=slash)?;
        (!directory.trim_matches('/').is_empty()).then_some(directory)
    }

    pub(crate) fn read(&mut self, word: &Word) {
        if let Some(path) = self.path(word, Unsure::Reads) {
            self.needs.read(path);
        }
    }

    pub(crate) fn write(&mut self, word: &Word) {
        if let Some(path) = self.path(word, Unsure::Writes) {
            self.needs.write(path);
        }
    }

    /// Something is removed with all that is in it; of a directory that a pattern is looked for in,
    /// what fits.
    pub(crate) fn remove(&mut self, word: &Word, part: bool) {
        if let Some(path) = self.path(word, Unsure::Writes) {
            let whole = match word {
                Word::Pattern { text, .. } => text == "*" || text.ends_with("/*"),
                _ => true,
            };
            let removed = match whole && !part {
                true => path.clone(),
                false => path.join("*"),
            };
            self.needs.write(path);
            self.needs.remove(removed);
        }
    }
}

/// The children of a node that mean something.
pub(super) fn named<'t>(node: Node<'t>) -> Vec<Node<'t>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).collect()
}
