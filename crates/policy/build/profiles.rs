//! The defaults and the profiles that ship.
//!
//! Their texts are what users read and copy, so they go into the binary as they are. Beside
//! each goes a function that makes the same `PolicyFile`: at the start of a cage no TOML of
//! ours is parsed, which on a cold start costs more than the rest of the resolution.

use crate::{Failure, files, read, read_text, stem};
use std::fmt::Write as _;
use std::path::Path;
use toml::{Table, Value};

pub(crate) fn emit(policies: &Path) -> Result<String, Failure> {
    let mut functions = String::new();
    let defaults = embedded(&policies.join("defaults.toml"), &mut functions)?;
    let mut profiles = String::new();
    for path in files(&policies.join("profiles"))? {
        let _ = writeln!(profiles, "    {},", embedded(&path, &mut functions)?);
    }
    Ok(format!(
        "{functions}/// The defaults below every profile.\npub(crate) static DEFAULTS: Embedded = {defaults};\n\
         /// The profiles that ship.\npub(crate) static PROFILES: &[Embedded] = &[\n{profiles}];\n"
    ))
}

fn embedded(path: &Path, functions: &mut String) -> Result<String, Failure> {
    let text = read_text(path)?;
    let table: Table = read(path)?;
    let name = stem(path);
    let function = format!("file_{}", name.replace('-', "_"));
    let body = file(&table).map_err(|failure| format!("{}: {failure}", path.display()))?;
    let _ = writeln!(
        functions,
        "#[allow(clippy::needless_update)]\nfn {function}() -> PolicyFile {{\n    {body}\n}}"
    );
    let about = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("# "))
        .ok_or_else(|| {
            format!(
                "{}: the first line is to say what it is for",
                path.display()
            )
        })?;
    Ok(format!(
        "Embedded {{ name: {name:?}, about: {about:?}, text: {text:?}, file: {function} }}"
    ))
}

/// An expression of type `PolicyFile`. A key that does not exist fails to compile.
fn file(table: &Table) -> Result<String, Failure> {
    let mut fields = String::new();
    for (key, value) in table {
        let code = match value {
            Value::Table(section) => {
                let mut inner = String::new();
                for (inside, value) in section {
                    let code = match (key.as_str(), value) {
                        ("ceiling", Value::Table(part)) if inside == "drift" => drift(part)?,
                        ("ceiling", Value::Table(part)) => ceiling_part(part)?,
                        _ => field(inside, value)?,
                    };
                    let _ = write!(inner, "{}: {code}, ", inside.replace('-', "_"));
                }
                let mut name: String = key.to_owned();
                if let Some(first) = name.get_mut(..1) {
                    first.make_ascii_uppercase();
                }
                format!("crate::{name}Section {{ {inner}..Default::default() }}")
            }
            value => field(key, value)?,
        };
        let _ = write!(fields, "{}: {code}, ", key.replace('-', "_"));
    }
    Ok(format!("PolicyFile {{ {fields}..Default::default() }}"))
}

/// An expression of type `DriftSection`: numbers.
fn drift(part: &Table) -> Result<String, Failure> {
    let mut inner = String::new();
    for (key, value) in part {
        let _ = write!(inner, "{}: {}, ", key.replace('-', "_"), field(key, value)?);
    }
    Ok(format!(
        "crate::DriftSection {{ {inner}..Default::default() }}"
    ))
}

/// An expression of type `CeilingPart`: sections of lists.
fn ceiling_part(part: &Table) -> Result<String, Failure> {
    let mut sections = String::new();
    for (key, value) in part {
        let Value::Table(section) = value else {
            return Err(format!("`{key}` of a ceiling is to be a section"));
        };
        let mut inner = String::new();
        for (key, value) in section {
            let _ = write!(inner, "{}: {}, ", key.replace('-', "_"), field(key, value)?);
        }
        let mut name: String = key.to_owned();
        if let Some(first) = name.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        let _ = write!(
            sections,
            "{key}: crate::Ceiling{name} {{ {inner}..Default::default() }}, "
        );
    }
    Ok(format!(
        "crate::CeilingPart {{ {sections}..Default::default() }}"
    ))
}

fn field(key: &str, value: &Value) -> Result<String, Failure> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(format!("{text:?}")),
        _ => Err(format!("`{key}` is to hold texts")),
    };
    match value {
        Value::String(text) if key == "cpus" => Ok(format!(
            "Some(at(crate::CpusText::Text({text:?}.to_owned())))"
        )),
        Value::String(text) => Ok(format!("Some(at({text:?}.to_owned()))")),
        Value::Boolean(value) => Ok(format!("Some(at({value}))")),
        Value::Integer(value) => Ok(format!("Some(at({value}))")),
        Value::Array(items) => {
            let items = items.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            Ok(format!("texts(&[{}])", items.join(", ")))
        }
        Value::Table(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(name, value)| Ok(format!("({name:?}, {})", text(value)?)))
                .collect::<Result<Vec<_>, Failure>>()?;
            Ok(format!("pairs(&[{}])", pairs.join(", ")))
        }
        _ => Err(format!(
            "`{key}` has a value of a kind that profiles do not use"
        )),
    }
}
