//! The arguments of the program itself: `sys.argv`, `process.argv`, and what argparse makes of
//! them.

use super::Program;
use crate::ir::Expr;
use crate::value::{Frame, Piece, Value};
use ironcage_intent::Argument;
use std::rc::Rc;

/// An argument that the program declares.
#[derive(Debug, Clone)]
struct Declared {
    name: String,
    flags: Vec<String>,
    default: Value,
    /// An option without a value.
    switch: bool,
    /// It takes several values.
    several: bool,
    /// Its values are objects of paths.
    path: bool,
}

/// What the program declares.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    declared: Vec<Declared>,
    /// What `set_defaults` gives, also functions of sub-commands.
    defaults: Vec<(String, Value)>,
}

fn value_of(argument: &Argument) -> Value {
    Value::Text(match argument.whole {
        true => Piece::new(argument.text.clone()),
        false => Piece::begins(argument.text.clone()),
    })
}

impl Program<'_> {
    /// The arguments as a list, with `before` in front of them.
    pub(super) fn argument_list(&self, before: Vec<Value>) -> Value {
        let given = self.code.arguments.iter().map(value_of);
        Value::List(Rc::new(before.into_iter().chain(given).collect()))
    }

    /// `argv[argv.indexOf("--out") + 1]`: the value of an option. `None` for anything else.
    pub(super) fn after_option(
        &mut self,
        object: &Expr,
        index: &Expr,
        frame: &Frame,
    ) -> Option<Value> {
        let Expr::Join(parts) = index else {
            return None;
        };
        let [Expr::Call(call), Expr::Text(one)] = parts.as_slice() else {
            return None;
        };
        let Expr::Attribute(_, name) = &call.callee else {
            return None;
        };
        if one != "1" || !matches!(name.as_str(), "index" | "indexOf") {
            return None;
        }
        // Only a literal: what is evaluated here is evaluated again if this is something else.
        let Expr::Text(option) = call.arguments.first()? else {
            return None;
        };
        let Value::List(list) = self.eval(object, frame) else {
            return None;
        };
        let at = list.iter().position(|value| value.known() == Some(option));
        Some(match at {
            Some(at) => list.get(at + 1).cloned().unwrap_or(Value::Nothing),
            // It is not given.
            None => Value::Nothing,
        })
    }

    /// The script's own name.
    pub(super) fn own_path(&self) -> Value {
        match &self.file {
            Some(path) => Value::text(path.to_string_lossy().into_owned()),
            None => Value::text("-c"),
        }
    }

    /// `parser.add_argument("--out", default="x")`.
    pub(super) fn declare(&mut self, arguments: &[Value], named: &[(String, Value)]) {
        let flags: Vec<String> = arguments
            .iter()
            .filter_map(|value| value.known().map(str::to_owned))
            .collect();
        let named = |wanted: &str| {
            named
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.clone())
        };
        let action = named("action").and_then(|value| value.known().map(str::to_owned));
        let long = flags
            .iter()
            .find(|flag| flag.starts_with("--"))
            .or(flags.first());
        let own = named("dest").and_then(|value| value.known().map(str::to_owned));
        let Some(name) = own.or(long.map(|flag| flag.trim_start_matches('-').replace('-', "_")))
        else {
            return;
        };
        let several = named("nargs").is_some_and(|value| !matches!(value.known(), Some("?")));
        self.arguments.declared.push(Declared {
            name,
            flags: flags
                .into_iter()
                .filter(|flag| flag.starts_with('-'))
                .collect(),
            default: named("default").unwrap_or(Value::Nothing),
            switch: action.is_some_and(|action| action.starts_with("store_") || action == "count"),
            several,
            path: named("type").is_some_and(
                |value| matches!(value, Value::Library(name) if name.ends_with("Path")),
            ),
        });
    }

    /// `parser.set_defaults(func=run)`: of several sub-commands, any may be given.
    pub(super) fn set_defaults(&mut self, named: &[(String, Value)]) {
        let defaults = &mut self.arguments.defaults;
        for (name, value) in named {
            let room = defaults.len() < 64;
            match defaults.iter_mut().find(|(known, _)| known == name) {
                Some((_, held)) => *held = Value::choice(vec![held.clone(), value.clone()]),
                None if room => defaults.push((name.clone(), value.clone())),
                None => {}
            }
        }
    }

    /// `parser.parse_args()`.
    pub(super) fn parsed_arguments(&self) -> Value {
        let declared = &self.arguments.declared;
        let mut found: Vec<Vec<Value>> = vec![Vec::new(); declared.len()];
        let mut operands = Vec::new();
        let mut given = self.code.arguments.iter().peekable();
        while let Some(argument) = given.next() {
            let text = argument.text.as_str();
            let (flag, joined) = match text.split_once('=') {
                Some((flag, value)) if text.starts_with("--") => (flag, Some(value)),
                _ => (text, None),
            };
            let at = declared
                .iter()
                .position(|declared| declared.flags.iter().any(|known| known == flag));
            let Some((at, slot)) = at.and_then(|at| Some((at, found.get_mut(at)?))) else {
                operands.push(value_of(argument));
                continue;
            };
            let Some(declared) = declared.get(at) else {
                continue;
            };
            match joined {
                Some(value) => slot.push(Value::text(value)),
                None if declared.switch => {}
                None => {
                    slot.extend(given.next().map(value_of));
                    while declared.several
                        && given.peek().is_some_and(|next| !next.text.starts_with('-'))
                    {
                        slot.extend(given.next().map(value_of));
                    }
                }
            }
        }
        let mut operands = operands.into_iter();
        let pairs = declared.iter().zip(found).map(|(declared, mut found)| {
            if declared.flags.is_empty() {
                match declared.several {
                    true => found.extend(operands.by_ref()),
                    false => found.extend(operands.next()),
                }
            }
            let value = match (found.is_empty(), declared.several) {
                (true, _) => declared.default.clone(),
                (false, true) => Value::List(Rc::new(found)),
                (false, false) => found.pop().unwrap_or(Value::Unknown),
            };
            let value = match (declared.path, value) {
                (true, Value::Text(piece)) => Value::Path(piece),
                (_, value) => value,
            };
            (declared.name.clone(), value)
        });
        let defaults = self.arguments.defaults.iter().cloned();
        Value::Map(Rc::new(pairs.chain(defaults).collect()))
    }
}
