//! Parsing within bounds.

use crate::ir::{Expr, Statement};
use std::ops::ControlFlow;
use tree_sitter::{Language, Node, ParseOptions, ParseState, Parser, Tree};

/// Longest text that is parsed, in bytes.
pub(crate) const LONGEST: usize = 512 * 1024;

/// How often the parser reports before it is stopped: it does so every hundred steps or so.
const MOST_REPORTS: u32 = 200_000;

/// How deep a tree is followed.
const DEEPEST: u32 = 90;

/// `None` if the text is too long, or takes too long.
pub(crate) fn parse(language: &Language, text: &str) -> Option<Tree> {
    if text.len() > LONGEST {
        return None;
    }
    let mut parser = Parser::new();
    parser.set_language(language).ok()?;
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
    parser.parse_with_options(&mut chunk, None, Some(options))
}

/// A text and what was parsed of it, on the way to [`crate::ir`].
pub(crate) struct Lowering<'t> {
    pub(crate) text: &'t str,
    pub(crate) depth: u32,
    /// Part of the text was too deep, or could not be parsed.
    pub(crate) incomplete: bool,
}

impl<'t> Lowering<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Lowering {
            text,
            depth: 0,
            incomplete: false,
        }
    }
}

/// The walk over the tree of a language: what all languages do in the same way.
pub(crate) trait Walk<'t>: Sized {
    fn lowering(&self) -> &Lowering<'t>;

    fn lowering_mut(&mut self) -> &mut Lowering<'t>;

    /// Adds what a node means to the statements before it.
    fn statement(&mut self, node: Node<'t>, body: &mut Vec<Statement>);

    /// What a node means, where it is not too deep.
    fn expression(&mut self, node: Node<'t>) -> Expr;

    fn source(&self, node: Node<'_>) -> &'t str {
        let text = self.lowering().text;
        text.get(node.byte_range()).unwrap_or_default()
    }

    /// Goes one node deeper; `None` where that is too deep.
    fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.lowering().depth >= DEEPEST {
            self.lowering_mut().incomplete = true;
            return None;
        }
        self.lowering_mut().depth += 1;
        let found = inside(self);
        self.lowering_mut().depth -= 1;
        Some(found)
    }

    fn block(&mut self, node: Node<'t>) -> Vec<Statement> {
        let mut body = Vec::new();
        for child in named(node) {
            self.deeper(|this| this.statement(child, &mut body));
        }
        body
    }

    fn expr(&mut self, node: Node<'t>) -> Expr {
        self.deeper(|this| this.expression(node))
            .unwrap_or(Expr::Other(Vec::new()))
    }

    fn all(&mut self, node: Node<'t>) -> Vec<Expr> {
        named(node)
            .into_iter()
            .map(|child| self.expr(child))
            .collect()
    }

    /// The sides of an assignment.
    fn sides(&mut self, node: Node<'t>) -> (Expr, Expr) {
        let mut side =
            |name| field(node, name).map_or(Expr::Other(Vec::new()), |side| self.expr(side));
        (side("left"), side("right"))
    }
}

pub(crate) fn named(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    let children = node.named_children(&mut cursor);
    children.filter(|child| child.kind() != "comment").collect()
}

pub(crate) fn field<'t>(node: Node<'t>, name: &str) -> Option<Node<'t>> {
    node.child_by_field_name(name)
}

pub(crate) fn fields<'t>(node: Node<'t>, name: &str) -> Vec<Node<'t>> {
    let mut cursor = node.walk();
    node.children_by_field_name(name, &mut cursor).collect()
}

/// Escapes that Python and JavaScript share.
pub(crate) fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            plain.push(char);
            continue;
        }
        match chars.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('r') => plain.push('\r'),
            Some('0') => plain.push('\0'),
            Some('\n') | None => {}
            Some(digits @ ('x' | 'u')) => {
                let count = if digits == 'x' { 2 } else { 4 };
                let code: String = chars.by_ref().take(count).collect();
                let code = u32::from_str_radix(&code, 16).ok();
                plain.extend(code.and_then(char::from_u32));
            }
            Some(other @ ('\\' | '\'' | '"' | '`' | '/' | '$')) => plain.push(other),
            Some(other) => {
                plain.push('\\');
                plain.push(other);
            }
        }
    }
    plain
}
