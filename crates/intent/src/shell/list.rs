//! Lists of statements: `a && b || c`.

use super::walk::{Walk, named};
use tree_sitter::Node;

/// The last statement of `a && b`, or the statement itself.
pub(super) fn last_of_list(node: Node<'_>) -> Node<'_> {
    match node.kind() {
        "list" => named(node).pop().unwrap_or(node),
        _ => node,
    }
}

impl<'t> Walk<'_, 't> {
    pub(super) fn list(&mut self, node: Node<'t>) {
        let (last, otherwise) = self.list_but_last(node);
        match last {
            Some(last) if otherwise => self.perhaps(|walk| walk.visit(last)),
            Some(last) => self.visit(last),
            None => {}
        }
    }

    /// Visits a list but for its last statement. Returns that, and whether it may not run.
    pub(super) fn list_but_last(&mut self, node: Node<'t>) -> (Option<Node<'t>>, bool) {
        let mut otherwise = false;
        let mut cursor = node.walk();
        let children: Vec<_> = node.children(&mut cursor).collect();
        let last = children
            .iter()
            .rev()
            .find(|child| child.is_named())
            .copied();
        for child in children {
            match child.kind() {
                "||" => otherwise = true,
                "&&" => otherwise = false,
                _ if !child.is_named() || Some(child) == last => {}
                _ if otherwise => self.perhaps(|walk| walk.visit(child)),
                _ => self.visit(child),
            }
        }
        (last, otherwise)
    }
}
