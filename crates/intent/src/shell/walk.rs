//! The walk through a script, with every branch taken.

use super::word::{Variables, Word};
use super::{Context, builtin, parse};
use crate::needs::{Needs, Unsure, tidy};
use crate::tools::Table;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tree_sitter::Node;

/// Scripts inside scripts that are read.
const MOST_NESTED: u32 = 8;

/// How deep a tree is walked.
const DEEPEST: u32 = 120;

/// Nodes that are visited, all scripts together.
const MOST_STEPS: u32 = 50_000;

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
    pub(crate) input: Input,
    steps: u32,
}

/// What stands at the standard input of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing that the text tells of.
    Inherited,
    /// Another command's output, or a file.
    Stream,
    /// This.
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
            input: Input::Inherited,
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
        needs.unsure(Unsure::Everything, "scripts stand too deep inside scripts");
        return scope;
    }
    let Some(tree) = parse(text, needs) else {
        return scope;
    };
    if tree.root_node().has_error() {
        needs.unsure(
            Unsure::Everything,
            "a part of it is no shell command that can be read",
        );
    }
    let mut walk = Walk {
        table,
        source: text,
        scope,
        functions: BTreeMap::new(),
        needs,
        nested,
        depth: 0,
    };
    walk.visit(tree.root_node());
    walk.scope
}

/// The walk through one script.
pub(crate) struct Walk<'a, 't> {
    pub(crate) table: &'a Table,
    pub(super) source: &'a str,
    pub(crate) scope: Scope,
    functions: BTreeMap<String, Node<'t>>,
    pub(crate) needs: &'a mut Needs,
    nested: u32,
    depth: u32,
}

impl<'t> Walk<'_, 't> {
    pub(super) fn text(&self, node: Node<'_>) -> &str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }

    /// Goes through a statement.
    pub(super) fn visit(&mut self, node: Node<'t>) {
        self.scope.steps = self.scope.steps.saturating_add(1);
        if self.scope.steps > MOST_STEPS || self.depth >= DEEPEST {
            self.needs.unsure(
                Unsure::Everything,
                "the command is too large or too deep to be read",
            );
            return;
        }
        self.depth += 1;
        self.statement(node);
        self.depth -= 1;
    }

    /// Goes through what is no statement, for what is executed below it.
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
                let exported = self.text(node).starts_with("export")
                    || self.text(node).starts_with("declare")
                    || self.text(node).starts_with("typeset");
                for child in named(node) {
                    match child.kind() {
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
        let steps = self.scope.steps;
        self.scope = Scope { steps, ..scope };
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
        for _ in 0..2 {
            self.perhaps(|walk| walk.children(node));
        }
    }

    fn list(&mut self, node: Node<'t>) {
        let mut otherwise = false;
        let mut cursor = node.walk();
        let children: Vec<_> = node.children(&mut cursor).collect();
        for child in children {
            match child.kind() {
                "||" => otherwise = true,
                "&&" => otherwise = false,
                _ if !child.is_named() => {}
                _ if otherwise => self.perhaps(|walk| walk.visit(child)),
                _ => self.visit(child),
            }
        }
    }

    fn pipeline(&mut self, node: Node<'t>) {
        for (index, child) in named(node).into_iter().enumerate() {
            self.apart(|walk| {
                if index > 0 {
                    walk.scope.input = Input::Stream;
                }
                walk.visit(child);
            });
        }
    }

    fn redirected(&mut self, node: Node<'t>) {
        let before = self.scope.input.clone();
        for child in named(node) {
            if is_redirect(child) {
                self.redirect(child);
            }
        }
        if let Some(body) = node.child_by_field_name("body") {
            self.visit(body);
        }
        self.scope.input = before;
    }

    fn redirect(&mut self, node: Node<'t>) {
        match node.kind() {
            "herestring_redirect" => {
                let mut words = Vec::new();
                for child in named(node) {
                    words.extend(self.expand(child));
                }
                self.scope.input = match words.as_slice() {
                    [Word::Plain(text)] => Input::Text(text.clone()),
                    _ => Input::Stream,
                };
            }
            "heredoc_redirect" => self.here_document(node),
            _ => self.file_redirect(node),
        }
    }

    fn here_document(&mut self, node: Node<'t>) {
        let mut input = Input::Text(String::new());
        let mut after = Vec::new();
        for child in named(node) {
            match child.kind() {
                "heredoc_start" | "heredoc_end" => {}
                "heredoc_body" => {
                    let plain = named(child)
                        .iter()
                        .all(|part| part.kind() == "heredoc_content");
                    input = match plain {
                        true => Input::Text(self.text(child).to_owned()),
                        false => Input::Stream,
                    };
                    self.forget(child);
                }
                "file_redirect" => self.file_redirect(child),
                "herestring_redirect" | "file_descriptor" => {}
                // Arguments after the document's mark, or what the line goes on with.
                _ => after.push(child),
            }
        }
        for child in after {
            self.apart(|walk| {
                walk.scope.input = Input::Stream;
                walk.visit(child);
            });
        }
        self.scope.input = input;
    }

    fn file_redirect(&mut self, node: Node<'t>) {
        let mut cursor = node.walk();
        let operator = node
            .children(&mut cursor)
            .find(|child| !child.is_named())
            .map(|child| child.kind().to_owned())
            .unwrap_or_default();
        let mut cursor = node.walk();
        let destinations: Vec<_> = node
            .children_by_field_name("destination", &mut cursor)
            .collect();
        for destination in destinations {
            for word in self.expand(destination) {
                let descriptor = word
                    .text()
                    .is_some_and(|text| text == "-" || text.bytes().all(|b| b.is_ascii_digit()));
                match operator.as_str() {
                    _ if self.shell_socket(&word) => {}
                    "<&" | ">&" | "<&-" | ">&-" if descriptor => {}
                    "<" | "<&" => {
                        self.scope.input = Input::Stream;
                        self.read(&word);
                    }
                    "<>" => {
                        self.read(&word);
                        self.write(&word);
                    }
                    _ => self.write(&word),
                }
            }
        }
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
        if let Some(name) = node.child_by_field_name("variable") {
            let name = self.text(name).to_owned();
            self.scope.variables.set(&name, held, false);
        }
        if let Some(body) = node.child_by_field_name("body") {
            self.again(body);
        }
    }

    fn assign(&mut self, node: Node<'t>, exported: bool) {
        let Some(name) = node.child_by_field_name("name") else {
            return;
        };
        let whole = name.kind() == "variable_name" && !self.text(node).contains("+=");
        let name = self
            .text(name)
            .split('[')
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut values = Some(vec![Word::Plain(String::new())]);
        if let Some(value) = node.child_by_field_name("value") {
            if value.kind() == "array" {
                self.forget(value);
                values = None;
            } else {
                let words = self.expand(value);
                let known = words.iter().all(|word| matches!(word, Word::Plain(_)));
                values = known.then_some(words);
            }
        }
        let maybe = self.scope.maybe;
        let known = values.filter(|_| whole);
        self.scope.variables.set(&name, known, maybe);
        if self.table.environment.executes(&name)
            || (exported && !self.table.environment.is_harmless(&name))
        {
            self.needs.unsure(
                Unsure::Everything,
                format!("`{name}` changes what the programs after it do"),
            );
        }
    }

    fn command(&mut self, node: Node<'t>) {
        let before = self.scope.input.clone();
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
            for assignment in assignments {
                self.before_command(assignment);
            }
            self.call(&words);
        }
        self.scope.input = before;
    }

    /// A variable that is set for one command only.
    fn before_command(&mut self, node: Node<'t>) {
        if let Some(value) = node.child_by_field_name("value") {
            self.expand(value);
        }
        let name = node.child_by_field_name("name");
        let name = name
            .map(|name| self.text(name).to_owned())
            .unwrap_or_default();
        if !self.table.environment.is_harmless(&name) {
            self.needs.unsure(
                Unsure::Everything,
                format!("`{name}` may change what the program does"),
            );
        }
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
        if !builtin::run(self, &text, arguments) {
            crate::tools::run(self, &text, arguments);
        }
        self.depth -= 1;
    }

    fn visit_too_much(&mut self) {
        self.needs.unsure(
            Unsure::Everything,
            "the command is too large or too deep to be read",
        );
    }

    /// Reads a script that a command executes, as a process of its own.
    pub(crate) fn script(&mut self, text: &str, arguments: Option<Vec<Word>>) {
        let scope = Scope {
            arguments,
            input: Input::Inherited,
            ..self.scope.clone()
        };
        let after = script(self.table, text, scope, self.nested + 1, self.needs);
        self.scope.steps = after.steps;
    }

    /// Reads a script as if it stood here.
    pub(super) fn inline(&mut self, text: &str) {
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

fn is_redirect(node: Node<'_>) -> bool {
    matches!(
        node.kind(),
        "file_redirect" | "heredoc_redirect" | "herestring_redirect"
    )
}
