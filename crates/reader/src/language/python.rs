//! Python, from its tree to [`crate::ir`].

use crate::ir::{Call, Class, Expr, Function, Parameter, Statement};
use crate::parse::{Lowering, Walk, field, fields, named, parse, unescape};
use std::rc::Rc;
use tree_sitter::Node;

/// The statements of a program, and whether all of it could be read. `None` if it is too long.
pub(crate) fn lower(text: &str) -> Option<(Vec<Statement>, bool)> {
    let tree = parse(&tree_sitter_python::LANGUAGE.into(), text)?;
    let mut module = Module(Lowering::new(text));
    let body = module.block(tree.root_node());
    let complete = !module.0.incomplete && !tree.root_node().has_error();
    Some((body, complete))
}

struct Module<'t>(Lowering<'t>);

impl<'t> Walk<'t> for Module<'t> {
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
                    match child.kind() {
                        "assignment" => self.assignment(child, body),
                        "augmented_assignment" => {
                            let (left, right) = self.sides(child);
                            body.push(Statement::Augment(left, right));
                        }
                        _ => body.push(Statement::Evaluate(self.expr(child))),
                    }
                }
            }
            "function_definition" => body.push(Statement::Define(self.function(node))),
            "decorated_definition" => {
                for child in named(node) {
                    match child.kind() {
                        "decorator" => {
                            let called = named(child).into_iter().map(|part| self.expr(part));
                            let called = called.collect();
                            body.push(Statement::Evaluate(Expr::Other(called)));
                        }
                        _ => self.statement(child, body),
                    }
                }
            }
            "class_definition" => {
                let name = field(node, "name").map_or("", |name| self.source(name));
                let bases = field(node, "superclasses").map_or_else(Vec::new, |bases| {
                    named(bases)
                        .into_iter()
                        .map(|base| self.expr(base))
                        .collect()
                });
                let class = Class {
                    name: name.to_owned(),
                    bases,
                    body: self.block_of(node, "body"),
                };
                body.push(Statement::Class(Rc::new(class)));
            }
            "import_statement" => {
                for name in fields(node, "name") {
                    let (module, alias) = self.imported(name);
                    body.push(Statement::Import(module, alias));
                }
            }
            "import_from_statement" => {
                let module = field(node, "module_name").map_or("", |name| self.source(name));
                let names = fields(node, "name").into_iter().map(|name| {
                    let (name, alias) = self.imported(name);
                    let alias = alias.unwrap_or_else(|| name.clone());
                    (name, alias)
                });
                let mut names: Vec<_> = names.collect();
                if named(node)
                    .iter()
                    .any(|child| child.kind() == "wildcard_import")
                {
                    names.push(("*".to_owned(), "*".to_owned()));
                }
                body.push(Statement::ImportFrom(module.to_owned(), names));
            }
            "if_statement" => {
                if let Some(condition) = field(node, "condition") {
                    body.push(Statement::Evaluate(self.expr(condition)));
                }
                let condition = field(node, "condition").map_or("", |part| self.source(part));
                if condition.contains("__name__") && condition.contains("__main__") {
                    body.push(Statement::Main(self.block_of(node, "consequence")));
                    return;
                }
                let mut blocks = vec![self.block_of(node, "consequence")];
                for other in fields(node, "alternative") {
                    if let Some(condition) = field(other, "condition") {
                        body.push(Statement::Evaluate(self.expr(condition)));
                    }
                    let name = if other.kind() == "elif_clause" {
                        "consequence"
                    } else {
                        "body"
                    };
                    blocks.push(self.block_of(other, name));
                }
                body.push(Statement::Branch(blocks));
            }
            "for_statement" => {
                let (left, right) = self.sides(node);
                let block = self.block_of(node, "body");
                body.push(Statement::Loop(Some((left, right)), block));
            }
            "while_statement" => {
                if let Some(condition) = field(node, "condition") {
                    body.push(Statement::Evaluate(self.expr(condition)));
                }
                body.push(Statement::Loop(None, self.block_of(node, "body")));
            }
            "try_statement" => {
                body.extend(self.block_of(node, "body"));
                for child in named(node) {
                    if matches!(
                        child.kind(),
                        "except_clause" | "except_group_clause" | "else_clause" | "finally_clause"
                    ) {
                        let mut inner = Vec::new();
                        for block in named(child)
                            .into_iter()
                            .filter(|child| child.kind() == "block")
                        {
                            inner.extend(self.block(block));
                        }
                        body.push(Statement::Branch(vec![inner]));
                    }
                }
            }
            "with_statement" => {
                let mut items = Vec::new();
                let clauses = named(node)
                    .into_iter()
                    .filter(|child| child.kind() == "with_clause");
                for item in clauses.flat_map(named) {
                    let value = field(item, "value").unwrap_or(item);
                    match value.kind() {
                        "as_pattern" => {
                            let parts = named(value);
                            let target = parts.get(1).map(|part| {
                                let inner = named(*part).first().copied().unwrap_or(*part);
                                self.expr(inner)
                            });
                            if let Some(first) = parts.first() {
                                items.push((self.expr(*first), target));
                            }
                        }
                        _ => items.push((self.expr(value), None)),
                    }
                }
                let block = self.block_of(node, "body");
                body.push(Statement::With(items, block));
            }
            "return_statement" => {
                let mut values: Vec<Expr> = named(node)
                    .into_iter()
                    .map(|child| self.expr(child))
                    .collect();
                let value = match values.len() {
                    1 => values.remove(0),
                    _ => Expr::List(values),
                };
                body.push(Statement::Return(value));
            }
            "match_statement" => {
                for case in fields(node, "body").into_iter().flat_map(named) {
                    let block = self.block_of(case, "consequence");
                    body.push(Statement::Branch(vec![block]));
                }
            }
            "block" | "module" => body.extend(self.block(node)),
            "global_statement"
            | "nonlocal_statement"
            | "pass_statement"
            | "break_statement"
            | "continue_statement"
            | "type_alias_statement" => {}
            _ => {
                let values = named(node)
                    .into_iter()
                    .map(|child| self.expr(child))
                    .collect();
                body.push(Statement::Evaluate(Expr::Other(values)));
            }
        }
    }

    fn expression(&mut self, node: Node<'t>) -> Expr {
        match node.kind() {
            "identifier" => Expr::Name(self.source(node).to_owned()),
            "string" => self.string(node),
            "concatenated_string" => Expr::Join(self.all(node)),
            "integer" | "float" => Expr::Text(self.source(node).to_owned()),
            "attribute" => {
                let object = field(node, "object").map(|object| self.expr(object));
                let name = field(node, "attribute").map_or("", |name| self.source(name));
                match object {
                    Some(object) => Expr::Attribute(Box::new(object), name.to_owned()),
                    None => Expr::Other(Vec::new()),
                }
            }
            "subscript" if field(node, "subscript").is_some_and(|part| part.kind() == "slice") => {
                let value =
                    field(node, "value").map_or(Expr::Other(Vec::new()), |value| self.expr(value));
                let part = field(node, "subscript").map_or("", |part| self.source(part));
                let mut ends = part.split(':').map(|end| end.trim().parse::<usize>().ok());
                let from = ends.next().flatten().unwrap_or(0);
                Expr::Slice(Box::new(value), from, ends.next().flatten())
            }
            "list_splat" => {
                let inner = named(node).first().map(|inner| self.expr(*inner));
                Expr::Spread(Box::new(inner.unwrap_or(Expr::Other(Vec::new()))))
            }
            "subscript" => {
                let value = field(node, "value").map(|value| self.expr(value));
                let index = field(node, "subscript").map(|index| self.expr(index));
                match (value, index) {
                    (Some(value), Some(index)) => Expr::Index(Box::new(value), Box::new(index)),
                    _ => Expr::Other(Vec::new()),
                }
            }
            "call" => self.call(node),
            "binary_operator" => {
                let (left, right) = self.sides(node);
                let operator = field(node, "operator").map_or("", |operator| self.source(operator));
                match operator {
                    "+" => Expr::Join(vec![left, right]),
                    "/" => Expr::Slash(Box::new(left), Box::new(right)),
                    "%" => Expr::Percent(Box::new(left), Box::new(right)),
                    _ => Expr::Other(vec![left, right]),
                }
            }
            "boolean_operator" => {
                let (left, right) = self.sides(node);
                Expr::Choice(vec![left, right])
            }
            "conditional_expression" => {
                let mut parts = self.all(node);
                if parts.len() == 3 {
                    parts.remove(1);
                }
                Expr::Choice(parts)
            }
            "list" | "tuple" | "set" | "expression_list" | "pattern_list" | "tuple_pattern"
            | "list_pattern" => Expr::List(self.all(node)),
            "dictionary" => {
                let mut pairs = Vec::new();
                for pair in named(node) {
                    let key = field(pair, "key").map(|key| self.expr(key));
                    let value = field(pair, "value").map(|value| self.expr(value));
                    if let (Some(key), Some(value)) = (key, value) {
                        pairs.push((key, value));
                    }
                }
                Expr::Map(pairs)
            }
            "pair" => {
                let sides = ["key", "value"].map(|name| field(node, name));
                Expr::List(
                    sides
                        .into_iter()
                        .flatten()
                        .map(|part| self.expr(part))
                        .collect(),
                )
            }
            "list_comprehension"
            | "set_comprehension"
            | "generator_expression"
            | "dictionary_comprehension" => self.comprehension(node),
            "lambda" => Expr::Function(self.function(node)),
            "parenthesized_expression" | "await" | "type" => {
                let mut inner = self.all(node);
                match inner.len() {
                    1 => inner.remove(0),
                    _ => Expr::Other(inner),
                }
            }
            "named_expression" => {
                let name = field(node, "name").map(|name| self.expr(name));
                let value = field(node, "value").map(|value| self.expr(value));
                match (name, value) {
                    (Some(name), Some(value)) => Expr::Assign(Box::new(name), Box::new(value)),
                    _ => Expr::Other(Vec::new()),
                }
            }
            "none" | "true" | "false" | "ellipsis" => Expr::Other(Vec::new()),
            _ => Expr::Other(self.all(node)),
        }
    }
}

impl<'t> Module<'t> {
    fn block_of(&mut self, node: Node<'t>, name: &str) -> Vec<Statement> {
        field(node, name).map_or_else(Vec::new, |block| self.block(block))
    }

    /// `a = b = value`.
    fn assignment(&mut self, node: Node<'t>, body: &mut Vec<Statement>) {
        let mut targets = Vec::new();
        let mut at = node;
        loop {
            if let Some(left) = field(at, "left") {
                targets.push(self.expr(left));
            }
            match field(at, "right") {
                Some(right) if right.kind() == "assignment" => at = right,
                Some(right) => {
                    let value = self.expr(right);
                    body.push(Statement::Assign(targets, value));
                    return;
                }
                None => return,
            }
        }
    }

    fn imported(&self, node: Node<'t>) -> (String, Option<String>) {
        match node.kind() {
            "aliased_import" => {
                let text = |name| {
                    field(node, name)
                        .map_or("", |part| self.source(part))
                        .to_owned()
                };
                (text("name"), Some(text("alias")))
            }
            _ => (self.source(node).to_owned(), None),
        }
    }

    fn function(&mut self, node: Node<'t>) -> Rc<Function> {
        let name = field(node, "name")
            .map_or("", |name| self.source(name))
            .to_owned();
        let parameters = self.parameters(node);
        let body = match field(node, "body") {
            Some(body) if node.kind() == "lambda" => vec![Statement::Return(self.expr(body))],
            Some(body) => self.block(body),
            None => Vec::new(),
        };
        Rc::new(Function {
            name,
            parameters,
            body,
        })
    }

    fn parameters(&mut self, node: Node<'t>) -> Vec<Parameter> {
        let Some(list) = field(node, "parameters") else {
            return Vec::new();
        };
        let mut parameters = Vec::new();
        for child in named(list) {
            let name = match child.kind() {
                "identifier" => Some(child),
                "typed_parameter" => named(child).first().copied(),
                "default_parameter" | "typed_default_parameter" => field(child, "name"),
                _ => None,
            };
            let Some(name) = name.filter(|name| name.kind() == "identifier") else {
                continue;
            };
            parameters.push(Parameter {
                name: self.source(name).to_owned(),
                default: field(child, "value").map(|value| self.expr(value)),
            });
        }
        parameters
    }

    fn comprehension(&mut self, node: Node<'t>) -> Expr {
        let value = field(node, "body").map(|body| self.expr(body));
        let mut clauses = named(node)
            .into_iter()
            .filter(|child| child.kind() == "for_in_clause");
        match (value, clauses.next()) {
            (Some(value), Some(clause)) => {
                let (target, over) = self.sides(clause);
                Expr::Each {
                    target: Box::new(target),
                    over: Box::new(over),
                    value: Box::new(value),
                }
            }
            _ => Expr::Other(Vec::new()),
        }
    }

    fn call(&mut self, node: Node<'t>) -> Expr {
        let callee = field(node, "function").map(|callee| self.expr(callee));
        let mut arguments = Vec::new();
        let mut names = Vec::new();
        if let Some(list) = field(node, "arguments") {
            if list.kind() == "generator_expression" {
                arguments.push(self.comprehension(list));
            } else {
                for child in named(list) {
                    match child.kind() {
                        "keyword_argument" => {
                            let name = field(child, "name").map_or("", |name| self.source(name));
                            if let Some(value) = field(child, "value") {
                                let value = self.expr(value);
                                names.push((name.to_owned(), value));
                            }
                        }
                        "dictionary_splat" => {}
                        _ => {
                            let value = self.expr(child);
                            arguments.push(value);
                        }
                    }
                }
            }
        }
        Expr::Call(Box::new(Call {
            callee: callee.unwrap_or(Expr::Other(Vec::new())),
            arguments,
            named: names,
        }))
    }

    fn string(&mut self, node: Node<'t>) -> Expr {
        let mut parts = Vec::new();
        let mut raw = false;
        for child in named(node) {
            match child.kind() {
                "string_start" => {
                    let start = self.source(child).to_ascii_lowercase();
                    raw = start.trim_end_matches(['"', '\'']).contains('r');
                }
                "string_content" => {
                    let text = self.source(child);
                    let text = if raw { text.to_owned() } else { unescape(text) };
                    let text = text.replace("{{", "{").replace("}}", "}");
                    parts.push(Expr::Text(text));
                }
                "interpolation" => {
                    let value = field(child, "expression");
                    let value = value.map_or(Expr::Other(Vec::new()), |value| self.expr(value));
                    let format = field(child, "format_specifier").map(|part| self.source(part));
                    parts.push(match format.map(|text| text.trim_start_matches(':')) {
                        None | Some("") => value,
                        Some(format) if format.ends_with('d') => {
                            let format = Expr::Text(format!("%{format}"));
                            Expr::Percent(Box::new(format), Box::new(value))
                        }
                        Some(_) => Expr::Other(vec![value]),
                    });
                }
                _ => {}
            }
        }
        match parts.as_slice() {
            [] => Expr::Text(String::new()),
            [Expr::Text(text)] => Expr::Text(text.clone()),
            _ => Expr::Join(parts),
        }
    }
}
