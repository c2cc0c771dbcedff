//! Programs that the same command compiled: which source they were made of.

use super::Parsed;
use crate::needs::tidy;
use crate::shell::Word;
use crate::shell::walk::Walk;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Programs and sources that are remembered.
const MOST_PROGRAMS: usize = 64;
const MOST_SOURCES: usize = 32;
/// Length of all sources of a program from which on no more are added, in bytes.
const LONGEST: usize = 256 * 1024;

/// Endings of files that are compiled.
const ENDINGS: [&str; 16] = [
    "c", "cc", "cpp", "cxx", "C", "rs", "go", "java", "f90", "f", "hs", "ml", "nim", "zig", "cbl",
    "cob",
];

fn is_source(text: &str) -> bool {
    let ending = text.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

impl Walk<'_, '_> {
    fn note_program(&mut self, program: PathBuf, sources: Vec<PathBuf>) {
        let compiled = Rc::make_mut(&mut self.scope.compiled);
        if compiled.len() < MOST_PROGRAMS && !sources.is_empty() {
            compiled.insert(program, sources);
        }
    }

    /// The text of the sources of a program, and the first of these. `None` if none can be read.
    pub(super) fn source_of(&self, program: &Path) -> Option<(String, PathBuf)> {
        let known = self.scope.compiled.get(program).cloned();
        let sources = known.or_else(|| Some(vec![self.cargo_source(program)?]))?;
        let mut first = None;
        let mut whole = String::new();
        for source in sources {
            // More than is searched anyway would only be copied.
            if whole.len() > LONGEST {
                break;
            }
            if let Some(text) = self.text_of(&source) {
                whole.push_str(&text);
                whole.push('\n');
                first.get_or_insert(source);
            }
        }
        Some((whole, first?))
    }

    /// Remembers what a copy of a program, or of a file with a known text, is.
    pub(super) fn note_copied(&mut self, arguments: &[Word]) {
        let Some(cwd) = self.scope.cwd.clone() else {
            return;
        };
        let operands = arguments.iter().filter_map(|word| match word {
            Word::Plain(text) if !text.starts_with('-') => Some(tidy(&cwd, text)),
            _ => None,
        });
        let operands: Vec<PathBuf> = operands.collect();
        let [.., from, to] = operands.as_slice() else {
            return;
        };
        let into = arguments
            .last()
            .is_some_and(|word| word.known().ends_with('/'));
        let installed = to.ends_with("bin");
        let to = match from.file_name().filter(|_| into || installed) {
            Some(name) => to.join(name),
            None => to.clone(),
        };
        if let Some(sources) = self.scope.compiled.get(from).cloned() {
            self.note_program(to, sources);
        } else if let Some(source) = self.cargo_source(from) {
            self.note_program(to, vec![source]);
        } else if let Some(text) = self.scope.written.get(from).cloned() {
            self.keep_written(to, &text, false);
        }
    }

    /// A program by its name that this command put where programs are searched.
    pub(super) fn run_placed(&mut self, name: &str, arguments: &[Word]) -> bool {
        let home = self.scope.home.clone().unwrap_or_default();
        let own = [".local/bin", "bin", ".cargo/bin", "go/bin"].map(|place| home.join(place));
        let places = ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/bin"].map(PathBuf::from);
        for place in places.into_iter().chain(own) {
            let path = place.join(name);
            let put =
                self.scope.compiled.contains_key(&path) || self.scope.written.contains_key(&path);
            if put && self.run_file(&Word::Plain(path.to_string_lossy().into_owned()), arguments) {
                return true;
            }
        }
        false
    }

    /// Whether this command compiled a program, and its source can be read.
    pub(super) fn is_compiled(&mut self, word: &Word) -> bool {
        let path = match (&self.scope.cwd, word.text()) {
            (Some(cwd), Some(text)) => tidy(cwd, text),
            _ => return false,
        };
        self.source_of(&path).is_some()
    }

    /// The source of a program that cargo built, by where cargo puts it.
    fn cargo_source(&self, path: &Path) -> Option<PathBuf> {
        let profile = path.parent()?;
        let target = profile.parent().filter(|_| {
            let name = profile.file_name().and_then(|name| name.to_str());
            matches!(name, Some("release" | "debug"))
        })?;
        let root = target.parent().filter(|_| target.ends_with("target"))?;
        self.cargo_main(root, path.file_name()?.to_str())
    }

    fn cargo_main(&self, root: &Path, name: Option<&str>) -> Option<PathBuf> {
        let named = name.map(|name| root.join(format!("src/bin/{name}.rs")));
        let mut sources = named.into_iter().chain([root.join("src/main.rs")]);
        sources.find(|source| self.text_of(source).is_some())
    }

    /// Remembers which sources a compiler makes a program of.
    pub(super) fn note_compiled(&mut self, compiler: &str, arguments: &[Word]) {
        let Some(cwd) = self.scope.cwd.clone() else {
            return;
        };
        let texts: Vec<&str> = arguments.iter().filter_map(Word::text).collect();
        let value_of = |option: &str| {
            let at = texts.iter().position(|text| *text == option)?;
            texts.get(at + 1).copied()
        };
        let mut sources = Vec::new();
        for text in texts.iter().take(MOST_SOURCES) {
            let path = tidy(&cwd, text);
            match self.scope.compiled.get(&path) {
                // An object that was made of some.
                Some(of_object) => sources.extend(of_object.iter().cloned()),
                None if is_source(text) => sources.push(path),
                None => {}
            }
        }
        sources.truncate(MOST_SOURCES);
        if compiler == "javac" {
            for source in sources {
                let place = match value_of("-d") {
                    Some(place) => tidy(&cwd, place),
                    None => source.parent().map(Path::to_owned).unwrap_or_default(),
                };
                if let Some(name) = source.file_stem() {
                    self.note_program(place.join(name), vec![source]);
                }
            }
            return;
        }
        // `go build .`: the program of the file of that name.
        if compiler == "go" && sources.is_empty() && texts.first() == Some(&"build") {
            let main = tidy(&cwd, "main.go");
            sources.extend(self.text_of(&main).map(|_| main));
        }
        let name = match (value_of("-o"), sources.first()) {
            (Some(name), _) => name.to_owned(),
            (None, Some(source)) if matches!(compiler, "rustc" | "ghc" | "nim") => {
                let stem = source.file_stem().map(|stem| stem.to_string_lossy());
                stem.unwrap_or_default().into_owned()
            }
            (None, _) if compiler == "go" => {
                let name = cwd.file_name().map(|name| name.to_string_lossy());
                name.unwrap_or_default().into_owned()
            }
            _ => "a.out".to_owned(),
        };
        self.note_program(tidy(&cwd, &name), sources);
    }

    /// Reads the source of a program that is built and executed at once. What else is executed on
    /// the way stays unknown.
    fn run_source(&mut self, source: &Path, arguments: &[Word]) {
        if let Some(text) = self.text_of(source) {
            self.code(Some("compiled"), &text, Some(source), arguments);
            self.literal_arguments(arguments);
        }
    }

    /// `cargo run -- ARGUMENTS`.
    pub(super) fn cargo_run(&mut self, cwd: &Path, parsed: &Parsed) -> bool {
        let name = parsed.options.iter().find(|given| given.name == "--bin");
        let name = name.and_then(|given| given.value.as_ref()?.text());
        if let Some(source) = self.cargo_main(cwd, name) {
            self.run_source(&source, &parsed.operands);
        } else {
            self.literal_arguments(&parsed.operands);
        }
        false
    }

    /// `go run FILE ARGUMENTS`.
    pub(super) fn go_run(&mut self, cwd: &Path, parsed: &Parsed) -> bool {
        if let Some((first, rest)) = parsed.operands.split_first() {
            let source = match first.text() {
                Some(text) if is_source(text) => tidy(cwd, text),
                _ => tidy(cwd, "main.go"),
            };
            self.run_source(&source, rest);
        }
        false
    }

    /// `java -cp PLACE CLASS ARGUMENTS`, `java FILE.java`.
    pub(super) fn java(&mut self, cwd: &Path, parsed: &Parsed) -> bool {
        let Some((first, rest)) = parsed.operands.split_first() else {
            return false;
        };
        let Some(class) = first.text() else {
            return false;
        };
        if is_source(class) {
            self.read(first);
            self.run_source(&tidy(cwd, class), rest);
            return false;
        }
        let places = parsed
            .options
            .iter()
            .find(|given| matches!(given.name.as_str(), "-cp" | "-classpath" | "--class-path"));
        let places = places.and_then(|given| given.value.as_ref()?.text());
        for place in places.unwrap_or(".").split(':').take(16) {
            let name = class.replace('.', "/");
            let program = tidy(&tidy(cwd, place), &name);
            if let Some((text, source)) = self.source_of(&program) {
                self.code(Some("compiled"), &text, Some(&source), rest);
                break;
            }
        }
        self.literal_arguments(rest);
        false
    }

    /// The programs that the file of a cmake project names, where cmake puts them.
    pub(super) fn note_cmake(&mut self, cwd: &Path, parsed: &Parsed) {
        let value_of = |option: &str| {
            let given = parsed.options.iter().find(|given| given.name == option);
            given.and_then(|given| given.value.as_ref()?.text())
        };
        let operand = parsed.operands.first().and_then(Word::text);
        let project = tidy(cwd, value_of("-S").or(operand).unwrap_or("."));
        let build = tidy(cwd, value_of("-B").unwrap_or("."));
        let Some(text) = self.text_of(&project.join("CMakeLists.txt")) else {
            return;
        };
        for part in text.split("add_executable(").skip(1).take(MOST_SOURCES) {
            let inside = part.split(')').next().unwrap_or_default();
            let mut words = inside.split_whitespace();
            let Some(name) = words.next() else {
                continue;
            };
            let sources = words.filter(|word| is_source(word)).take(MOST_SOURCES);
            let sources: Vec<PathBuf> = sources.map(|word| tidy(&project, word)).collect();
            for place in [build.join(name), build.join("bin").join(name)] {
                self.note_program(place, sources.clone());
            }
        }
    }
}
