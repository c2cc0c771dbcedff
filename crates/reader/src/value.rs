//! The values that an expression can have, as far as the text tells.

use crate::ir::{Class, Function};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Values of one expression that are kept apart.
const MOST_CHOICES: usize = 24;

/// Longest text that is put together.
const LONGEST: usize = 64 * 1024;

/// Elements of a list that a program makes longer.
pub(crate) const MOST_ELEMENTS: usize = 1024;

/// Stands in a text for a part that is not known.
pub(crate) const HOLE: char = '\u{FFFC}';

/// A text, with [`HOLE`] for each part that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) text: String,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Unknown,
    /// None, null, or something that is not there.
    Nothing,
    Text(Piece),
    /// A path object: `/` joins, and its methods act on the file.
    Path(Piece),
    Choice(Vec<Value>),
    List(Rc<Vec<Value>>),
    Map(Rc<Vec<(String, Value)>>),
    /// Something of a library by its dotted name; with `()` at the end, what a call of it returned.
    Library(String),
    Function(Rc<Function>, Frame),
    Class(Rc<Class>, Frame),
    /// An object of a class of the program, with its attributes.
    Object(Rc<Class>, Frame, Frame),
    /// A method of an object.
    Method(Rc<Function>, Frame, Box<Value>),
    /// A module of the program.
    Module(Frame),
    /// A file that was opened, by its path.
    File(Piece),
}

/// Variables, and those around them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frame(Rc<RefCell<Variables>>);

#[derive(Debug, Default)]
struct Variables {
    held: HashMap<String, Value>,
    around: Option<Frame>,
}

impl Frame {
    pub(crate) fn inside(around: &Frame) -> Self {
        Frame(Rc::new(RefCell::new(Variables {
            held: HashMap::new(),
            around: Some(around.clone()),
        })))
    }

    /// What a name stands for here, or in what is around.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        let mut at = self.clone();
        // Functions inside functions are few.
        for _ in 0..32 {
            let next = {
                let variables = at.0.borrow();
                if let Some(value) = variables.held.get(name) {
                    return Some(value.clone());
                }
                variables.around.clone()
            };
            at = next?;
        }
        None
    }

    pub(crate) fn own(&self, name: &str) -> Option<Value> {
        self.0.borrow().held.get(name).cloned()
    }

    /// Sets a name; where that only may happen, it may also hold what it held.
    pub(crate) fn set(&self, name: &str, value: Value, maybe: bool) {
        let value = match self.own(name).filter(|_| maybe) {
            Some(held) => Value::choice(vec![held, value]),
            None => value,
        };
        self.0.borrow_mut().held.insert(name.to_owned(), value);
    }

    pub(crate) fn names(&self) -> Vec<(String, Value)> {
        let variables = self.0.borrow();
        let mut names: Vec<(String, Value)> = variables
            .held
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names
    }

    /// Forgets what it holds: functions that hold their own frame would never be freed.
    pub(crate) fn clear(&self) {
        let held = std::mem::take(&mut *self.0.borrow_mut());
        drop(held);
    }
}

impl Piece {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Piece { text: text.into() }
    }

    /// Something that is not known, after this.
    pub(crate) fn begins(text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.push(HOLE);
        Piece { text }
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.text.contains(HOLE)
    }

    /// The part that is known, from its beginning.
    pub(crate) fn known(&self) -> &str {
        self.text.split(HOLE).next().unwrap_or_default()
    }

    /// This, followed by another.
    pub(crate) fn then(&self, next: &Piece) -> Piece {
        if self.text.len() + next.text.len() > LONGEST {
            return Piece::begins(self.known());
        }
        let text = format!("{}{}", self.text, next.text);
        Piece {
            text: text.replace("\u{FFFC}\u{FFFC}", "\u{FFFC}"),
        }
    }

    /// A path below this one.
    pub(crate) fn below(&self, next: &Piece) -> Piece {
        if next.text.starts_with('/') {
            return next.clone();
        }
        if self.text.is_empty() || self.text == "." {
            return next.clone();
        }
        let slash = if self.text.ends_with('/') { "" } else { "/" };
        self.then(&Piece::new(slash)).then(next)
    }
}

impl Value {
    /// A list; one that is too long is not known.
    pub(crate) fn list(elements: Vec<Value>) -> Value {
        match elements.len() > MOST_ELEMENTS {
            true => Value::Unknown,
            false => Value::List(Rc::new(elements)),
        }
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Value::Text(Piece::new(text))
    }

    pub(crate) fn choice(values: Vec<Value>) -> Value {
        let mut kept: Vec<Value> = Vec::new();
        for value in values {
            let parts = match value {
                Value::Choice(parts) => parts,
                value => vec![value],
            };
            for part in parts {
                if matches!(part, Value::Nothing) {
                    continue;
                }
                if kept.len() < MOST_CHOICES && !kept.iter().any(|known| known.is_same(&part)) {
                    kept.push(part);
                }
            }
        }
        match kept.len() {
            1 => kept.remove(0),
            0 => Value::Nothing,
            _ => Value::Choice(kept),
        }
    }

    fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Unknown, Value::Unknown) => true,
            (Value::Text(a), Value::Text(b)) | (Value::Path(a), Value::Path(b)) => a == b,
            (Value::Library(a), Value::Library(b)) => a == b,
            (Value::File(a), Value::File(b)) => a == b,
            (Value::Function(a, _), Value::Function(b, _)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Each that it may be.
    pub(crate) fn each(&self) -> Vec<Value> {
        match self {
            Value::Choice(values) => values.clone(),
            value => vec![value.clone()],
        }
    }

    /// What it is as text; `None` if it is none.
    pub(crate) fn piece(&self) -> Option<&Piece> {
        match self {
            Value::Text(piece) | Value::Path(piece) => Some(piece),
            _ => None,
        }
    }

    /// The one text that it is, if all of it is known.
    pub(crate) fn known(&self) -> Option<&str> {
        self.piece()
            .filter(|piece| piece.is_whole())
            .map(|piece| piece.text.as_str())
    }

    /// Every text with every other.
    pub(crate) fn join(&self, next: &Value, how: fn(&Piece, &Piece) -> Piece) -> Value {
        let is_path = |value: &Value| matches!(value, Value::Path(_));
        let mut joined = Vec::new();
        for first in self.each() {
            for second in next.each() {
                let left = match &first {
                    Value::Text(piece) | Value::Path(piece) => piece.clone(),
                    _ => Piece::begins(""),
                };
                let right = match &second {
                    Value::Text(piece) | Value::Path(piece) => piece.clone(),
                    _ => Piece::begins(""),
                };
                let piece = how(&left, &right);
                joined.push(match is_path(&first) || is_path(&second) {
                    true => Value::Path(piece),
                    false => Value::Text(piece),
                });
                if joined.len() > MOST_CHOICES {
                    return Value::choice(joined);
                }
            }
        }
        Value::choice(joined)
    }
}
