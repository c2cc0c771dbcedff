//! Files and code that a command executes: read by the shell's own grammar, or by the [`Sources`]
//! of the table.
//!
//! [`Sources`]: crate::Sources

use super::arguments::Parsed;
use crate::needs::{Unsure, tidy};
use crate::shell::Word;
use crate::shell::walk::{MOST_NESTED, Walk};
use crate::sources::{Argument, Code, CodeCommand, CodeNeeds, CommandText};
use std::path::{Path, PathBuf};

/// What code costs of the steps that a whole command may take.
const STEPS: u32 = 500;

/// File names of makefiles, in the order in which make looks for them.
const MAKEFILES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];

impl Walk<'_, '_> {
    pub(super) fn text_of(&self, path: &Path) -> Option<String> {
        if let Some((before, after)) = path.to_str().and_then(|path| path.split_once('*')) {
            return self.texts_of(before, after);
        }
        let written = self.scope.written.get(path).cloned();
        written.or_else(|| self.table.sources.as_ref()?.file(path))
    }

    /// The texts of all files of a pattern that earlier commands wrote, one after the other.
    fn texts_of(&self, before: &str, after: &str) -> Option<String> {
        let fits = |path: &PathBuf| {
            path.to_str().is_some_and(|path| {
                path.len() >= before.len() + after.len()
                    && path.starts_with(before)
                    && path.ends_with(after)
            })
        };
        let texts = self.scope.written.iter().filter(|(path, _)| fits(path));
        let texts: Vec<&str> = texts.map(|(_, text)| text.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// The text of a file that a word names, if it can be read.
    pub(crate) fn file_of(&self, word: &Word) -> Option<String> {
        let Word::Plain(name) = word else {
            return None;
        };
        let path = match (name.starts_with('/'), &self.scope.cwd) {
            (true, _) => tidy(Path::new("/"), name),
            (false, Some(cwd)) => tidy(cwd, name),
            (false, None) => return None,
        };
        self.text_of(&path)
    }

    /// Executes a file by its own name. `false` if its text or its language is not known.
    pub(super) fn run_file(&mut self, word: &Word, arguments: &[Word]) -> bool {
        let Some(path) = self.path(word, Unsure::Reads) else {
            return false;
        };
        if let Some((text, source)) = self.source_of(&path) {
            return self.code(Some("compiled"), &text, Some(&source), arguments);
        }
        let Some(text) = self.file_of(word) else {
            return false;
        };
        let Some(language) = language(&text, &path) else {
            return false;
        };
        self.code(Some(language), &text, Some(&path), arguments)
    }

    /// Reads code. `false` if its language is not known here.
    pub(super) fn code(
        &mut self,
        language: Option<&str>,
        text: &str,
        path: Option<&Path>,
        arguments: &[Word],
    ) -> bool {
        let Some(language) = language else {
            return false;
        };
        if language == "shell" {
            self.script(text, Some(arguments.to_vec()));
            return true;
        }
        let Some(sources) = self.table.sources.as_ref() else {
            return false;
        };
        if self.nested >= MOST_NESTED {
            let why = "scripts are nested too deep";
            self.needs.unsure(Unsure::Everything, why);
            return true;
        }
        self.scope.steps = self.scope.steps.saturating_add(STEPS);
        let arguments: Vec<Argument> = arguments.iter().map(argument).collect();
        let file = |path: &Path| self.text_of(path);
        let written: Vec<PathBuf> = self.scope.written.keys().cloned().collect();
        let found = sources.code(&Code {
            language,
            text,
            path,
            cwd: self.scope.cwd.as_deref(),
            home: self.scope.home.as_deref(),
            arguments: &arguments,
            file: &file,
            written: &written,
        });
        let Some(CodeNeeds { needs, commands }) = found else {
            return false;
        };
        self.needs.merge(needs);
        self.nested += 1;
        for command in commands {
            self.apart(|walk| walk.started(command));
        }
        self.nested -= 1;
        true
    }

    /// A command that code starts.
    fn started(&mut self, command: CodeCommand) {
        if let Some(cwd) = command.cwd {
            self.scope.cwd = Some(cwd);
        }
        match command.text {
            CommandText::Script(text) => self.script(&text, Some(Vec::new())),
            CommandText::Words(words) => {
                let words: Vec<Word> = words.into_iter().map(word).collect();
                self.call(&words);
            }
        }
    }

    /// `python -m MODULE`. `false` if there is no `-m`, or the module is not known.
    pub(super) fn python_module(&mut self, arguments: &[Word]) -> bool {
        let mut at = arguments.iter().enumerate();
        let found = at.find_map(|(index, word)| match word.text() {
            Some("-m") => Some(Some(index)),
            Some(option) if option.starts_with('-') => None,
            _ => Some(None),
        });
        let Some(index) = found.flatten() else {
            return false;
        };
        let rest = arguments.get(index + 1..).unwrap_or_default();
        let Some((Word::Plain(module), rest)) = rest.split_first() else {
            return false;
        };
        match module.as_str() {
            "venv" | "virtualenv" => {
                let operands = rest.iter().filter(|word| !word.known().starts_with('-'));
                operands
                    .cloned()
                    .collect::<Vec<_>>()
                    .iter()
                    .for_each(|word| self.write(word));
                true
            }
            "http.server" | "pydoc" => {
                self.read(&Word::Plain(".".to_owned()));
                true
            }
            "json.tool" => {
                rest.iter()
                    .filter(|word| !word.known().starts_with('-'))
                    .for_each(|word| self.read(word));
                true
            }
            "timeit" | "this" | "site" | "platform" | "calendar" | "ensurepip" | "sysconfig" => {
                true
            }
            "build" => {
                self.read(&Word::Plain(".".to_owned()));
                let own = rest
                    .iter()
                    .any(|word| matches!(word.text(), Some("-o" | "--outdir")));
                match own {
                    true => self.literal_arguments(rest),
                    false => self.write(&Word::Plain("dist".to_owned())),
                }
                self.unread(&[".".to_owned()], "it executes the build of the package");
                true
            }
            "compileall" | "zipfile" | "tarfile" | "gzip" | "base64" | "tabnanny"
            | "py_compile" => {
                self.literal_arguments(rest);
                true
            }
            // They execute a script that their arguments name.
            "cProfile"
            | "profile"
            | "pdb"
            | "trace"
            | "coverage"
            | "torch.distributed.run"
            | "torch.distributed.launch"
            | "accelerate.commands.launch"
            | "kernprof"
            | "memory_profiler"
            | "streamlit"
            | "debugpy" => {
                let script = rest.iter().position(|word| word.known().ends_with(".py"));
                let (options, script) = rest.split_at(script.unwrap_or(rest.len()));
                self.literal_arguments(options);
                if !script.is_empty() {
                    let words: Vec<Word> = std::iter::once(Word::Plain("python".to_owned()))
                        .chain(script.iter().cloned())
                        .collect();
                    self.call(&words);
                }
                true
            }
            name if self.table.tool(name).is_some() => {
                let mut words = vec![Word::Plain(name.to_owned())];
                words.extend_from_slice(rest);
                self.call(&words);
                true
            }
            name => {
                let place = name.replace('.', "/");
                let mut files = [format!("{place}.py"), format!("{place}/__main__.py")].into_iter();
                let found = files.find_map(|file| {
                    let word = Word::Plain(file);
                    Some((self.file_of(&word)?, word))
                });
                let Some((text, word)) = found else {
                    if self.table.sources.is_none() {
                        return false;
                    }
                    // A module that is installed, or of the project.
                    self.literal_arguments(rest);
                    let why = format!("it executes the module `{name}`");
                    self.unread(&[".".to_owned()], &why);
                    return true;
                };
                let path = self.path(&word, Unsure::Reads);
                self.read(&word);
                let package = Word::Plain(format!(
                    "{}/__init__.py",
                    place.split('/').next().unwrap_or_default()
                ));
                if self.file_of(&package).is_some() {
                    self.read(&package);
                }
                self.code(Some("python"), &text, path.as_deref(), rest)
            }
        }
    }

    /// Follows the file that says what a tool executes. `false` if it cannot be read.
    pub(super) fn follow(&mut self, what: &str, name: &str, parsed: &Parsed) -> bool {
        let Some(cwd) = self.scope.cwd.clone() else {
            return false;
        };
        let first = |names: &[&str]| -> Option<(PathBuf, String)> {
            let mut paths = names.iter().map(|name| tidy(&cwd, name));
            paths.find_map(|path| Some((path.clone(), self.text_of(&path)?)))
        };
        match what {
            "git-hooks" => return self.git_hooks(&cwd),
            "cargo-run" => return self.cargo_run(&cwd, parsed),
            "go-run" => return self.go_run(&cwd, parsed),
            "java" => return self.java(&cwd, parsed),
            "cmake" => {
                self.note_cmake(&cwd, parsed);
                return false;
            }
            _ => {}
        }
        let (found, arguments) = match what {
            "make" => {
                let given = parsed
                    .options
                    .iter()
                    .find(|given| matches!(given.name.as_str(), "-f" | "--file"));
                let given = given.and_then(|given| given.value.as_ref()?.text().map(str::to_owned));
                let found = match &given {
                    Some(file) => first(&[file]),
                    None => first(&MAKEFILES),
                };
                (found, parsed.operands.clone())
            }
            "package-scripts" => {
                let mut arguments = parsed.operands.clone();
                // `npm test` and `npm start` are scripts of that name.
                if let Some(script) = name
                    .rsplit(' ')
                    .next()
                    .filter(|word| !word.starts_with("run"))
                {
                    arguments.insert(0, Word::Plain(script.to_owned()));
                }
                (first(&["package.json"]), arguments)
            }
            "pytest" => {
                let path = cwd.join("pytest");
                (Some((path, String::new())), parsed.operands.clone())
            }
            _ => return false,
        };
        let Some((path, text)) = found else {
            return false;
        };
        self.code(Some(what), &text, Some(&path), &arguments)
    }
}

/// Hooks that commands of a working tree run.
const HOOKS: [&str; 14] = [
    "pre-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "post-checkout",
    "pre-merge-commit",
    "post-merge",
    "pre-rebase",
    "post-rewrite",
    "pre-push",
    "reference-transaction",
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
];

/// Settings with which git executes something, or takes its settings from elsewhere.
const EXECUTES: [&str; 16] = [
    "hookspath",
    "filter",
    "fsmonitor",
    "sshcommand",
    "alias",
    "include",
    "editor",
    "pager",
    "textconv",
    "diff",
    "merge",
    "credential",
    "gpg",
    "askpass",
    "proxy",
    "command",
];

/// Sections of git's settings that only hold names, texts and choices.
const PLAIN_SECTIONS: [&str; 8] = [
    "user",
    "author",
    "committer",
    "advice",
    "color",
    "safe",
    "log",
    "column",
];

/// Settings of other sections that execute nothing and lead nowhere else.
const PLAIN_SETTINGS: [&str; 18] = [
    "init.defaultbranch",
    "core.autocrlf",
    "core.quotepath",
    "core.filemode",
    "core.bare",
    "core.longpaths",
    "core.compression",
    "gc.auto",
    "pull.rebase",
    "pull.ff",
    "merge.ff",
    "rebase.autostash",
    "push.default",
    "fetch.prune",
    "http.sslverify",
    "http.postbuffer",
    "diff.renames",
    "protocol.file.allow",
];

/// Whether a setting of git, `key=value`, can make it execute something, or contact another host.
pub(super) fn git_setting_executes(setting: &str) -> bool {
    let key = setting.split('=').next().unwrap_or_default();
    let key = key.to_ascii_lowercase();
    let section = key.split('.').next().unwrap_or_default();
    let unsigned = key.ends_with(".gpgsign") && setting.ends_with("=false");
    !unsigned && !PLAIN_SECTIONS.contains(&section) && !PLAIN_SETTINGS.contains(&key.as_str())
}

impl Walk<'_, '_> {
    /// The hooks of the repository around a directory. `false` if they cannot be known: without
    /// its settings, or with some that make git execute something else.
    fn git_hooks(&mut self, cwd: &Path) -> bool {
        let top = cwd.ancestors().find_map(|place| {
            let git = place.join(".git");
            Some((self.text_of(&git.join("config"))?, git))
        });
        let Some((settings, git)) = top else {
            return false;
        };
        let global = self
            .scope
            .home
            .as_ref()
            .and_then(|home| self.text_of(&home.join(".gitconfig")));
        let settings = format!("{settings}\n{}", global.unwrap_or_default()).to_ascii_lowercase();
        if EXECUTES.iter().any(|key| settings.contains(key)) {
            return false;
        }
        for hook in HOOKS {
            let path = git.join("hooks").join(hook);
            if let Some(text) = self.text_of(&path) {
                self.needs.read(path.clone());
                let language = language(&text, &path);
                if !self.code(language, &text, Some(&path), &[]) {
                    return false;
                }
            }
        }
        true
    }
}

fn argument(word: &Word) -> Argument {
    match word {
        Word::Plain(text) => Argument {
            text: text.clone(),
            whole: true,
        },
        Word::Pattern { text, fixed } => Argument {
            text: text.get(..*fixed).unwrap_or_default().to_owned(),
            whole: false,
        },
        Word::Open { known, .. } => Argument {
            text: known.clone(),
            whole: false,
        },
    }
}

fn word(argument: Argument) -> Word {
    match argument.whole {
        true => Word::Plain(argument.text),
        false => Word::Open {
            source: format!("{}…", argument.text),
            known: argument.text,
        },
    }
}

/// The language of a file that is executed, by its first line, or by its name.
fn language(text: &str, path: &Path) -> Option<&'static str> {
    if let Some(line) = text.strip_prefix("#!") {
        let line = line.lines().next().unwrap_or_default();
        let mut words = line
            .split_whitespace()
            .filter(|word| !word.starts_with('-'));
        let program = words.next()?.rsplit('/').next()?;
        let program = match program {
            "env" => words.next()?,
            other => other,
        };
        let plain = program.trim_end_matches(|char: char| char.is_ascii_digit() || char == '.');
        return match plain {
            "sh" | "bash" | "dash" | "zsh" | "ksh" => Some("shell"),
            "python" | "pypy" => Some("python"),
            "node" | "nodejs" | "tsx" | "ts-node" | "deno" | "bun" => Some("javascript"),
            "perl" => Some("perl"),
            "ruby" => Some("ruby"),
            "awk" | "gawk" | "mawk" => Some("awk"),
            "make" => Some("make"),
            "expect" => Some("expect"),
            "php" => Some("php"),
            "Rscript" => Some("r"),
            _ => None,
        };
    }
    match path.extension()?.to_str()? {
        "sh" | "bash" => Some("shell"),
        "py" => Some("python"),
        _ => None,
    }
}
