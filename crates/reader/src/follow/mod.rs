//! Follows a program: what its texts, paths and commands are when it runs, as far as the text
//! tells. Every branch is taken; a loop is followed once, with all of its values.

mod arguments;
mod builtin;
mod call;
mod callbacks;
mod effect;
mod format;
mod objects;

pub(crate) use effect::UNKNOWN_VARIABLE;

use crate::calls::Known;
use crate::ir::{Class, Expr, Function, Statement};
use crate::language::Language;
use crate::value::{Frame, MOST_ELEMENTS, Piece, Value};
use arguments::Arguments;
use ironcage_intent::{Code, CodeNeeds, Unsure};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Statements and expressions that are followed, in one program with its modules.
const MOST_STEPS: u32 = 150_000;

/// How deep expressions and calls are followed, together.
const DEEPEST: u32 = 160;

/// How often one function is followed.
const MOST_CALLS: u32 = 24;

/// Modules of the workspace that are followed.
const MOST_MODULES: usize = 40;

/// Commands that are kept.
const MOST_COMMANDS: usize = 200;

/// A program that is being followed.
pub(crate) struct Program<'a> {
    pub(crate) code: &'a Code<'a>,
    pub(crate) known: &'a Known,
    pub(crate) language: Language,
    pub(crate) found: CodeNeeds,
    /// Where it works now; `None` once that is not known.
    pub(crate) cwd: Option<PathBuf>,
    /// The file whose text is followed.
    file: Option<PathBuf>,
    modules: HashMap<PathBuf, Frame>,
    frames: Vec<Frame>,
    called: HashMap<*const Function, u32>,
    returned: Vec<Value>,
    /// The last object of each class.
    objects: HashMap<*const Class, Value>,
    arguments: Arguments,
    steps: u32,
    depth: u32,
    /// Whether the program talks to a shell that it started.
    spawned_shell: bool,
    /// Whether a module is followed that another one imports.
    importing: bool,
    /// Whether what is followed may also not happen.
    maybe: bool,
}

/// Follows a program and what it defines. `body` is its text; `complete` says whether all of it
/// could be read.
pub(crate) fn follow(
    code: &Code<'_>,
    known: &Known,
    language: Language,
    (body, complete): (&[Statement], bool),
) -> CodeNeeds {
    let mut program = Program {
        code,
        known,
        language,
        found: CodeNeeds::default(),
        cwd: code.cwd.map(Path::to_owned),
        file: code.path.map(Path::to_owned),
        modules: HashMap::new(),
        frames: Vec::new(),
        called: HashMap::new(),
        returned: Vec::new(),
        objects: HashMap::new(),
        arguments: Arguments::default(),
        steps: 0,
        depth: 0,
        spawned_shell: false,
        importing: false,
        maybe: false,
    };
    if !complete {
        program.unsure(Unsure::Everything, "part of the code cannot be parsed");
    }
    let frame = Frame::default();
    program.frames.push(frame.clone());
    program.block(body, &frame);
    program.never_called(&frame);
    for frame in std::mem::take(&mut program.frames) {
        frame.clear();
    }
    program.found
}

fn is_module(expr: &Expr) -> bool {
    matches!(expr, Expr::Name(name) if name == "module")
}

/// `exports` and `module.exports`: what a module of JavaScript gives to others.
fn is_exports(expr: &Expr) -> bool {
    match expr {
        Expr::Name(name) => name == "exports",
        Expr::Attribute(object, name) => name == "exports" && is_module(object),
        _ => false,
    }
}

impl Program<'_> {
    pub(crate) fn unsure(&mut self, what: Unsure, why: impl Into<String>) {
        self.found.needs.unsure(what, why);
    }

    /// Counts a step. `false` when there were too many.
    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        if self.steps == MOST_STEPS {
            self.unsure(Unsure::Everything, "the code is too long to follow");
        }
        self.steps < MOST_STEPS
    }

    /// Functions that nothing here calls are called by something else: with what is not known.
    fn never_called(&mut self, frame: &Frame) {
        self.maybe = true;
        for (_, value) in frame.names() {
            match value {
                Value::Function(function, around) if !self.was_called(&function) => {
                    self.call_function(&function, &around, Vec::new(), &[]);
                }
                Value::Class(class, around) => {
                    // One that the program made has what its constructor set.
                    let made = self.objects.get(&Rc::as_ptr(&class)).cloned();
                    let object = match made {
                        Some(object) => object,
                        None => self.make_object(&class, &around, Vec::new(), &[], true),
                    };
                    self.call_methods(&object);
                }
                _ => {}
            }
        }
    }

    fn was_called(&self, function: &Rc<Function>) -> bool {
        self.called.contains_key(&Rc::as_ptr(function))
    }

    pub(crate) fn block(&mut self, body: &[Statement], frame: &Frame) {
        // A function can be called before it stands there.
        for statement in body {
            if let Statement::Define(function) = statement {
                let value = Value::Function(Rc::clone(function), frame.clone());
                frame.set(&function.name, value, false);
            }
        }
        for statement in body {
            if !self.step() {
                return;
            }
            self.statement(statement, frame);
        }
    }

    fn perhaps(&mut self, body: &[Statement], frame: &Frame) {
        let (before, cwd) = (self.maybe, self.cwd.clone());
        self.maybe = true;
        self.block(body, frame);
        self.maybe = before;
        if self.cwd != cwd {
            self.cwd = None;
        }
    }

    fn statement(&mut self, statement: &Statement, frame: &Frame) {
        match statement {
            Statement::Assign(targets, value) => {
                let value = self.eval(value, frame);
                for target in targets {
                    self.assign(target, &value, frame);
                }
            }
            Statement::Augment(target, value) => {
                let held = self.eval(target, frame);
                let added = self.eval(value, frame);
                let value = self.added(&held, &added);
                self.assign(target, &value, frame);
            }
            Statement::Evaluate(value) => drop(self.eval(value, frame)),
            Statement::Define(_) => {}
            Statement::Class(class) => {
                let value = Value::Class(Rc::clone(class), frame.clone());
                frame.set(&class.name, value, false);
            }
            Statement::Import(module, alias) => self.import(module, alias.as_deref(), frame),
            Statement::ImportFrom(module, names) => self.import_from(module, names, frame),
            Statement::Branch(blocks) => {
                for block in blocks {
                    self.perhaps(block, frame);
                }
            }
            // It runs there once, and whatever stands before it did.
            Statement::Main(body) if !self.importing => self.block(body, frame),
            Statement::Main(_) => {}
            Statement::Loop(each, body) => {
                if let Some((target, over)) = each {
                    let over = self.eval(over, frame);
                    let element = self.element(&over);
                    self.assign(target, &element, frame);
                }
                self.perhaps(body, frame);
            }
            Statement::With(items, body) => {
                for (value, target) in items {
                    let value = self.eval(value, frame);
                    if let Some(target) = target {
                        self.assign(target, &value, frame);
                    }
                }
                self.block(body, frame);
            }
            Statement::Return(value) => {
                let value = self.eval(value, frame);
                self.returned.push(value);
            }
        }
    }

    fn assign(&mut self, target: &Expr, value: &Value, frame: &Frame) {
        match target {
            Expr::Name(name) => frame.set(name, value.clone(), self.maybe),
            Expr::Attribute(object, name)
                if is_exports(object) || (name == "exports" && is_module(object)) =>
            {
                match value {
                    Value::Map(map) if name == "exports" => {
                        for (name, value) in map.iter() {
                            frame.set(name, value.clone(), self.maybe);
                        }
                    }
                    value => frame.set(name, value.clone(), self.maybe),
                }
            }
            Expr::Attribute(object, name) => {
                if let Value::Object(_, _, own) = self.eval(object, frame) {
                    own.set(name, value.clone(), self.maybe);
                }
            }
            // `b = "x"` in a pattern: what it gets where nothing is given.
            Expr::Assign(target, default) => {
                let value = match value {
                    Value::Nothing | Value::Unknown => self.eval(default, frame),
                    value => value.clone(),
                };
                self.assign(target, &value, frame);
            }
            Expr::List(targets) => {
                let script = !self.language.is_python();
                for (index, target) in targets.iter().enumerate() {
                    let parts = value.each().into_iter().map(|value| match &value {
                        Value::List(list) if script => {
                            list.get(index).cloned().unwrap_or(Value::Nothing)
                        }
                        Value::List(list) if list.len() == targets.len() => {
                            list.get(index).cloned().unwrap_or(Value::Unknown)
                        }
                        Value::List(list) => Value::choice(list.to_vec()),
                        _ => Value::Unknown,
                    });
                    let part = Value::choice(parts.collect());
                    self.assign(target, &part, frame);
                }
            }
            Expr::Map(pairs) => {
                for (key, target) in pairs {
                    if let Expr::Text(key) = key {
                        let part = self.attribute(value, key);
                        self.assign(target, &part, frame);
                    }
                }
            }
            Expr::Index(object, _) => {
                // A container that holds this as well.
                if let Expr::Name(name) = object.as_ref()
                    && let Some(Value::Map(held)) = frame.get(name)
                {
                    let mut held = held.to_vec();
                    held.push((String::new(), value.clone()));
                    let held = match held.len() > MOST_ELEMENTS {
                        true => Value::Unknown,
                        false => Value::Map(Rc::new(held)),
                    };
                    frame.set(name, held, false);
                }
            }
            _ => {}
        }
    }

    /// `+` of two values.
    fn added(&mut self, first: &Value, second: &Value) -> Value {
        let is_list = |value: &Value| {
            value
                .each()
                .iter()
                .any(|value| matches!(value, Value::List(_)))
        };
        match (first, second) {
            (Value::Choice(_), _) | (_, Value::Choice(_)) if is_list(first) || is_list(second) => {
                let mut sums = Vec::new();
                for first in first.each() {
                    for second in second.each() {
                        sums.push(self.added(&first, &second));
                    }
                }
                Value::choice(sums)
            }
            (Value::List(a), Value::List(b)) => {
                Value::list(a.iter().chain(b.iter()).cloned().collect())
            }
            (Value::List(a), Value::Unknown) => {
                let unknown = std::iter::once(Value::Unknown);
                Value::list(a.iter().cloned().chain(unknown).collect())
            }
            (Value::Unknown, Value::List(b)) => {
                let unknown = std::iter::once(Value::Unknown);
                Value::list(unknown.chain(b.iter().cloned()).collect())
            }
            _ => first.join(second, Piece::then),
        }
    }

    pub(crate) fn eval(&mut self, expr: &Expr, frame: &Frame) -> Value {
        if self.depth >= DEEPEST || !self.step() {
            if self.depth >= DEEPEST {
                self.unsure(Unsure::Everything, "the code is nested too deep to follow");
            }
            return Value::Unknown;
        }
        self.depth += 1;
        let value = self.evaluate(expr, frame);
        self.depth -= 1;
        value
    }

    fn evaluate(&mut self, expr: &Expr, frame: &Frame) -> Value {
        match expr {
            Expr::Text(text) => Value::text(text.clone()),
            Expr::Name(name) => match frame.get(name) {
                Some(value) => value,
                None => self.global(name),
            },
            Expr::Attribute(object, name) => {
                let object = self.eval(object, frame);
                self.attribute(&object, name)
            }
            Expr::Index(object, index) => {
                if let Some(value) = self.after_option(object, index, frame) {
                    return value;
                }
                let object = self.eval(object, frame);
                let index = self.eval(index, frame);
                self.index(&object, &index)
            }
            Expr::Slice(object, from, to) => {
                let object = self.eval(object, frame);
                slice(&object, *from, *to)
            }
            Expr::Spread(inner) => {
                let inner = self.eval(inner, frame);
                self.element(&inner)
            }
            Expr::Call(call) => self.call(call, frame),
            Expr::Join(parts) => {
                let mut parts = parts.iter();
                let Some(first) = parts.next() else {
                    return Value::text("");
                };
                let mut whole = self.eval(first, frame);
                for part in parts {
                    let part = self.eval(part, frame);
                    whole = self.added(&whole, &part);
                }
                whole
            }
            Expr::Slash(left, right) => {
                let left = self.eval(left, frame);
                let right = self.eval(right, frame);
                let paths = left
                    .each()
                    .iter()
                    .chain(&right.each())
                    .any(|value| matches!(value, Value::Path(_)));
                match paths {
                    true => left.join(&right, Piece::below),
                    false => Value::Unknown,
                }
            }
            Expr::Percent(left, right) => {
                let left = self.eval(left, frame);
                let right = self.eval(right, frame);
                let values = match &right {
                    Value::List(list) => list.to_vec(),
                    other => vec![other.clone()],
                };
                format::percent(&left, &values)
            }
            Expr::Choice(parts) => {
                let parts = parts.iter().map(|part| self.eval(part, frame)).collect();
                Value::choice(parts)
            }
            Expr::List(parts) => {
                let mut held = Vec::new();
                for part in parts {
                    match part {
                        Expr::Spread(inner) => match self.eval(inner, frame) {
                            Value::List(parts) => held.extend(parts.iter().cloned()),
                            _ => held.push(Value::Unknown),
                        },
                        part => held.push(self.eval(part, frame)),
                    }
                }
                Value::List(Rc::new(held))
            }
            Expr::Map(pairs) => {
                let mut held = Vec::new();
                for (key, value) in pairs {
                    let key = self.eval(key, frame).known().unwrap_or_default().to_owned();
                    let value = self.eval(value, frame);
                    held.push((key, value));
                }
                Value::Map(Rc::new(held))
            }
            Expr::Function(function) => Value::Function(Rc::clone(function), frame.clone()),
            Expr::Each {
                target,
                over,
                value,
            } => {
                let over = self.eval(over, frame);
                let inner = Frame::inside(frame);
                self.frames.push(inner.clone());
                let mut values = Vec::new();
                for element in self.elements(&over) {
                    self.assign(target, &element, &inner);
                    values.push(self.eval(value, &inner));
                }
                Value::List(Rc::new(values))
            }
            Expr::Assign(target, value) => {
                let value = self.eval(value, frame);
                self.assign(target, &value, frame);
                value
            }
            Expr::Other(parts) => {
                for part in parts {
                    self.eval(part, frame);
                }
                match parts.is_empty() {
                    true => Value::Nothing,
                    false => Value::Unknown,
                }
            }
        }
    }

    /// What is in a container, each for itself.
    fn elements(&mut self, value: &Value) -> Vec<Value> {
        match value {
            Value::List(list) => list.to_vec(),
            Value::Map(map) => map
                .iter()
                .map(|(key, _)| Value::text(key.clone()))
                .collect(),
            Value::Choice(values) => {
                let values = values.clone();
                values
                    .iter()
                    .flat_map(|value| self.elements(value))
                    .collect()
            }
            _ => vec![Value::Unknown],
        }
    }

    /// What is in a container, all at once.
    fn element(&mut self, value: &Value) -> Value {
        let elements = self.elements(value);
        // Tuples of a list stay tuples: each of their parts is one of several.
        let lists: Option<Vec<Rc<Vec<Value>>>> = elements
            .iter()
            .map(|element| match element {
                Value::List(list) => Some(Rc::clone(list)),
                _ => None,
            })
            .collect();
        if let Some(lists) = lists.filter(|lists| lists.len() > 1) {
            let width = lists.first().map_or(0, |list| list.len());
            if lists.iter().all(|list| list.len() == width) {
                let parts = (0..width).map(|at| {
                    let parts = lists.iter().filter_map(|list| list.get(at).cloned());
                    Value::choice(parts.collect())
                });
                return Value::List(Rc::new(parts.collect()));
            }
        }
        match Value::choice(elements) {
            Value::Nothing => Value::Unknown,
            value => value,
        }
    }
}

/// A part of a list.
fn slice(value: &Value, from: usize, to: Option<usize>) -> Value {
    let parts = value.each().into_iter().map(|value| match value {
        Value::List(list) => {
            let part = list
                .iter()
                .skip(from)
                .take(to.map_or(usize::MAX, |to| to.saturating_sub(from)));
            Value::List(Rc::new(part.cloned().collect()))
        }
        _ => Value::Unknown,
    });
    Value::choice(parts.collect())
}
