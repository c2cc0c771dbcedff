//! JavaScript and TypeScript, from their tree to [`crate::ir`].

use crate::ir::{Call, Class, Expr, Function, Parameter, Statement};
use crate::parse::{Lowering, Walk, field, fields, named, parse, unescape};
use std::rc::Rc;
use tree_sitter::Node;

/// The statements of a program, and whether all of it could be read. `None` if it is too long.
/// What is not JavaScript is tried as TypeScript.
pub(crate) fn lower(text: &str) -> Option<(Vec<Statement>, bool)> {
    let plain = read(&tree_sitter_javascript::LANGUAGE.into(), text)?;
    if plain.1 {
        return Some(plain);
    }
    let typed = read(&tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(), text)?;
    Some(if typed.1 { typed } else { plain })
}

fn read(language: &tree_sitter::Language, text: &str) -> Option<(Vec<Statement>, bool)> {
    let tree = parse(language, text)?;
    let mut script = Script(Lowering::new(text));
    let body = script.block(tree.root_node());
    let complete = !script.0.incomplete && !tree.root_node().has_error();
    Some((body, complete))
}

struct Script<'t>(Lowering<'t>);

impl<'t> Walk<'t> for Script<'t> {
    fn lowering(&self) -> &Lowering<'t> {
        &self.0
    }

    fn lowering_mut(&mut self) -> &mut Lowering<'t> {
        &mut self.0
    }

    fn statement(&mut self, node: Node<'t>, body: &mut Vec<Statement>) {
        match node.kind() {
            "expression_statement" => {
                for child in named(node) {
                    let value = self.expr(child);
                    body.push(match value {
                        Expr::Assign(target, value) => Statement::Assign(vec![*target], *value),
                        value => Statement::Evaluate(value),
                    });
                }
            }
            "lexical_declaration" | "variable_declaration" => {
                for declared in named(node) {
                    let name = field(declared, "name").map(|name| self.expr(name));
                    let value = field(declared, "value").map(|value| self.expr(value));
                    if let (Some(name), Some(value)) = (name, value) {
                        body.push(Statement::Assign(vec![name], value));
                    }
                }
            }
            "function_declaration" | "generator_function_declaration" => {
                body.push(Statement::Define(self.function(node)));
            }
            "class_declaration" | "abstract_class_declaration" => {
                let name = field(node, "name")
                    .map_or("", |name| self.source(name))
                    .to_owned();
                let inner = field(node, "body").map_or_else(Vec::new, |inner| self.members(inner));
                let class = Class {
                    name,
                    bases: Vec::new(),
                    body: inner,
                };
                body.push(Statement::Class(Rc::new(class)));
            }
            "import_statement" => self.import(node, body),
            "export_statement" => {
                for child in named(node) {
                    match child.kind() {
                        "string" | "export_clause" | "decorator" => {}
                        kind if kind.ends_with("declaration") => self.statement(child, body),
                        _ => body.push(Statement::Evaluate(self.expr(child))),
                    }
                }
            }
            "if_statement" => {
                if let Some(condition) = field(node, "condition") {
                    body.push(Statement::Evaluate(self.expr(condition)));
                }
                let condition = field(node, "condition").map_or("", |part| self.source(part));
                if condition.contains("require.main") && condition.contains("module") {
                    body.push(Statement::Main(self.body_of(node, "consequence")));
                    return;
                }
                let blocks = vec![
                    self.body_of(node, "consequence"),
                    self.body_of(node, "alternative"),
                ];
                body.push(Statement::Branch(blocks));
            }
            "for_in_statement" => {
                let (left, right) = self.sides(node);
                let inner = self.body_of(node, "body");
                body.push(Statement::Loop(Some((left, right)), inner));
            }
            "for_statement" | "while_statement" | "do_statement" => {
                if let Some(first) = field(node, "initializer") {
                    self.deeper(|this| this.statement(first, body));
                }
                if let Some(condition) = field(node, "condition") {
                    body.push(Statement::Evaluate(self.expr(condition)));
                }
                let inner = self.body_of(node, "body");
                body.push(Statement::Loop(None, inner));
            }
            "try_statement" => {
                body.extend(self.body_of(node, "body"));
                if let Some(handler) = field(node, "handler") {
                    let inner = self.body_of(handler, "body");
                    body.push(Statement::Branch(vec![inner]));
                }
                if let Some(last) = field(node, "finalizer") {
                    body.extend(self.body_of(last, "body"));
                }
            }
            "switch_statement" => {
                if let Some(value) = field(node, "value") {
                    body.push(Statement::Evaluate(self.expr(value)));
                }
                for case in field(node, "body").into_iter().flat_map(named) {
                    let mut inner = Vec::new();
                    for part in fields(case, "body") {
                        self.deeper(|this| this.statement(part, &mut inner));
                    }
                    body.push(Statement::Branch(vec![inner]));
                }
            }
            "return_statement" => {
                let mut values = self.all(node);
                let value = match values.len() {
                    1 => values.remove(0),
                    _ => Expr::Other(values),
                };
                body.push(Statement::Return(value));
            }
            "statement_block" | "program" => body.extend(self.block(node)),
            "labeled_statement" => body.extend(self.body_of(node, "body")),
            "break_statement"
            | "continue_statement"
            | "empty_statement"
            | "hash_bang_line"
            | "interface_declaration"
            | "type_alias_declaration"
            | "debugger_statement" => {}
            _ => {
                let values = self.all(node);
                body.push(Statement::Evaluate(Expr::Other(values)));
            }
        }
    }

    fn expression(&mut self, node: Node<'t>) -> Expr {
        match node.kind() {
            "identifier"
            | "property_identifier"
            | "shorthand_property_identifier"
            | "shorthand_property_identifier_pattern"
            | "this" => Expr::Name(self.source(node).to_owned()),
            "string" => {
                let mut text = String::new();
                for part in named(node) {
                    text.push_str(&unescape(self.source(part)));
                }
                Expr::Text(text)
            }
            "number" => Expr::Text(self.source(node).to_owned()),
            "template_string" => self.template(node),
            "member_expression" => {
                let object = field(node, "object").map(|object| self.expr(object));
                let name = field(node, "property").map_or("", |name| self.source(name));
                match object {
                    Some(object) => Expr::Attribute(Box::new(object), name.to_owned()),
                    None => Expr::Other(Vec::new()),
                }
            }
            "subscript_expression" => {
                let object = field(node, "object").map(|object| self.expr(object));
                let index = field(node, "index").map(|index| self.expr(index));
                match (object, index) {
                    (Some(object), Some(index)) => Expr::Index(Box::new(object), Box::new(index)),
                    _ => Expr::Other(Vec::new()),
                }
            }
            "call_expression" | "new_expression" => {
                let callee = field(node, "function").or(field(node, "constructor"));
                let callee = callee.map_or(Expr::Other(Vec::new()), |callee| match callee.kind() {
                    "import" => Expr::Name("require".to_owned()),
                    _ => self.expr(callee),
                });
                let arguments =
                    field(node, "arguments").map_or_else(Vec::new, |list| match list.kind() {
                        "template_string" => vec![self.expr(list)],
                        _ => self.all(list),
                    });
                Expr::Call(Box::new(Call {
                    callee,
                    arguments,
                    named: Vec::new(),
                }))
            }
            "binary_expression" => {
                let (left, right) = self.sides(node);
                let operator = field(node, "operator").map_or("", |operator| self.source(operator));
                match operator {
                    "+" => Expr::Join(vec![left, right]),
                    "||" | "??" | "&&" => Expr::Choice(vec![left, right]),
                    _ => Expr::Other(vec![left, right]),
                }
            }
            "ternary_expression" => {
                let parts = ["consequence", "alternative"]
                    .into_iter()
                    .filter_map(|name| field(node, name));
                let parts: Vec<_> = parts.collect();
                Expr::Choice(parts.into_iter().map(|part| self.expr(part)).collect())
            }
            "assignment_expression" => {
                let (left, right) = self.sides(node);
                Expr::Assign(Box::new(left), Box::new(right))
            }
            "array" => Expr::List(self.all(node)),
            "array_pattern" => Expr::List(self.places(node)),
            "assignment_pattern" => {
                let (left, right) = self.sides(node);
                // What it gets where nothing is given.
                Expr::Assign(Box::new(left), Box::new(right))
            }
            "object" | "object_pattern" => {
                let mut pairs = Vec::new();
                for pair in named(node) {
                    match pair.kind() {
                        "pair" | "pair_pattern" => {
                            let key = field(pair, "key").map(|key| match key.kind() {
                                "property_identifier" => Expr::Text(self.source(key).to_owned()),
                                _ => self.expr(key),
                            });
                            let value = field(pair, "value").map(|value| self.expr(value));
                            if let (Some(key), Some(value)) = (key, value) {
                                pairs.push((key, value));
                            }
                        }
                        "shorthand_property_identifier"
                        | "shorthand_property_identifier_pattern" => {
                            let name = self.source(pair).to_owned();
                            pairs.push((Expr::Text(name.clone()), Expr::Name(name)));
                        }
                        "method_definition" => {
                            let function = self.function(pair);
                            pairs.push((
                                Expr::Text(function.name.clone()),
                                Expr::Function(function),
                            ));
                        }
                        _ => {
                            let spread = self.expr(pair);
                            pairs.push((Expr::Text("...".to_owned()), spread));
                        }
                    }
                }
                Expr::Map(pairs)
            }
            "arrow_function" | "function_expression" | "generator_function" => {
                Expr::Function(self.function(node))
            }
            "parenthesized_expression"
            | "await_expression"
            | "as_expression"
            | "non_null_expression"
            | "satisfies_expression"
            | "optional_chain" => {
                let inner = named(node).first().map(|inner| self.expr(*inner));
                inner.unwrap_or(Expr::Other(Vec::new()))
            }
            "spread_element" => {
                let inner = named(node).first().map(|inner| self.expr(*inner));
                Expr::Spread(Box::new(inner.unwrap_or(Expr::Other(Vec::new()))))
            }
            _ => Expr::Other(self.all(node)),
        }
    }
}

impl<'t> Script<'t> {
    /// A block, or one statement in its place.
    fn body_of(&mut self, node: Node<'t>, name: &str) -> Vec<Statement> {
        let Some(inner) = field(node, name) else {
            return Vec::new();
        };
        match inner.kind() {
            "statement_block" | "program" => self.block(inner),
            "else_clause" => {
                let mut body = Vec::new();
                for child in named(inner) {
                    self.deeper(|this| this.statement(child, &mut body));
                }
                body
            }
            _ => {
                let mut body = Vec::new();
                self.deeper(|this| this.statement(inner, &mut body));
                body
            }
        }
    }

    fn members(&mut self, node: Node<'t>) -> Vec<Statement> {
        let mut body = Vec::new();
        for member in named(node) {
            match member.kind() {
                "method_definition" => body.push(Statement::Define(self.function(member))),
                "field_definition" | "public_field_definition" => {
                    let name = field(member, "property").or(field(member, "name"));
                    let name = name.map_or("", |name| self.source(name)).to_owned();
                    if let Some(value) = field(member, "value") {
                        let value = self.expr(value);
                        body.push(Statement::Assign(vec![Expr::Name(name)], value));
                    }
                }
                _ => {}
            }
        }
        body
    }

    fn import(&mut self, node: Node<'t>, body: &mut Vec<Statement>) {
        let module = field(node, "source").map(|source| self.expr(source));
        let Some(Expr::Text(module)) = module else {
            return;
        };
        let mut names = Vec::new();
        let mut whole = None;
        for part in named(node)
            .into_iter()
            .filter(|child| child.kind() == "import_clause")
            .flat_map(named)
        {
            match part.kind() {
                "identifier" => whole = Some(self.source(part).to_owned()),
                "namespace_import" => {
                    whole = named(part)
                        .first()
                        .map(|name| self.source(*name).to_owned());
                }
                "named_imports" => {
                    for name in named(part) {
                        let text = |key| field(name, key).map(|name| self.source(name).to_owned());
                        if let Some(own) = text("name") {
                            let alias = text("alias").unwrap_or_else(|| own.clone());
                            names.push((own, alias));
                        }
                    }
                }
                _ => {}
            }
        }
        if whole.is_some() || names.is_empty() {
            body.push(Statement::Import(
                module.clone(),
                whole.or(Some(String::new())),
            ));
        }
        if !names.is_empty() {
            body.push(Statement::ImportFrom(module, names));
        }
    }

    fn function(&mut self, node: Node<'t>) -> Rc<Function> {
        let name = field(node, "name")
            .map_or("", |name| self.source(name))
            .to_owned();
        let mut parameters = Vec::new();
        if let Some(only) = field(node, "parameter") {
            parameters.push(self.parameter(only));
        }
        for child in field(node, "parameters").into_iter().flat_map(named) {
            parameters.push(self.parameter(child));
        }
        let body = match field(node, "body") {
            Some(body) if body.kind() == "statement_block" => self.block(body),
            Some(body) => vec![Statement::Return(self.expr(body))],
            None => Vec::new(),
        };
        Rc::new(Function {
            name,
            parameters,
            body,
        })
    }

    fn parameter(&mut self, node: Node<'t>) -> Parameter {
        let name = field(node, "pattern")
            .or(field(node, "left"))
            .unwrap_or(node);
        let default = field(node, "value").or(field(node, "right"));
        Parameter {
            name: self.source(name).to_owned(),
            default: default.map(|value| self.expr(value)),
        }
    }

    /// The targets of `[, , a, b = "x"]`, with those that are left out.
    fn places(&mut self, node: Node<'t>) -> Vec<Expr> {
        let mut cursor = node.walk();
        let children: Vec<_> = node.children(&mut cursor).collect();
        let mut places = Vec::new();
        let mut filled = false;
        for child in children {
            match child.kind() {
                "," if std::mem::take(&mut filled) => {}
                "," => places.push(Expr::Other(Vec::new())),
                _ if child.is_named() => {
                    places.push(self.expr(child));
                    filled = true;
                }
                _ => {}
            }
        }
        places
    }

    fn template(&mut self, node: Node<'t>) -> Expr {
        let mut parts = Vec::new();
        for part in named(node) {
            match part.kind() {
                "template_substitution" => {
                    let inner = named(part).first().map(|inner| self.expr(*inner));
                    parts.push(inner.unwrap_or(Expr::Other(Vec::new())));
                }
                _ => parts.push(Expr::Text(unescape(self.source(part)))),
            }
        }
        match parts.as_slice() {
            [] => Expr::Text(String::new()),
            [Expr::Text(text)] => Expr::Text(text.clone()),
            _ => Expr::Join(parts),
        }
    }
}
