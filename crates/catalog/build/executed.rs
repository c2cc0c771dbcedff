//! Files of a change that the host would execute: by name, and by shape.
//!
//! A tool's names are generated from its rule, so that a file which a tool reads under another
//! extension, with a leading dot or below `.config/` is not forgotten.

use crate::{Failure, check_reason, read};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Component, Path};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecutedFile {
    /// Extensions that tools take for one another, by the name that rules use for them.
    family: BTreeMap<String, Vec<String>>,
    tool: Vec<Tool>,
    exception: Vec<Named>,
    shape: Vec<Shape>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProtectedFile {
    protected: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    path: String,
    why: String,
}

/// A tool and the names that it reads: fixed ones, and every prefix + stem + suffix + extension.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Tool {
    name: String,
    class: String,
    why: String,
    /// Whether a directory of such a name means nothing.
    #[serde(default)]
    files: bool,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    stems: Vec<String>,
    #[serde(default = "nothing_added")]
    prefixes: Vec<String>,
    #[serde(default = "nothing_added")]
    suffixes: Vec<String>,
    #[serde(default = "nothing_added")]
    extensions: Vec<String>,
    /// Why there are no names with a dot, below `.config/`, of a local file, or in TOML: what
    /// `tests/executed_variants.rs` would demand.
    #[serde(default)]
    without: BTreeMap<String, String>,
}

fn nothing_added() -> Vec<String> {
    vec![String::new()]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    name: String,
    class: String,
    why: String,
}

/// The lists that are made of `executed.toml` and `protected.toml`.
pub(crate) struct Lists {
    pub(crate) executed: String,
    pub(crate) protected: String,
}

impl Tool {
    /// All names of the tool, in the order of its rule.
    fn variants(&self, families: &BTreeMap<String, Vec<String>>) -> Vec<String> {
        let mut names = self.names.clone();
        let extensions = self.extensions.iter().flat_map(|extension| {
            let family = families.get(extension).map_or(&[][..], Vec::as_slice);
            match (family.is_empty(), extension.as_str()) {
                (false, _) => family.iter().map(|member| format!(".{member}")).collect(),
                (true, "") => vec![String::new()],
                (true, single) => vec![format!(".{single}")],
            }
        });
        let extensions: Vec<String> = extensions.collect();
        for prefix in &self.prefixes {
            for stem in &self.stems {
                for suffix in &self.suffixes {
                    for extension in &extensions {
                        names.push(format!("{prefix}{stem}{suffix}{extension}"));
                    }
                }
            }
        }
        names
    }
}

fn class_of(path: &Path, name: &str, class: &str) -> Result<&'static str, Failure> {
    match class {
        "withheld" => Ok("Withheld"),
        "flagged" => Ok("Flagged"),
        other => Err(format!(
            "{}: `{name}` has the class `{other}`, expected withheld or flagged",
            path.display()
        )),
    }
}

fn check_name(path: &Path, name: &str) -> Result<(), Failure> {
    let plain = Path::new(name)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    let wrong = |what: &str| Err(format!("{}: `{name}` {what}", path.display()));
    if !plain || name.is_empty() || name.ends_with('/') {
        return wrong("is not a plain path");
    }
    if name.split('/').any(|part| part.matches('*').count() > 1) {
        return wrong("has two stars in one part");
    }
    // What lies beyond a link is looked up by its name.
    if name.contains('/') && name.contains('*') {
        return wrong("has a star and a slash");
    }
    Ok(())
}

pub(crate) fn emit(path: &Path, protected_path: &Path) -> Result<Lists, Failure> {
    let file: ExecutedFile = read(path)?;
    let protected: ProtectedFile = read(protected_path)?;
    // By its name in lower case: names are compared without regard to case.
    let mut listed: BTreeMap<String, &str> = BTreeMap::new();
    let mut of_tools = String::new();
    let mut also_protected: Vec<(String, &str)> = Vec::new();
    let is_protected = |name: &str| protected.protected.iter().any(|entry| entry.path == name);
    for tool in &file.tool {
        check_reason(path, &tool.name, &tool.why)?;
        for why in tool.without.values() {
            check_reason(path, &tool.name, why)?;
        }
        let class = class_of(path, &tool.name, &tool.class)?;
        let variants = tool.variants(&file.family);
        if variants.is_empty() {
            return Err(format!("{}: `{}` has no names", path.display(), tool.name));
        }
        let any_protected = variants.iter().any(|name| is_protected(name));
        for name in variants {
            check_name(path, &name)?;
            if let Some(other) = listed.insert(name.to_ascii_lowercase(), &tool.name) {
                return Err(format!(
                    "{}: `{name}` of `{}` is a name of `{other}` too",
                    path.display(),
                    tool.name
                ));
            }
            if any_protected && !is_protected(&name) && !name.contains('*') {
                also_protected.push((name.clone(), &tool.why));
            }
            emit_name(&mut of_tools, &name, (class, tool.files), &tool.why);
        }
    }
    // What git itself reads is not judged by name: the git directory has its own rules.
    let mut inherited = String::new();
    for Named { path: name, why } in &protected.protected {
        let in_git =
            Path::new(name).components().next() == Some(Component::Normal(".git".as_ref()));
        if !in_git && !listed.contains_key(&name.to_ascii_lowercase()) {
            emit_name(&mut inherited, name, ("Withheld", false), why);
        }
    }
    let mut executed = format!(
        "/// Every name.\npub static NAMES: &[Executed] = &[\n{inherited}{of_tools}];\n\
         /// Every shape.\npub static SHAPES: &[Executed] = &[\n"
    );
    for Shape { name, class, why } in &file.shape {
        check_reason(path, name, why)?;
        emit_name(
            &mut executed,
            name,
            (class_of(path, name, class)?, false),
            why,
        );
    }
    executed.push_str("];\n/// Names that look like variants of a listed one, and are not read.\n");
    executed.push_str("pub static EXCEPTIONS: &[Listed] = &[\n");
    let mut seen = BTreeSet::new();
    for Named { path: name, why } in &file.exception {
        check_reason(path, name, why)?;
        if !seen.insert(name) || listed.contains_key(&name.to_ascii_lowercase()) {
            return Err(format!(
                "{}: the exception `{name}` is listed, or stands there twice",
                path.display()
            ));
        }
        let _ = writeln!(executed, "    Listed {{ path: {name:?}, why: {why:?} }},");
    }
    executed.push_str("];\n/// Extensions that tools take for one another.\n");
    executed.push_str("pub static FAMILIES: &[&[&str]] = &[\n");
    for family in file.family.values() {
        let _ = writeln!(executed, "    &{family:?},");
    }
    executed.push_str("];\n");
    Ok(Lists {
        executed,
        protected: emit_protected(protected_path, &protected, &also_protected)?,
    })
}

fn emit_name(code: &mut String, name: &str, (class, files_only): (&str, bool), why: &str) {
    let _ = writeln!(
        code,
        "    Executed {{ path: {name:?}, class: Class::{class}, why: {why:?}, files_only: {files_only} }},"
    );
}

/// What is read-only in a direct workspace: the entries, and every other name under which the
/// tool of an entry reads the same settings.
fn emit_protected(
    path: &Path,
    file: &ProtectedFile,
    variants: &[(String, &str)],
) -> Result<String, Failure> {
    let mut code = String::from("/// Every entry.\npub static ENTRIES: &[Listed] = &[\n");
    let mut seen = BTreeSet::new();
    for Named { path: name, why } in &file.protected {
        check_reason(path, name, why)?;
        check_name(path, name)?;
        if !seen.insert(name.as_str()) {
            return Err(format!("{}: `{name}` stands there twice", path.display()));
        }
        let _ = writeln!(code, "    Listed {{ path: {name:?}, why: {why:?} }},");
    }
    for (name, why) in variants {
        let _ = writeln!(code, "    Listed {{ path: {name:?}, why: {why:?} }},");
    }
    code.push_str("];\n");
    Ok(code)
}
