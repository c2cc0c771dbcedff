//! What the host would execute in a change: by name, and by shape.

use crate::{Failure, check_reason, read};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Component, Path};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecutedFile {
    withheld: Vec<Named>,
    flagged: Vec<Named>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    name: String,
    class: String,
    why: String,
}

pub(crate) fn emit(path: &Path, protected: &Path) -> Result<String, Failure> {
    let file: ExecutedFile = read(path)?;
    let protected: ProtectedFile = read(protected)?;
    let wrong = |what: String| Err(format!("{}: {what}", path.display()));
    let flagged: BTreeSet<&str> = file.flagged.iter().map(|entry| &*entry.path).collect();
    // What git itself reads is not judged by name: the git directory has rules of its own.
    let inherited = protected.protected.iter().filter(|entry| {
        !flagged.contains(&*entry.path)
            && Path::new(&entry.path).components().next()
                != Some(Component::Normal(".git".as_ref()))
    });
    let mut seen = BTreeSet::new();
    let mut code = String::from("/// Every name.\npub static NAMES: &[Executed] = &[\n");
    let classes = [
        ("Withheld", inherited.collect::<Vec<_>>()),
        ("Withheld", file.withheld.iter().collect()),
        ("Flagged", file.flagged.iter().collect()),
    ];
    for (class, entries) in classes {
        for Named { path: name, why } in entries {
            check_reason(path, name, why)?;
            let plain = Path::new(name)
                .components()
                .all(|part| matches!(part, Component::Normal(_)));
            if !plain || name.ends_with('/') || !seen.insert(name) {
                return wrong(format!("`{name}` is not plain, or twice there"));
            }
            if name.split('/').any(|part| part.matches('*').count() > 1) {
                return wrong(format!("`{name}` has two stars in one part"));
            }
            let _ = writeln!(
                code,
                "    Executed {{ path: {name:?}, class: Class::{class}, why: {why:?} }},"
            );
        }
    }
    code.push_str("];\n/// Every shape.\npub static SHAPES: &[Executed] = &[\n");
    for Shape { name, class, why } in &file.shape {
        check_reason(path, name, why)?;
        let class = match class.as_str() {
            "withheld" => "Withheld",
            "flagged" => "Flagged",
            other => return wrong(format!("`{name}` has the class `{other}`")),
        };
        let _ = writeln!(
            code,
            "    Executed {{ path: {name:?}, class: Class::{class}, why: {why:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}
