//! Functions, classes, objects and modules of the program itself.

use super::{MOST_CALLS, MOST_MODULES, Program};
use crate::ir::{Class, Function};
use crate::value::{Frame, Value};
use ironcage_intent::{Unsure, tidy};
use std::path::{Path, PathBuf};
use std::rc::Rc;

impl Program<'_> {
    /// Follows a function. What is not given is its default, or not known.
    pub(super) fn call_function(
        &mut self,
        function: &Rc<Function>,
        around: &Frame,
        arguments: Vec<Value>,
        named: &[(String, Value)],
    ) -> Value {
        let count = self.called.entry(Rc::as_ptr(function)).or_default();
        *count += 1;
        if *count > MOST_CALLS || self.depth >= super::DEEPEST {
            return Value::Unknown;
        }
        let frame = Frame::inside(around);
        self.frames.push(frame.clone());
        let mut given = arguments.into_iter();
        for parameter in &function.parameters {
            let keyword = named.iter().find(|(name, _)| *name == parameter.name);
            let value = match (given.next(), keyword, &parameter.default) {
                (Some(value), _, _) => value,
                (None, Some((_, value)), _) => value.clone(),
                (None, None, Some(default)) => self.eval(default, around),
                (None, None, None) => Value::Unknown,
            };
            frame.set(&parameter.name, value, false);
        }
        let (returned, maybe) = (std::mem::take(&mut self.returned), self.maybe);
        self.depth += 1;
        self.block(&function.body, &frame);
        self.depth -= 1;
        self.maybe = maybe;
        let values = std::mem::replace(&mut self.returned, returned);
        match Value::choice(values) {
            Value::Nothing => Value::Nothing,
            value => value,
        }
    }

    /// An object of a class, after its constructor.
    pub(super) fn make_object(
        &mut self,
        class: &Rc<Class>,
        around: &Frame,
        arguments: Vec<Value>,
        named: &[(String, Value)],
        anyhow: bool,
    ) -> Value {
        let own = Frame::default();
        self.frames.push(own.clone());
        let inner = Frame::inside(around);
        self.frames.push(inner.clone());
        for base in &class.bases {
            if let Value::Class(base, around) = self.eval(base, around)
                && !Rc::ptr_eq(&base, class)
            {
                self.members(&base, &around, &inner, 0);
            }
        }
        self.block(&class.body, &inner);
        let object = Value::Object(Rc::clone(class), inner.clone(), own);
        self.objects.insert(Rc::as_ptr(class), object.clone());
        for name in ["__init__", "constructor"] {
            if let Some(Value::Function(function, around)) = inner.own(name) {
                if anyhow && self.was_called(&function) {
                    continue;
                }
                self.call_method(&function, &around, &object, arguments.clone(), named);
            }
        }
        if let Some(Value::Function(function, around)) = inner.own("__post_init__") {
            self.call_method(&function, &around, &object, Vec::new(), &[]);
        }
        object
    }

    /// The members of a class that another one has from it.
    fn members(&mut self, class: &Rc<Class>, around: &Frame, inner: &Frame, depth: u32) {
        if depth > 8 {
            return;
        }
        for base in &class.bases {
            if let Value::Class(base, around) = self.eval(base, around)
                && !Rc::ptr_eq(&base, class)
            {
                self.members(&base, &around, inner, depth + 1);
            }
        }
        self.block(&class.body, inner);
    }

    pub(super) fn call_method(
        &mut self,
        function: &Rc<Function>,
        around: &Frame,
        object: &Value,
        arguments: Vec<Value>,
        named: &[(String, Value)],
    ) -> Value {
        let first = function
            .parameters
            .first()
            .map(|parameter| parameter.name.as_str());
        match first {
            Some("self" | "cls") => {
                let mut all = vec![object.clone()];
                all.extend(arguments);
                self.call_function(function, around, all, named)
            }
            _ => {
                let frame = Frame::inside(around);
                self.frames.push(frame.clone());
                frame.set("this", object.clone(), false);
                self.call_function(function, &frame, arguments, named)
            }
        }
    }

    pub(super) fn call_methods(&mut self, object: &Value) {
        let Value::Object(_, inner, _) = object else {
            return;
        };
        for (_, value) in inner.names() {
            if let Value::Function(function, around) = value
                && !self.was_called(&function)
            {
                self.call_method(&function, &around, object, Vec::new(), &[]);
            }
        }
    }

    pub(super) fn import(&mut self, module: &str, alias: Option<&str>, frame: &Frame) {
        let value = self.module(module);
        match alias {
            Some("") => {}
            Some(alias) => frame.set(alias, value, self.maybe),
            None => {
                // `import a.b` gives the name `a`.
                let first = module.split('.').next().unwrap_or(module);
                match value {
                    Value::Module(_) if first == module => frame.set(first, value, self.maybe),
                    Value::Module(_) => {}
                    _ => frame.set(first, Value::Library(first.to_owned()), self.maybe),
                }
            }
        }
    }

    pub(super) fn import_from(&mut self, module: &str, names: &[(String, String)], frame: &Frame) {
        let value = self.module(module);
        for (name, alias) in names {
            if name == "*" {
                if let Value::Module(inner) = &value {
                    for (name, value) in inner.names() {
                        frame.set(&name, value, self.maybe);
                    }
                }
                continue;
            }
            let part = match &value {
                Value::Module(inner) => match inner.own(name) {
                    Some(value) => value,
                    None => self.module(&format!("{}.{name}", module.trim_end_matches('.'))),
                },
                Value::Library(library) => {
                    // `from . import b`, or a module of a package that has no file of its own.
                    let whole = match module.ends_with('.') {
                        true => format!("{module}{name}"),
                        false => format!("{module}.{name}"),
                    };
                    match self.module_file(&whole) {
                        Some(_) => self.module(&whole),
                        None => Value::Library(format!("{library}.{name}")),
                    }
                }
                other => self.attribute(other, name),
            };
            frame.set(alias, part, self.maybe);
        }
    }

    /// A module: of the workspace if it is there, and of a library otherwise.
    pub(super) fn module(&mut self, name: &str) -> Value {
        let Some(path) = self.module_file(name) else {
            let name = name
                .trim_start_matches("node:")
                .replace("fs/promises", "fs");
            return Value::Library(name);
        };
        if let Some(frame) = self.modules.get(&path) {
            return Value::Module(frame.clone());
        }
        self.found.needs.read(path.clone());
        if self.language.is_python()
            && let Some(package) = path.parent().map(|place| place.join("__init__.py"))
            && package != path
            && (self.code.file)(&package).is_some()
        {
            self.found.needs.read(package);
        }
        if path.extension().is_some_and(|end| end == "json") {
            return Value::Unknown;
        }
        let text = (self.code.file)(&path);
        let lowered = text.as_deref().and_then(|text| self.language.lower(text));
        let too_many = self.modules.len() >= MOST_MODULES;
        let Some((body, complete)) = lowered.filter(|_| !too_many) else {
            let why = format!("the module `{name}` cannot be followed");
            self.unsure(Unsure::Everything, why);
            return Value::Unknown;
        };
        if !complete {
            let why = format!("part of the module `{name}` cannot be parsed");
            self.unsure(Unsure::Everything, why);
        }
        let frame = Frame::default();
        self.frames.push(frame.clone());
        self.modules.insert(path.clone(), frame.clone());
        let file = self.file.replace(path);
        let importing = std::mem::replace(&mut self.importing, true);
        self.block(&body, &frame);
        self.importing = importing;
        self.file = file;
        Value::Module(frame)
    }

    /// The file of a module, if it lies in the workspace.
    fn module_file(&self, name: &str) -> Option<PathBuf> {
        let own = self
            .file
            .as_deref()
            .and_then(Path::parent)
            .or(self.cwd.as_deref());
        let exists =
            |path: &PathBuf| self.modules.contains_key(path) || (self.code.file)(path).is_some();
        if self.language.is_python() {
            let dots = name.len() - name.trim_start_matches('.').len();
            let rest = name.trim_start_matches('.').replace('.', "/");
            let mut places: Vec<PathBuf> = Vec::new();
            match dots {
                0 => {
                    places.extend(own.map(Path::to_owned));
                    places.extend(self.cwd.clone());
                    places.extend(self.cwd.as_ref().map(|cwd| cwd.join("src")));
                }
                _ => places.extend(
                    own.and_then(|own| own.ancestors().nth(dots - 1))
                        .map(Path::to_owned),
                ),
            }
            if rest.is_empty() {
                return None;
            }
            let mut files = places.iter().flat_map(|place| {
                let file = tidy(place, &format!("{rest}.py"));
                [file, tidy(place, &format!("{rest}/__init__.py"))]
            });
            return files.find(exists);
        }
        if !name.starts_with('.') && !name.starts_with('/') {
            return None;
        }
        let place = own?;
        let ends = [
            "",
            ".js",
            ".ts",
            ".mjs",
            ".cjs",
            ".tsx",
            ".json",
            "/index.js",
            "/index.ts",
        ];
        let plain = name.strip_suffix(".js").unwrap_or(name);
        let names = ends
            .iter()
            .map(|end| format!("{name}{end}"))
            .chain([format!("{plain}.ts")]);
        let mut files = names.map(|name| tidy(place, &name));
        files.find(exists)
    }
}
