//! Calls: of the program's own functions, and of libraries.

use super::Program;
use crate::calls::Role;
use crate::ir::{Call, Expr};
use crate::value::{Frame, Piece, Value};
use ironcage_intent::{Code, Unsure};
use std::rc::Rc;

/// Texts that are executed as code inside code.
const LONGEST_CODE: usize = 64 * 1024;

/// Arguments of a call, evaluated.
pub(super) struct CallArguments {
    pub(super) arguments: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl CallArguments {
    /// An argument by its place, or by its name.
    pub(super) fn get(&self, at: usize, name: Option<&str>) -> Option<&Value> {
        self.arguments.get(at).or_else(|| {
            let name = name?;
            let found = self.named.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value)
        })
    }

    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        self.named
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// A field of the options that calls of JavaScript take last.
    fn option(&self, name: &str) -> Option<Value> {
        let Some(Value::Map(map)) = self.arguments.last() else {
            return None;
        };
        map.iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    }
}

impl Program<'_> {
    pub(super) fn call(&mut self, call: &Call, frame: &Frame) -> Value {
        let object = match &call.callee {
            Expr::Attribute(object, name) => Some((self.eval(object, frame), name.as_str())),
            _ => None,
        };
        let mut arguments = Vec::new();
        for argument in &call.arguments {
            match argument {
                Expr::Spread(inner) => match self.eval(inner, frame) {
                    Value::List(parts) => arguments.extend(parts.iter().cloned()),
                    value => arguments.push(self.element(&value)),
                },
                argument => arguments.push(self.eval(argument, frame)),
            }
        }
        let named = call
            .named
            .iter()
            .map(|(name, value)| (name.clone(), self.eval(value, frame)));
        let named = named.collect();
        let given = CallArguments { arguments, named };
        if let Some((object, name)) = object {
            // What is added to a list of the program is in it.
            if let (Expr::Attribute(list, _), "append" | "push" | "add" | "extend" | "insert") =
                (&call.callee, name)
                && let (Expr::Name(variable), Value::List(held)) = (list.as_ref(), &object)
                && let Some(added) = given.arguments.last()
            {
                let mut held = held.to_vec();
                match (name, added) {
                    ("extend", Value::List(added)) => held.extend(added.iter().cloned()),
                    _ => held.push(added.clone()),
                }
                frame.set(variable, Value::list(held), false);
                return Value::Nothing;
            }
            let made = object
                .each()
                .iter()
                .map(|object| self.method(object, name, &given))
                .collect();
            return Value::choice(made);
        }
        let callee = self.eval(&call.callee, frame);
        let made = callee
            .each()
            .iter()
            .map(|callee| self.called_with(callee, &given))
            .collect();
        Value::choice(made)
    }

    /// Calls a value with arguments that are known.
    pub(super) fn call_value(
        &mut self,
        callee: &Value,
        arguments: Vec<Value>,
        named: &[(String, Value)],
    ) -> Value {
        let given = CallArguments {
            arguments,
            named: named.to_vec(),
        };
        self.called_with(callee, &given)
    }

    fn called_with(&mut self, callee: &Value, given: &CallArguments) -> Value {
        match callee {
            Value::Function(function, around) => {
                self.call_function(function, around, given.arguments.clone(), &given.named)
            }
            Value::Method(function, around, object) => self.call_method(
                function,
                around,
                object,
                given.arguments.clone(),
                &given.named,
            ),
            Value::Class(class, around) => {
                self.make_object(class, around, given.arguments.clone(), &given.named, false)
            }
            Value::Library(name) => self.library(name, given),
            Value::Object(..) => match self.attribute(callee, "__call__") {
                method @ Value::Method(..) => self.called_with(&method, given),
                _ => {
                    self.call_back("", given);
                    Value::Unknown
                }
            },
            _ => {
                self.call_back("", given);
                Value::Unknown
            }
        }
    }

    fn method(&mut self, object: &Value, name: &str, given: &CallArguments) -> Value {
        match object {
            Value::Library(library) => {
                let whole = format!("{library}.{name}").replace("fs.promises.", "fs.");
                self.library(&whole, given)
            }
            Value::Path(piece) => {
                let piece = piece.clone();
                if let Some(value) = self.path_method(&piece, name, &given.arguments) {
                    return value;
                }
                match name {
                    "open" => {
                        let mode = given.get(0, Some("mode")).cloned();
                        self.open(object, mode.as_ref(), "open")
                    }
                    "replace" => {
                        self.role(Role::Change, object, "replace");
                        if let Some(to) = given.arguments.first() {
                            self.role(Role::Write, to, "replace");
                        }
                        Value::Nothing
                    }
                    _ => self.by_method(object, name, given),
                }
            }
            Value::Text(piece) => {
                let piece = piece.clone();
                let found = self.text_method(&piece, name, (&given.arguments, &given.named));
                found.unwrap_or_else(|| {
                    self.call_back(name, given);
                    Value::Unknown
                })
            }
            Value::List(_) | Value::Map(_) => {
                let held = match object {
                    Value::Map(_) => self.attribute(object, name),
                    _ => Value::Nothing,
                };
                if matches!(held, Value::Function(..)) {
                    return self.called_with(&held, given);
                }
                let found = self.container_method(object, name, &given.arguments);
                found.unwrap_or(Value::Unknown)
            }
            Value::Module(_) | Value::Object(..) | Value::Class(..) => {
                let callee = self.attribute(object, name);
                match callee {
                    Value::Unknown | Value::Nothing => self.by_method(object, name, given),
                    callee => self.called_with(&callee, given),
                }
            }
            Value::File(piece) => match name {
                "read" | "readlines" | "readline" | "write" | "writelines" | "close" | "flush"
                | "seek" => Value::Unknown,
                // An archive, or a database.
                "extractall" | "extract" | "save" => {
                    let value = self.by_method(object, name, given);
                    if given.arguments.is_empty() && given.named.is_empty() {
                        self.role(Role::Write, &Value::text("."), name);
                    }
                    value
                }
                "add" | "write_file" => {
                    if let Some(path) = given.arguments.first() {
                        self.role(Role::Read, path, name);
                    }
                    Value::Unknown
                }
                _ => {
                    let _ = piece;
                    self.by_method(object, name, given)
                }
            },
            _ => self.by_method(object, name, given),
        }
    }

    /// A method of something that is not known, by its name alone.
    fn by_method(&mut self, object: &Value, name: &str, given: &CallArguments) -> Value {
        let known = self.known;
        match known.method(name) {
            Some(roles) => {
                let is_path = |value: &Value| matches!(value, Value::Path(_) | Value::Text(_));
                let mut made = Value::Unknown;
                for (at, argument) in roles.iter().enumerate() {
                    let own = match argument.role {
                        Role::SelfRead => Some(Role::Read),
                        Role::SelfWrite => Some(Role::Write),
                        Role::SelfChange => Some(Role::Change),
                        Role::SelfList => Some(Role::List),
                        _ => None,
                    };
                    match own {
                        Some(role) if is_path(object) => {
                            let found = self.role(role, object, name);
                            if role == Role::List {
                                made = found;
                            }
                        }
                        Some(_) => {}
                        None => {
                            if let Some(value) = given.get(at, argument.name.as_deref()).cloned()
                                && !matches!(
                                    value,
                                    Value::Nothing
                                        | Value::Unknown
                                        | Value::Library(_)
                                        | Value::File(_)
                                )
                            {
                                self.role(argument.role, &value, name);
                            }
                        }
                    }
                }
                self.call_back(name, given);
                made
            }
            None => {
                self.guess(name, given);
                self.call_back(name, given);
                Value::Unknown
            }
        }
    }

    /// A call of a library.
    fn library(&mut self, name: &str, given: &CallArguments) -> Value {
        if let Some(value) = self.computed(name, &given.arguments, &given.named) {
            return value;
        }
        if let Some(value) = self.special(name, given) {
            return value;
        }
        let known = self.known;
        if let Some(roles) = known.call(name) {
            let mut made = Value::Library(format!("{name}()"));
            let arguments = roles.iter().enumerate();
            for (at, argument) in arguments {
                let value = given.get(at, argument.name.as_deref()).cloned();
                match (argument.role, value) {
                    (Role::Open, Some(value)) => {
                        let mode = given.get(at + 1, Some("mode")).cloned();
                        made = self.open(&value, mode.as_ref(), name);
                    }
                    (Role::Program, Some(value)) => {
                        let rest = given.arguments.get(at + 1).cloned();
                        let cwd = given.option("cwd");
                        let shell = given.option("shell").is_some();
                        self.start_program(&value, rest.as_ref(), cwd.as_ref(), shell);
                    }
                    (Role::Command, Some(value)) => {
                        let cwd = given.option("cwd").or_else(|| given.named("cwd").cloned());
                        self.start_command(&value, cwd.as_ref());
                    }
                    (Role::Words, Some(value)) => self.start_program(&value, None, None, false),
                    (Role::List, None) => made = self.role(Role::List, &Value::text("."), name),
                    (Role::List, Some(value)) => made = self.role(Role::List, &value, name),
                    (Role::CodeFile, Some(value)) => self.run_file(&value),
                    (Role::Url, Some(Value::Map(options))) => {
                        let url = options
                            .iter()
                            .find(|(key, _)| key == "url" || key == "host" || key == "hostname");
                        if let Some((_, url)) = url.cloned() {
                            self.role(Role::Url, &url, name);
                        }
                    }
                    (Role::Text | Role::Rest, _) | (_, None) => {}
                    (_, Some(Value::File(_) | Value::Nothing)) => {}
                    (role, Some(value)) => drop(self.role(role, &value, name)),
                }
            }
            self.call_back(name, given);
            return made;
        }
        let last = name.rsplit('.').next().unwrap_or(name);
        if name.contains('.') && self.known.method(last).is_some() {
            self.by_method(&Value::Unknown, last, given);
            return Value::Library(format!("{name}()"));
        }
        self.guess(name, given);
        self.call_back(name, given);
        Value::Library(format!("{name}()"))
    }

    /// Calls that the table cannot say.
    fn special(&mut self, name: &str, given: &CallArguments) -> Option<Value> {
        let first = given.arguments.first().cloned();
        if let Some(method) = name.strip_prefix("argparse.ArgumentParser()") {
            match method.rsplit('.').next() {
                Some("add_argument") => self.declare(&given.arguments, &given.named),
                Some("parse_args" | "parse_known_args") => {
                    let parsed = self.parsed_arguments();
                    return Some(match method.ends_with("known_args") {
                        true => Value::List(Rc::new(vec![parsed, Value::Unknown])),
                        false => parsed,
                    });
                }
                Some("set_defaults") => self.set_defaults(&given.named),
                Some(part) if part.starts_with("add_") => {
                    return Some(Value::Library("argparse.ArgumentParser()".to_owned()));
                }
                _ => {}
            }
            return Some(Value::Nothing);
        }
        Some(match name {
            "open" if self.language.is_python() => {
                let path = given
                    .get(0, Some("file"))
                    .cloned()
                    .unwrap_or(Value::Unknown);
                let mode = given.get(1, Some("mode")).cloned();
                self.open(&path, mode.as_ref(), "open")
            }
            "subprocess.run"
            | "subprocess.call"
            | "subprocess.check_call"
            | "subprocess.check_output"
            | "subprocess.Popen" => {
                let value = given
                    .get(0, Some("args"))
                    .cloned()
                    .unwrap_or(Value::Unknown);
                let cwd = given.named("cwd").cloned();
                let shell = given.named("shell").is_some();
                self.start_program(&value, None, cwd.as_ref(), shell);
                Value::Unknown
            }
            "asyncio.create_subprocess_exec" => {
                let words = Value::List(Rc::new(given.arguments.clone()));
                let cwd = given.named("cwd").cloned();
                self.start_program(&words, None, cwd.as_ref(), false);
                Value::Unknown
            }
            "os.execl" | "os.execlp" | "os.spawnl" | "os.spawnlp" => {
                let words = given.arguments.get(1..).unwrap_or_default().to_vec();
                self.start_program(&Value::List(Rc::new(words)), None, None, false);
                Value::Unknown
            }
            "exec"
            | "eval"
            | "compile"
            | "Function"
            | "vm.runInNewContext"
            | "vm.runInThisContext" => {
                self.execute(first.as_ref(), name);
                Value::Unknown
            }
            "__import__" | "importlib.import_module" | "require" => {
                match first.as_ref().and_then(Value::known) {
                    Some(module) => {
                        let module = module.to_owned();
                        self.module(&module)
                    }
                    None => {
                        self.unsure(
                            Unsure::Everything,
                            "it loads a module whose name is not known",
                        );
                        Value::Unknown
                    }
                }
            }
            "tempfile.NamedTemporaryFile"
            | "tempfile.TemporaryDirectory"
            | "tempfile.mkdtemp"
            | "tempfile.mkstemp"
            | "tempfile.TemporaryFile" => {
                let place = given.named("dir").cloned().unwrap_or(Value::text("/tmp"));
                self.role(Role::Write, &place, name);
                let place = place.join(&Value::Text(Piece::begins("")), Piece::below);
                match name {
                    "tempfile.mkstemp" => Value::List(Rc::new(vec![Value::Unknown, place])),
                    "tempfile.NamedTemporaryFile" => {
                        Value::File(place.piece().cloned().unwrap_or(Piece::begins("/tmp/")))
                    }
                    _ => place,
                }
            }
            "print" | "console.log" | "console.error" | "logging.info" | "logging.error"
            | "logging.warning" | "logging.debug" | "re.compile" | "re.match" | "re.search"
            | "re.sub" | "re.findall" | "len" | "int" | "float" | "isinstance" | "sys.exit"
            | "json.dumps" | "json.loads" | "json.dump" | "json.load" | "pickle.dump"
            | "pickle.load" | "yaml.safe_load" | "yaml.dump" | "yaml.safe_dump" | "csv.reader"
            | "csv.writer" | "csv.DictReader" | "csv.DictWriter" | "super" | "JSON.parse"
            | "JSON.stringify" => {
                self.call_back(name, given);
                Value::Unknown
            }
            "map" | "filter" => {
                let over = given.arguments.get(1).cloned().unwrap_or(Value::Unknown);
                let function = first.unwrap_or(Value::Unknown);
                let elements = self.elements(&over);
                let made = elements.into_iter().map(|element| match name {
                    "map" => self.call_value(&function, vec![element], &[]),
                    _ => element,
                });
                Value::List(Rc::new(made.collect()))
            }
            "logging.basicConfig" => {
                if let Some(path) = given.named("filename").cloned() {
                    self.role(Role::Write, &path, name);
                }
                Value::Nothing
            }
            "shutil.make_archive" => {
                let ending = match given.get(1, Some("format")).and_then(Value::known) {
                    Some("zip") => ".zip",
                    Some("tar") => ".tar",
                    Some("gztar") => ".tar.gz",
                    Some("bztar") => ".tar.bz2",
                    Some("xztar") => ".tar.xz",
                    _ => "\u{FFFC}",
                };
                let made = given.get(0, Some("base_name")).cloned();
                let made = made.unwrap_or(Value::Unknown);
                let made = made.join(&Value::text(ending), Piece::then);
                self.role(Role::Write, &made, name);
                let place = given.get(2, Some("root_dir")).cloned();
                self.role(Role::Read, &place.unwrap_or(Value::text(".")), name);
                made
            }
            // `spawn` of a shell takes what is typed as commands.
            "pexpect.spawn().sendline" | "pexpect.spawn().send" => {
                if self.spawned_shell {
                    self.start_command(&first.unwrap_or(Value::Unknown), None);
                }
                Value::Nothing
            }
            "pexpect.spawn" | "pexpect.popen_spawn.PopenSpawn" => {
                let command = first.unwrap_or(Value::Unknown);
                let text = command.known().unwrap_or_default().trim().to_owned();
                self.spawned_shell =
                    matches!(text.as_str(), "bash" | "sh" | "/bin/bash" | "/bin/sh");
                match given.arguments.get(1) {
                    Some(Value::List(_)) => {
                        let rest = given.arguments.get(1).cloned();
                        self.start_program(&command, rest.as_ref(), None, false);
                    }
                    _ if self.spawned_shell => self.found.needs.program(&text),
                    _ => self.start_command(&command, given.named("cwd")),
                }
                Value::Library("pexpect.spawn()".to_owned())
            }
            "os.environ.setdefault" | "os.putenv" => Value::Nothing,
            _ => return None,
        })
    }

    /// Code in a text.
    fn execute(&mut self, text: Option<&Value>, name: &str) {
        let text = text
            .and_then(Value::known)
            .filter(|text| text.len() <= LONGEST_CODE)
            .map(str::to_owned);
        let Some(text) = text.filter(|_| self.depth < 60) else {
            let why = format!("`{name}` executes text that is not known");
            self.unsure(Unsure::Everything, why);
            return;
        };
        match self.language.lower(&text) {
            Some((body, true)) => {
                let frame = Frame::default();
                self.frames.push(frame.clone());
                self.depth += 20;
                self.block(&body, &frame);
                self.depth -= 20;
            }
            _ => self.unsure(
                Unsure::Everything,
                format!("`{name}` executes text that cannot be parsed"),
            ),
        }
    }

    /// A file of the same language that is executed.
    fn run_file(&mut self, path: &Value) {
        let known = path.known().map(str::to_owned);
        let path = known.and_then(|text| Some(ironcage_intent::tidy(self.cwd.as_deref()?, &text)));
        let Some(path) = path else {
            self.unsure(Unsure::Everything, "it executes a file that is not known");
            return;
        };
        self.found.needs.read(path.clone());
        let text = (self.code.file)(&path);
        let lowered = text.as_deref().and_then(|text| self.language.lower(text));
        match lowered {
            Some(lowered) if self.depth < 60 => {
                let code = Code {
                    path: Some(&path),
                    text: text.as_deref().unwrap_or_default(),
                    ..*self.code
                };
                let found =
                    super::follow(&code, self.known, self.language, (&lowered.0, lowered.1));
                self.found.needs.merge(found.needs);
                self.found.commands.extend(found.commands);
            }
            // Code of the project that is not here: it works around itself, by convention.
            _ => {
                let why = format!("it executes `{}`, which cannot be read", path.display());
                match path.parent() {
                    Some(place) => self.found.needs.unsure_below(place, &why),
                    None => self.unsure(Unsure::Everything, why),
                }
            }
        }
    }
}
