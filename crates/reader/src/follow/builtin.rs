//! Built-in operations on texts and paths: methods of strings, `os.path`, `pathlib`, `path` of
//! Node.

use super::Program;
use super::format::{format, range};
use crate::value::{HOLE, Piece, Value};
use std::rc::Rc;

/// The last part of a path.
fn name_of(piece: &Piece) -> Piece {
    let text = piece.text.trim_end_matches('/');
    match text.rfind('/') {
        Some(at) => Piece::new(text.get(at + 1..).unwrap_or_default()),
        None => Piece::new(text),
    }
}

/// The path without its last part.
fn parent_of(piece: &Piece) -> Piece {
    let text = piece.text.trim_end_matches('/');
    match text.rfind('/') {
        Some(0) => Piece::new("/"),
        Some(at) => Piece::new(text.get(..at).unwrap_or_default()),
        None if text.contains(HOLE) => Piece::begins(""),
        None => Piece::new(""),
    }
}

/// The last part of a path, without its ending, and its ending.
fn split_ending(text: &str) -> (&str, &str) {
    let from = text.rfind('/').map_or(0, |at| at + 1);
    match text
        .get(from..)
        .and_then(|name| name.rfind('.'))
        .filter(|at| *at > 0)
    {
        Some(at) => text.split_at(from + at),
        None => (text, ""),
    }
}

/// Changes each text of a value.
fn each(value: &Value, change: impl Fn(&Piece) -> Piece) -> Value {
    let values = value.each().into_iter().map(|value| match value {
        Value::Text(piece) => Value::Text(change(&piece)),
        Value::Path(piece) => Value::Path(change(&piece)),
        _ => Value::Unknown,
    });
    Value::choice(values.collect())
}

fn paths(value: &Value) -> Value {
    let values = value.each().into_iter().map(|value| match value {
        Value::Text(piece) | Value::Path(piece) => Value::Path(piece),
        _ => Value::Path(Piece::begins("")),
    });
    Value::choice(values.collect())
}

fn texts(value: &Value) -> Value {
    let values = value.each().into_iter().map(|value| match value {
        Value::Text(piece) | Value::Path(piece) => Value::Text(piece),
        other => other,
    });
    Value::choice(values.collect())
}

fn joined(parts: &[Value]) -> Value {
    let mut parts = parts.iter();
    let first = parts.next().cloned().unwrap_or(Value::text(""));
    parts.fold(first, |whole, part| whole.join(part, Piece::below))
}

impl Program<'_> {
    fn here(&self) -> Value {
        match &self.cwd {
            Some(cwd) => Value::text(cwd.to_string_lossy().into_owned()),
            None => Value::Unknown,
        }
    }

    fn home(&self) -> Value {
        match self.code.home {
            Some(home) => Value::text(home.to_string_lossy().into_owned()),
            None => Value::Unknown,
        }
    }

    fn expand_user(&self, value: &Value) -> Value {
        let home = self
            .code
            .home
            .map(|home| home.to_string_lossy().into_owned());
        each(value, |piece| match (piece.text.strip_prefix('~'), &home) {
            (Some(rest), Some(home)) => Piece::new(format!("{home}{rest}")),
            _ => piece.clone(),
        })
    }

    /// A name that the program does not define.
    pub(super) fn global(&mut self, name: &str) -> Value {
        match name {
            "__file__" | "__filename" => self.own_path(),
            "__dirname" => each(&self.own_path(), parent_of),
            "None" | "null" | "undefined" => Value::Nothing,
            "this" | "self" => Value::Unknown,
            _ => Value::Library(name.to_owned()),
        }
    }

    /// A value of a library that is known without a call.
    fn library_value(&mut self, name: &str) -> Option<Value> {
        Some(match name {
            "sys.argv" => self.argument_list(vec![self.own_path()]),
            "process.argv" => {
                let own = self.own_path();
                self.argument_list(vec![Value::text("node"), own])
            }
            "sys.executable" => Value::text("python3"),
            "process.execPath" => Value::text("node"),
            "os.sep" | "path.sep" => Value::text("/"),
            "os.devnull" => Value::text("/dev/null"),
            "os.curdir" => Value::text("."),
            "os.linesep" | "os.EOL" => Value::text("\n"),
            "process.env.HOME" => self.home(),
            "process.env.PWD" => self.here(),
            "import.meta.dirname" => each(&self.own_path(), parent_of),
            "import.meta.url" | "import.meta.filename" => self.own_path(),
            name if name.starts_with("process.env.") => Value::Unknown,
            _ => return None,
        })
    }

    pub(super) fn attribute(&mut self, object: &Value, name: &str) -> Value {
        match object {
            Value::Library(library) => {
                let whole = format!("{library}.{name}");
                let whole = match whole.strip_prefix("fs.promises") {
                    Some(rest) => format!("fs{rest}"),
                    None => whole,
                };
                match self.library_value(&whole) {
                    Some(value) => value,
                    None => Value::Library(whole),
                }
            }
            Value::Module(frame) => frame.own(name).unwrap_or(Value::Unknown),
            Value::Map(map) => {
                let found = map
                    .iter()
                    .filter(|(key, _)| key == name)
                    .map(|(_, value)| value.clone());
                let found: Vec<Value> = found.collect();
                match found.is_empty() {
                    true => Value::Nothing,
                    false => Value::choice(found),
                }
            }
            Value::Object(class, inner, own) => {
                let found = own.own(name).or_else(|| inner.own(name));
                match found {
                    Some(Value::Function(function, around)) => {
                        Value::Method(function, around, Box::new(object.clone()))
                    }
                    Some(value) => value,
                    None => {
                        let _ = class;
                        Value::Unknown
                    }
                }
            }
            Value::Class(class, around) => {
                let inner = crate::value::Frame::inside(around);
                self.frames.push(inner.clone());
                self.block(&class.body, &inner);
                inner.own(name).unwrap_or(Value::Unknown)
            }
            Value::Path(piece) => match name {
                "parent" => Value::Path(parent_of(piece)),
                "name" => Value::Text(name_of(piece)),
                "stem" => Value::text(split_ending(&name_of(piece).text).0),
                "suffix" => Value::text(split_ending(&name_of(piece).text).1),
                "parents" => Value::List(Rc::new({
                    let mut at = piece.clone();
                    let mut parents = Vec::new();
                    for _ in 0..6 {
                        at = parent_of(&at);
                        parents.push(Value::Path(at.clone()));
                    }
                    parents
                })),
                _ => Value::Unknown,
            },
            Value::File(piece) if name == "name" => Value::Text(piece.clone()),
            Value::Choice(values) => {
                let values = values.clone();
                let values = values
                    .iter()
                    .map(|value| self.attribute(value, name))
                    .collect();
                Value::choice(values)
            }
            _ => Value::Unknown,
        }
    }

    pub(super) fn index(&mut self, object: &Value, index: &Value) -> Value {
        match (object, index.known()) {
            (Value::List(list), Some(number)) => match number.parse::<usize>() {
                Ok(number) => list.get(number).cloned().unwrap_or(Value::Nothing),
                Err(_) => Value::choice(list.to_vec()),
            },
            // A part of it, or one of them.
            (Value::List(list), None) => match index {
                Value::Unknown | Value::Nothing => Value::List(Rc::clone(list)),
                _ => Value::choice(list.to_vec()),
            },
            (Value::Map(_), Some(key)) => {
                let key = key.to_owned();
                match self.attribute(object, &key) {
                    Value::Nothing => self.attribute(object, ""),
                    value => value,
                }
            }
            (Value::Map(map), None) => {
                Value::choice(map.iter().map(|(_, value)| value.clone()).collect())
            }
            (Value::Library(name), Some("HOME"))
                if name.ends_with("environ") || name.ends_with("env") =>
            {
                self.home()
            }
            (Value::Choice(values), _) => {
                let values = values.clone();
                let values = values
                    .iter()
                    .map(|value| self.index(value, index))
                    .collect();
                Value::choice(values)
            }
            _ => Value::Unknown,
        }
    }

    /// A call of a library that only computes. `None` for others.
    pub(super) fn computed(
        &mut self,
        name: &str,
        arguments: &[Value],
        named: &[(String, Value)],
    ) -> Option<Value> {
        let first = arguments.first().cloned();
        let of_first = |change: fn(&Piece) -> Piece| {
            first
                .as_ref()
                .map_or(Value::Unknown, |first| each(first, change))
        };
        Some(match name {
            "os.path.join" | "path.join" | "posixpath.join" | "path.posix.join" => {
                joined(arguments)
            }
            "path.resolve" => {
                let here = self.here();
                let mut parts = vec![here];
                parts.extend(arguments.iter().cloned());
                joined(&parts)
            }
            "pathlib.Path" | "pathlib.PurePath" | "pathlib.PosixPath" | "Path" => {
                paths(&match arguments.is_empty() {
                    true => Value::text("."),
                    false => joined(arguments),
                })
            }
            "pathlib.Path.home" | "Path.home" => paths(&self.home()),
            "pathlib.Path.cwd" | "Path.cwd" => paths(&self.here()),
            "os.homedir" => self.home(),
            "os.tmpdir" | "tempfile.gettempdir" => Value::text("/tmp"),
            "os.getcwd" | "process.cwd" => self.here(),
            "os.path.dirname" | "path.dirname" => of_first(parent_of),
            "os.path.basename" | "path.basename" => {
                let name = of_first(name_of);
                match arguments.get(1).and_then(Value::known) {
                    Some(end) => each(&name, |piece| {
                        Piece::new(piece.text.strip_suffix(end).unwrap_or(&piece.text))
                    }),
                    None => name,
                }
            }
            "path.extname" => of_first(|piece| Piece::new(split_ending(&piece.text).1)),
            "os.path.splitext" => {
                let stem = of_first(|piece| Piece::new(split_ending(&piece.text).0));
                let end = of_first(|piece| Piece::new(split_ending(&piece.text).1));
                Value::List(Rc::new(vec![stem, end]))
            }
            "os.path.split" => Value::List(Rc::new(vec![of_first(parent_of), of_first(name_of)])),
            "os.path.abspath" | "os.path.realpath" | "os.path.normpath" | "os.path.expandvars"
            | "os.fspath" | "path.normalize" | "fileURLToPath" | "url.fileURLToPath"
            | "os.path.relpath" => texts(&first.unwrap_or(Value::Unknown)),
            "os.path.expanduser" => self.expand_user(&first.unwrap_or(Value::Unknown)),
            "os.path.exists" | "os.path.isfile" | "os.path.isdir" | "os.path.islink"
            | "fs.existsSync" | "fs.access" | "fs.accessSync" => Value::Nothing,
            "str" | "String" | "bytes" | "repr" => texts(&first.unwrap_or(Value::text(""))),
            "list" | "sorted" | "tuple" | "set" | "reversed" | "iter" | "Array.from" | "tqdm"
            | "tqdm.tqdm" | "frozenset" | "Promise.all" | "Promise.resolve" | "asyncio.run"
            | "tqdm.auto.tqdm" => first.unwrap_or(Value::List(Rc::default())),
            "range" => range(arguments).unwrap_or(Value::Unknown),
            "dict" => Value::Map(Rc::new(named.to_vec())),
            "enumerate" => {
                let elements = self.elements(&first.unwrap_or(Value::Unknown));
                let pairs = elements
                    .into_iter()
                    .map(|element| Value::List(Rc::new(vec![Value::Unknown, element])));
                Value::List(Rc::new(pairs.collect()))
            }
            "zip" => {
                let parts: Vec<Value> = arguments
                    .iter()
                    .map(|value| {
                        let elements = self.elements(value);
                        Value::choice(elements)
                    })
                    .collect();
                Value::List(Rc::new(vec![Value::List(Rc::new(parts))]))
            }
            "os.environ.get" | "os.getenv" => match first.as_ref().and_then(Value::known) {
                Some("HOME") => self.home(),
                Some("PWD") => self.here(),
                _ => Value::choice(vec![
                    arguments.get(1).cloned().unwrap_or(Value::Nothing),
                    Value::Unknown,
                ]),
            },
            "shlex.split" => {
                let words = first.as_ref().and_then(Value::piece).map(|piece| {
                    piece
                        .text
                        .split_whitespace()
                        .map(|word| Value::text(word.trim_matches(['"', '\''])))
                        .collect()
                });
                words.map_or(Value::Unknown, |words: Vec<Value>| {
                    Value::List(Rc::new(words))
                })
            }
            "shlex.quote" => first.unwrap_or(Value::Unknown),
            "shlex.join" => Value::Unknown,
            "getattr" => match (first, arguments.get(1).and_then(Value::known)) {
                (Some(object), Some(name)) => {
                    let name = name.to_owned();
                    self.attribute(&object, &name)
                }
                _ => Value::Unknown,
            },
            _ => return None,
        })
    }

    /// A method of a text. `None` if it is one of something else.
    pub(super) fn text_method(
        &mut self,
        piece: &Piece,
        name: &str,
        (arguments, named): (&[Value], &[(String, Value)]),
    ) -> Option<Value> {
        let first = arguments.first().and_then(Value::known);
        let second = arguments.get(1).and_then(Value::known);
        let text = &piece.text;
        Some(match name {
            "strip" | "trim" | "rstrip" | "lstrip" | "trimEnd" | "encode" | "decode"
            | "toString" | "expandtabs" => match first {
                Some(marks)
                    if matches!(name, "rstrip" | "strip")
                        && text.ends_with(|char| marks.contains(char)) =>
                {
                    Value::text(text.trim_end_matches(|char| marks.contains(char)))
                }
                _ => Value::Text(Piece::new(text.trim())),
            },
            "lower" | "toLowerCase" | "casefold" => Value::text(text.to_lowercase()),
            "upper" | "toUpperCase" => Value::text(text.to_uppercase()),
            "format" => format(piece, arguments, named),
            "replace" | "replaceAll" => match (first, second) {
                (Some(old), Some(new)) if !old.is_empty() => Value::text(text.replace(old, new)),
                _ => Value::Text(Piece::begins("")),
            },
            "removesuffix" => {
                Value::text(first.and_then(|end| text.strip_suffix(end)).unwrap_or(text))
            }
            "removeprefix" => Value::text(
                first
                    .and_then(|start| text.strip_prefix(start))
                    .unwrap_or(text),
            ),
            "concat" => arguments
                .iter()
                .fold(Value::Text(piece.clone()), |whole, part| {
                    whole.join(part, Piece::then)
                }),
            "split" => {
                let parts: Vec<Value> = match first {
                    Some(mark) if !mark.is_empty() => text.split(mark).map(Value::text).collect(),
                    _ => text.split_whitespace().map(Value::text).collect(),
                };
                Value::List(Rc::new(parts))
            }
            "splitlines" => Value::List(Rc::new(text.lines().map(Value::text).collect())),
            "join" => {
                let mut parts = match arguments.first() {
                    Some(list) => self.elements(list).into_iter(),
                    None => Vec::new().into_iter(),
                };
                let start = parts.next().unwrap_or(Value::text(""));
                let mark = Value::Text(piece.clone());
                parts.fold(start, |whole, part| {
                    whole.join(&mark, Piece::then).join(&part, Piece::then)
                })
            }
            "startswith" | "endswith" | "startsWith" | "endsWith" | "includes" | "find"
            | "index" | "count" | "isdigit" | "match" | "test" | "indexOf" | "rfind"
            | "isalpha" | "search" => Value::Unknown,
            "zfill" | "ljust" | "rjust" | "padStart" | "slice" | "substring" | "title"
            | "capitalize" => Value::Text(Piece::begins("")),
            _ => return None,
        })
    }

    /// A method of a path that only computes.
    pub(super) fn path_method(
        &mut self,
        piece: &Piece,
        name: &str,
        arguments: &[Value],
    ) -> Option<Value> {
        let own = Value::Path(piece.clone());
        let first = arguments.first().and_then(Value::known);
        Some(match name {
            "joinpath" => {
                let mut parts = vec![own];
                parts.extend(arguments.iter().cloned());
                joined(&parts)
            }
            "resolve" | "absolute" | "relative_to" | "as_posix" | "__str__" => own,
            "expanduser" => self.expand_user(&own),
            "with_suffix" => {
                let stem = split_ending(&piece.text).0.to_owned();
                Value::Path(Piece::new(format!("{stem}{}", first.unwrap_or("\u{FFFC}"))))
            }
            "with_name" => {
                Value::Path(parent_of(piece).below(&Piece::new(first.unwrap_or("\u{FFFC}"))))
            }
            "with_stem" => {
                let end = split_ending(&piece.text).1.to_owned();
                let name = format!("{}{end}", first.unwrap_or("\u{FFFC}"));
                Value::Path(parent_of(piece).below(&Piece::new(name)))
            }
            "exists" | "is_file" | "is_dir" | "is_symlink" | "match" => Value::Nothing,
            _ => return None,
        })
    }

    /// A method of a list or a map.
    pub(super) fn container_method(
        &mut self,
        object: &Value,
        name: &str,
        arguments: &[Value],
    ) -> Option<Value> {
        match (object, name) {
            (Value::Map(map), "items" | "entries") => {
                let pairs = map.iter().map(|(key, value)| {
                    Value::List(Rc::new(vec![Value::text(key.clone()), value.clone()]))
                });
                Some(Value::List(Rc::new(pairs.collect())))
            }
            (Value::Map(map), "values") => Some(Value::List(Rc::new(
                map.iter().map(|(_, value)| value.clone()).collect(),
            ))),
            (Value::Map(map), "keys") => Some(Value::List(Rc::new(
                map.iter()
                    .map(|(key, _)| Value::text(key.clone()))
                    .collect(),
            ))),
            (Value::Map(_), "get") => {
                let key = arguments.first().cloned().unwrap_or(Value::Unknown);
                let found = self.index(object, &key);
                Some(Value::choice(vec![
                    found,
                    arguments.get(1).cloned().unwrap_or(Value::Nothing),
                ]))
            }
            (Value::List(_), "join") => {
                let mark = arguments.first().cloned().unwrap_or(Value::text(","));
                let mut parts = self.elements(object).into_iter();
                let start = parts.next().unwrap_or(Value::text(""));
                Some(parts.fold(start, |whole, part| {
                    whole.join(&mark, Piece::then).join(&part, Piece::then)
                }))
            }
            (
                Value::List(_),
                "map" | "forEach" | "flatMap" | "filter" | "reduce" | "some" | "every" | "find",
            ) => {
                let mut made = Vec::new();
                for element in self.elements(object) {
                    let value = arguments.first().cloned().unwrap_or(Value::Unknown);
                    made.push(self.call_value(&value, vec![element], &[]));
                }
                Some(match name {
                    "map" | "flatMap" => Value::List(Rc::new(made)),
                    _ => object.clone(),
                })
            }
            (Value::List(_), "copy" | "slice" | "concat" | "sort") => Some(object.clone()),
            (Value::List(_) | Value::Map(_), _) => Some(Value::Unknown),
            _ => None,
        }
    }
}
