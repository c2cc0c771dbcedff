//! Redirections and here-documents, and what a script writes for its own later parts.

use super::list::last_of_list;
use super::walk::{ShellInput, Walk, named};
use super::word::Word;
use crate::needs::tidy;
use std::path::PathBuf;
use std::rc::Rc;
use tree_sitter::Node;

/// Bytes of files that earlier commands wrote, all together.
const MOST_WRITTEN: usize = 512 * 1024;

impl<'t> Walk<'_, 't> {
    pub(super) fn redirected(&mut self, node: Node<'t>) {
        let body = node.child_by_field_name("body");
        // The grammar redirects the whole of `cd d && sort > f`. A shell redirects `sort` alone, in
        // the directory that `cd` went to.
        match body.filter(|body| body.kind() == "list") {
            Some(list) => {
                let (last, perhaps) = self.list_but_last(list);
                match perhaps {
                    true => self.perhaps(|walk| walk.redirect_body(node, last)),
                    false => self.redirect_body(node, last),
                }
            }
            None => self.redirect_body(node, body),
        }
    }

    fn redirect_body(&mut self, node: Node<'t>, body: Option<Node<'t>>) {
        let before = self.scope.input.clone();
        let output = self.scope.output.take();
        for child in named(node) {
            if is_redirect(child) {
                self.redirect(child);
            }
        }
        if let Some(body) = body {
            let several = body.kind() != "command";
            let to = self.scope.output.clone();
            if several {
                // What they write together is not known.
                self.scope.output = None;
            }
            self.visit(body);
            if let Some((path, _)) = to.filter(|_| several) {
                Rc::make_mut(&mut self.scope.written).remove(&path);
            }
        }
        self.scope.input = before;
        self.scope.output = output;
    }

    pub(super) fn redirect(&mut self, node: Node<'t>) {
        match node.kind() {
            "herestring_redirect" => {
                let mut words = Vec::new();
                for child in named(node) {
                    words.extend(self.expand(child));
                }
                self.scope.input = match words.as_slice() {
                    [Word::Plain(text)] => ShellInput::Text(text.clone()),
                    _ => ShellInput::Stream,
                };
            }
            "heredoc_redirect" => self.here_document(node),
            _ => self.file_redirect(node),
        }
    }

    pub(super) fn here_document(&mut self, node: Node<'t>) {
        let mut input = ShellInput::Text(String::new());
        let mut after = Vec::new();
        let start = named(node)
            .into_iter()
            .find(|child| child.kind() == "heredoc_start");
        for child in named(node) {
            match child.kind() {
                "heredoc_start" | "heredoc_end" => {}
                "heredoc_body" => {
                    let raw =
                        start.is_some_and(|start| self.text(start).contains(['\'', '"', '\\']));
                    input = ShellInput::Text(match raw {
                        true => self.text(child).to_owned(),
                        false => self.document(child),
                    });
                }
                "file_redirect" => self.file_redirect(child),
                "herestring_redirect" | "file_descriptor" => {}
                // Arguments after the document's mark, or what the line goes on with.
                _ => after.push(child),
            }
        }
        let body = node
            .parent()
            .and_then(|parent| parent.child_by_field_name("body"));
        let body = body.map(last_of_list);
        let copied = body.is_some_and(|body| self.text(body).trim() == "cat");
        for child in after {
            self.apart(|walk| {
                walk.scope.input = match copied {
                    true => input.clone(),
                    false => ShellInput::Stream,
                };
                walk.visit(child);
            });
        }
        self.scope.input = input;
    }

    /// The text of a here-document whose expansions are carried out. One that is not known stays
    /// as it is written: a shell that executes the text does not know it either.
    fn document(&mut self, node: Node<'t>) -> String {
        let mut text = String::new();
        let mut at = node.start_byte();
        for child in named(node) {
            if child.kind() == "heredoc_content" {
                continue;
            }
            let between = self.source.get(at..child.start_byte()).unwrap_or_default();
            text.push_str(&super::word::document(between));
            match self.expand_quoted(child).as_slice() {
                [Word::Plain(value)] => text.push_str(value),
                _ => text.push_str(self.text(child)),
            }
            at = child.end_byte();
        }
        let rest = self.source.get(at..node.end_byte()).unwrap_or_default();
        text.push_str(&super::word::document(rest));
        text
    }

    /// Keeps what a command writes to a file, if all of it is known: a later command may execute
    /// the file.
    pub(crate) fn keep_written(&mut self, path: PathBuf, text: &str, add: bool) {
        let held: usize = self.scope.written.values().map(String::len).sum();
        let written = Rc::make_mut(&mut self.scope.written);
        if held + text.len() > MOST_WRITTEN {
            written.remove(&path);
            return;
        }
        match written.get_mut(&path).filter(|_| add) {
            Some(known) => known.push_str(text),
            None if add => {}
            None => drop(written.insert(path, text.to_owned())),
        }
    }

    /// What `cat`, `tee`, `echo` and `printf` write, where it is known.
    pub(super) fn note_output(&mut self, name: &str, arguments: &[Word]) {
        let known: Option<Vec<&str>> = arguments
            .iter()
            .map(|word| match word {
                Word::Plain(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let text = match (name, &self.scope.input, known.as_deref()) {
            ("cat", ShellInput::Text(text), Some([])) => Some(text.clone()),
            ("tee", ShellInput::Text(text), Some(_)) => Some(text.clone()),
            ("echo", _, Some(words)) => {
                let words: Vec<&str> = words
                    .iter()
                    .copied()
                    .filter(|w| *w != "-e" && *w != "-n")
                    .collect();
                Some(format!("{}\n", words.join(" ")))
            }
            ("printf", _, Some([text])) => Some(text.replace("\\n", "\n")),
            ("printf", _, Some(["%s" | "%s\\n", text])) => Some(format!("{text}\n")),
            _ => None,
        };
        self.piped = text.clone().filter(|_| self.scope.output.is_none());
        let mut files: Vec<(PathBuf, bool)> = self.scope.output.iter().cloned().collect();
        if name == "tee" {
            let add = arguments
                .iter()
                .any(|word| matches!(word.text(), Some("-a" | "--append")));
            let operands = arguments
                .iter()
                .filter(|word| !word.known().starts_with('-'));
            let cwd = self.scope.cwd.clone().unwrap_or_default();
            files = operands
                .filter_map(|word| Some((tidy(&cwd, word.text()?), add)))
                .collect();
        }
        for (path, add) in files {
            match &text {
                Some(text) => self.keep_written(path, text, add),
                None => drop(Rc::make_mut(&mut self.scope.written).remove(&path)),
            }
        }
    }

    pub(super) fn file_redirect(&mut self, node: Node<'t>) {
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
                        let text = self.file_of(&word);
                        self.scope.input = text.map_or(ShellInput::Stream, ShellInput::Text);
                        self.read(&word);
                    }
                    "<>" => {
                        self.read(&word);
                        self.write(&word);
                    }
                    _ => {
                        self.write(&word);
                        let stdout = node.child_by_field_name("descriptor").is_none();
                        let path = word.text().filter(|_| stdout && operator.starts_with('>'));
                        if let (Some(path), Some(cwd)) = (path, &self.scope.cwd) {
                            self.scope.output = Some((tidy(cwd, path), operator == ">>"));
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn is_redirect(node: Node<'_>) -> bool {
    matches!(
        node.kind(),
        "file_redirect" | "heredoc_redirect" | "herestring_redirect"
    )
}
