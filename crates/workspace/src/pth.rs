//! Modules that a `.pth` file of the user's imports: a Python runs them whenever it starts.
//!
//! A `.pth` in a directory of packages adds directories to the path of modules, and a line that
//! begins with `import` is run as it is. The file itself is withheld by its name; what it imports
//! is code like any other by its name, and is found here. Files that the agent made are not read:
//! they stay aside themselves.

use crate::content::read_bounded;
use crate::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The most that is read of one: Python itself takes any size, and none is as large.
const LARGEST: u64 = 1024 * 1024;

/// Modules of Python's own library that such lines use. That library comes first on the path, so
/// a module of the same name elsewhere is not what is imported.
const OWN_LIBRARY: [&str; 12] = [
    "builtins",
    "ctypes",
    "importlib",
    "io",
    "json",
    "os",
    "pathlib",
    "re",
    "site",
    "sys",
    "types",
    "warnings",
];

/// What the files of one directory of packages add and import.
#[derive(Debug, Default, PartialEq, Eq)]
struct Site {
    directories: BTreeSet<PathBuf>,
    modules: BTreeSet<String>,
}

/// All that Pythons import when they start, by the `.pth` files of the user's.
#[derive(Debug, Default)]
pub(crate) struct StartupImports(BTreeMap<PathBuf, Site>);

impl StartupImports {
    /// Takes over a `.pth` file of a real tree.
    pub(crate) fn add_below(&mut self, root: BorrowedFd<'_>, real: &Path, path: &Path) {
        // One that cannot be read is not read by the user's Python either.
        let file = tree::open_file_below(root, path).ok();
        let text = file.and_then(|file| read_bounded(&file, LARGEST).ok().flatten());
        if let Some(text) = text {
            let directory = real.join(path.parent().unwrap_or(Path::new("")));
            self.add(&directory, &String::from_utf8_lossy(&text));
        }
    }

    /// Takes over the `.pth` files of the environment that the user works in, and of the user's
    /// own packages: they may name directories of the workspace.
    pub(crate) fn add_users(&mut self) {
        let of = |variable: &str, below: &str| {
            let base = std::env::var_os(variable).map(PathBuf::from);
            base.filter(|base| base.is_absolute())
                .map(|base| base.join(below))
        };
        for libraries in [of("VIRTUAL_ENV", "lib"), of("HOME", ".local/lib")]
            .into_iter()
            .flatten()
        {
            let Ok(pythons) = std::fs::read_dir(libraries) else {
                continue;
            };
            for python in pythons.flatten() {
                let packages = python.path().join("site-packages");
                let Ok(root) = tree::open_root(&packages) else {
                    continue;
                };
                for name in tree::names(root.as_fd()).unwrap_or_default() {
                    if is_path_file(&name) {
                        self.add_below(root.as_fd(), &packages, Path::new(&name));
                    }
                }
            }
        }
    }

    fn add(&mut self, directory: &Path, text: &str) {
        let site = self.0.entry(directory.to_owned()).or_default();
        site.directories.insert(directory.to_owned());
        for line in text.lines() {
            let line = line.trim_end();
            if line.starts_with("import ") || line.starts_with("import\t") {
                site.modules.extend(imported(line));
            } else if !line.is_empty() && !line.starts_with('#') {
                site.directories.insert(plain(&directory.join(line)));
            }
        }
    }

    /// What of a place is imported when a Python starts: the module's file or directory.
    pub(crate) fn module_of(&self, place: &Path) -> Option<PathBuf> {
        let sites = self.0.values().filter(|site| !site.modules.is_empty());
        for site in sites {
            for directory in &site.directories {
                let Ok(below) = place.strip_prefix(directory) else {
                    continue;
                };
                let mut parts = below.components().map(Component::as_os_str);
                let Some(first) = parts.next() else {
                    continue;
                };
                let mut root = directory.join(first);
                let mut module = first;
                // Compiled, it lies one level deeper.
                if first == "__pycache__" {
                    let Some(compiled) = parts.next() else {
                        continue;
                    };
                    root.push(compiled);
                    module = compiled;
                }
                if site.modules.iter().any(|wanted| is_module(module, wanted)) {
                    return Some(root);
                }
            }
        }
        None
    }
}

/// Whether a name is that of a `.pth` file.
pub(crate) fn is_path_file(name: &OsStr) -> bool {
    name.as_bytes().ends_with(b".pth")
}

/// Whether a file or directory is the module of a name: `x`, `x.py`, `x.cpython-312.so`.
fn is_module(name: &OsStr, module: &str) -> bool {
    let rest = name.as_bytes().strip_prefix(module.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// The modules that a line imports, by statements and by the usual functions; also in the text
/// that it hands to `exec`. The outermost package of each: its own code runs first.
fn imported(line: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut words: Vec<&str> = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
        rest = &rest[start..];
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let end = if end == 0 {
            rest.chars().next().map_or(rest.len(), char::len_utf8)
        } else {
            end
        };
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    let mut found = BTreeSet::new();
    let mut add = |word: &str| {
        let module = word.split('.').next().unwrap_or_default();
        let begins = module.chars().next();
        let is_name = begins.is_some_and(|c| c.is_alphabetic() || c == '_');
        if is_name && !OWN_LIBRARY.contains(&module) {
            found.insert(module.to_owned());
        }
    };
    for (at, word) in words.iter().enumerate() {
        let after = &words[at + 1..];
        match *word {
            "import" if at < 2 || words[at - 2] != "from" => {
                // `a, b.c as d, e` up to whatever ends the statement.
                let mut wants_name = true;
                for word in after {
                    match *word {
                        "," => wants_name = true,
                        word if wants_name => {
                            add(word);
                            wants_name = false;
                        }
                        word if word.starts_with(is_word) => {}
                        _ => break,
                    }
                }
            }
            "from" => after.first().copied().into_iter().for_each(&mut add),
            word if word.ends_with("__import__") || word.ends_with("import_module") => {
                let text = after
                    .iter()
                    .skip_while(|word| matches!(**word, "(" | "'" | "\""));
                text.copied().take(1).for_each(&mut add);
            }
            _ => {}
        }
    }
    found
}

/// A path without `.` and `..`, as names.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_import_name_their_modules() {
        for (line, modules) in [
            ("import hook", &["hook"][..]),
            ("import\thook", &["hook"]),
            ("import a.b as c, d, sys; d.install()", &["a", "d"]),
            ("import os; from pkg.sub import name; name()", &["pkg"]),
            (
                "import __editable___x_finder; __editable___x_finder.install()",
                &["__editable___x_finder"],
            ),
            (
                "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; enabled and __import__('_distutils_hack')",
                &["_distutils_hack"],
            ),
            ("import sys; exec('import hook')", &["hook"]),
            (
                "import importlib; importlib.import_module(\"late.start\")",
                &["late"],
            ),
            ("import sys, types, os", &[]),
        ] {
            let found: Vec<String> = imported(line).into_iter().collect();
            assert_eq!(found, modules, "{line}");
        }
    }

    #[test]
    fn modules_are_looked_for_where_the_files_say() {
        let mut imports = StartupImports::default();
        imports.add(
            Path::new("/w/lib/site-packages"),
            "# a comment\n../../src\nimport hook\n\nimport other.part\n",
        );
        imports.add(Path::new("/w/plain"), "../only-a-path\n");
        let module = |place: &str| imports.module_of(Path::new(place));
        for (place, root) in [
            (
                "/w/lib/site-packages/hook.py",
                "/w/lib/site-packages/hook.py",
            ),
            ("/w/src/hook/deep/x.py", "/w/src/hook"),
            ("/w/src/other", "/w/src/other"),
            (
                "/w/src/hook.cpython-312-x86_64-linux-gnu.so",
                "/w/src/hook.cpython-312-x86_64-linux-gnu.so",
            ),
            (
                "/w/src/__pycache__/hook.cpython-312.pyc",
                "/w/src/__pycache__/hook.cpython-312.pyc",
            ),
        ] {
            assert_eq!(module(place), Some(root.into()), "{place}");
        }
        for place in [
            "/w/src/hooks.py",
            "/w/src/main.py",
            "/w/src",
            "/w/hook.py",
            "/w/only-a-path/hook.py",
            "/w/src/__pycache__/main.cpython-312.pyc",
        ] {
            assert_eq!(module(place), None, "{place}");
        }
    }
}
