//! The data files other than system calls.

use crate::{Failure, check_reason, read};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PathEntry {
    path: String,
    why: String,
    #[serde(default)]
    root_only: bool,
    content: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SystemFile {
    directory: Vec<PathEntry>,
    etc: Vec<PathEntry>,
    etc_written: Vec<PathEntry>,
    etc_fixed: Vec<PathEntry>,
    device: Vec<PathEntry>,
    proc_masked: Vec<PathEntry>,
    proc_read_only: Vec<PathEntry>,
    proc_fixed: Vec<PathEntry>,
}

pub(crate) fn system(path: &Path) -> Result<String, Failure> {
    let file: SystemFile = read(path)?;
    let mut code = String::new();
    for entry in file.directory.iter().chain(&file.device) {
        if !entry.path.starts_with('/') {
            return Err(format!(
                "{}: `{}` is not absolute",
                path.display(),
                entry.path
            ));
        }
    }
    let plain = [
        (
            "Directories of the host that every cage sees, read-only.",
            "DIRECTORIES",
            &file.directory,
        ),
        (
            "Below `/etc`, bound read-only from the host where they exist.",
            "ETC",
            &file.etc,
        ),
        (
            "Below `/etc`, written for the cage.",
            "ETC_WRITTEN",
            &file.etc_written,
        ),
        ("Device nodes.", "DEVICES", &file.device),
        (
            "Below `/proc`, readable and not writable.",
            "PROC_READ_ONLY",
            &file.proc_read_only,
        ),
    ];
    for (doc, name, entries) in plain {
        let relative = name.starts_with("ETC") || name.starts_with("PROC");
        check_paths(path, entries, relative)?;
        emit_paths(&mut code, doc, name, entries);
    }
    check_paths(path, &file.proc_masked, true)?;
    code.push_str("/// Below `/proc`, hidden.\npub static PROC_MASKED: &[Masked] = &[\n");
    for PathEntry {
        path,
        why,
        root_only,
        ..
    } in &file.proc_masked
    {
        let _ = writeln!(
            code,
            "    Masked {{ path: {path:?}, why: {why:?}, root_only: {root_only} }},"
        );
    }
    code.push_str("];\n");
    let fixed = [
        (
            "Below `/etc`, a fixed text that replaces the host's directory around it.",
            "ETC_FIXED",
            &file.etc_fixed,
        ),
        (
            "Below `/proc`, replaced by a fixed text.",
            "PROC_FIXED",
            &file.proc_fixed,
        ),
    ];
    for (doc, name, entries) in fixed {
        check_paths(path, entries, true)?;
        emit_fixed(&mut code, path, (doc, name), entries)?;
    }
    Ok(code)
}

fn emit_fixed(
    code: &mut String,
    file: &Path,
    (doc, name): (&str, &str),
    entries: &[PathEntry],
) -> Result<(), Failure> {
    let _ = writeln!(code, "/// {doc}\npub static {name}: &[Fixed] = &[");
    for PathEntry {
        path, why, content, ..
    } in entries
    {
        let content = content
            .as_ref()
            .ok_or_else(|| format!("{}: `{path}` has no content", file.display()))?;
        let _ = writeln!(
            code,
            "    Fixed {{ path: {path:?}, why: {why:?}, content: {content:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(())
}

/// A file that holds one array of paths with reasons.
pub(crate) fn paths(path: &Path, key: &str, name: &str) -> Result<String, Failure> {
    let mut file: BTreeMap<String, Vec<PathEntry>> = read(path)?;
    let entries = file
        .remove(key)
        .ok_or_else(|| format!("{}: [[{key}]] is missing", path.display()))?;
    if let Some(other) = file.keys().next() {
        return Err(format!("{}: [[{other}]] is not known here", path.display()));
    }
    check_paths(path, &entries, true)?;
    let mut code = String::new();
    emit_paths(&mut code, "Every entry.", name, &entries);
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SensitiveEntry {
    path: String,
    why: String,
    #[serde(default)]
    hidden: bool,
    #[serde(default)]
    holds: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SensitiveFile {
    example: Vec<PathEntry>,
    sensitive: Vec<SensitiveEntry>,
}

/// Names of files that often hold secrets, and of those that only look alike.
pub(crate) fn sensitive(path: &Path) -> Result<String, Failure> {
    let file: SensitiveFile = read(path)?;
    check_paths(path, &file.example, true)?;
    let mut code = String::new();
    emit_paths(
        &mut code,
        "Names that only look alike.",
        "EXAMPLES",
        &file.example,
    );
    let mut known = BTreeSet::new();
    code.push_str("/// Every entry.\npub static NAMES: &[Sensitive] = &[\n");
    for entry in &file.sensitive {
        let SensitiveEntry {
            path: name,
            why,
            hidden,
            holds,
        } = entry;
        check_reason(path, name, why)?;
        if name.contains('/') || name.matches('*').count() > 1 || !known.insert(name) {
            return Err(format!(
                "{}: `{name}` is not one name with at most one star, or is there twice",
                path.display()
            ));
        }
        if !hidden && !holds.is_empty() {
            return Err(format!(
                "{}: `{name}` is not hidden, but says when",
                path.display()
            ));
        }
        let _ = writeln!(
            code,
            "    Sensitive {{ path: {name:?}, why: {why:?}, hidden: {hidden}, holds: &{holds:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}

/// Places that are given by an explicit word only; absolute, or below `~/`.
pub(crate) fn guarded(path: &Path) -> Result<String, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Guarded {
        whole: Vec<PathEntry>,
        secret: Vec<PathEntry>,
        executed: Vec<PathEntry>,
    }
    let file: Guarded = read(path)?;
    let mut code = String::new();
    for (doc, name, entries) in [
        ("Not to be given as a whole.", "WHOLE", &file.whole),
        ("Secrets of the system.", "SECRETS", &file.secret),
        (
            "Paths that the host executes or trusts.",
            "EXECUTED",
            &file.executed,
        ),
    ] {
        let (home, system): (Vec<_>, Vec<_>) = entries
            .iter()
            .cloned()
            .partition(|entry| entry.path.starts_with("~/"));
        check_paths(path, &system, false)?;
        check_paths(path, &home, true)?;
        emit_paths(&mut code, doc, name, entries);
    }
    Ok(code)
}

fn check_paths(path: &Path, entries: &[PathEntry], relative: bool) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for entry in entries {
        check_reason(path, &entry.path, &entry.why)?;
        let plain = Path::new(entry.path.trim_start_matches('/'))
            .components()
            .all(|component| matches!(component, std::path::Component::Normal(_)));
        if !plain || entry.path.starts_with('/') == relative || entry.path.ends_with('/') {
            return Err(format!(
                "{}: `{}` is not a plain path",
                path.display(),
                entry.path
            ));
        }
        if !seen.insert(&entry.path) {
            return Err(format!(
                "{}: `{}` is listed twice",
                path.display(),
                entry.path
            ));
        }
    }
    Ok(())
}

fn emit_paths(code: &mut String, doc: &str, name: &str, entries: &[PathEntry]) {
    let _ = writeln!(code, "/// {doc}\npub static {name}: &[Listed] = &[");
    for PathEntry { path, why, .. } in entries {
        let _ = writeln!(code, "    Listed {{ path: {path:?}, why: {why:?} }},");
    }
    code.push_str("];\n");
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CapabilityFile {
    allowed: Vec<Capability>,
    refused: Vec<Capability>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Capability {
    name: String,
    number: u8,
    why: String,
    group: Option<String>,
    boot: Option<String>,
}

/// The last capability of Linux 6.18, CAP_CHECKPOINT_RESTORE.
const LAST_CAPABILITY: u8 = 40;

pub(crate) fn capabilities(path: &Path) -> Result<String, Failure> {
    let file: CapabilityFile = read(path)?;
    let mut by_number = BTreeMap::new();
    for (capability, allowed) in file
        .allowed
        .iter()
        .map(|capability| (capability, true))
        .chain(file.refused.iter().map(|capability| (capability, false)))
    {
        check_reason(path, &capability.name, &capability.why)?;
        if !capability.name.starts_with("CAP_") {
            return Err(format!(
                "{}: `{}` does not start with CAP_",
                path.display(),
                capability.name
            ));
        }
        if by_number
            .insert(capability.number, (capability, allowed))
            .is_some()
        {
            return Err(format!(
                "{}: number {} is listed twice",
                path.display(),
                capability.number
            ));
        }
    }
    if let Some(missing) = (0..=LAST_CAPABILITY).find(|number| !by_number.contains_key(number)) {
        return Err(format!(
            "{}: capability {missing} is missing",
            path.display()
        ));
    }
    let mut code =
        String::from("/// Every capability, by number.\npub static ENTRIES: &[Capability] = &[\n");
    for (number, (capability, allowed)) in by_number {
        let Capability {
            name,
            why,
            group,
            boot,
            ..
        } = capability;
        let _ = writeln!(
            code,
            "    Capability {{ name: {name:?}, number: {number}, allowed: {allowed}, why: {why:?}, group: {group:?}, boot: {boot:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandFile {
    command: Vec<CommandEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandEntry {
    names: Vec<String>,
    profile: String,
    #[serde(default)]
    bundles: Vec<String>,
    #[serde(default)]
    keys: Vec<String>,
    why: String,
}

pub(crate) fn commands(
    path: &Path,
    profiles: &BTreeSet<String>,
    known_keys: &BTreeSet<String>,
) -> Result<String, Failure> {
    let file: CommandFile = read(path)?;
    let mut by_name = BTreeMap::new();
    for CommandEntry {
        names,
        profile,
        bundles,
        keys,
        why,
    } in &file.command
    {
        check_reason(path, &names.join(", "), why)?;
        if !profiles.contains(profile) {
            return Err(format!("{}: unknown profile `{profile}`", path.display()));
        }
        if let Some(key) = keys.iter().find(|key| !known_keys.contains(*key)) {
            return Err(format!("{}: unknown key `{key}`", path.display()));
        }
        for name in names {
            if by_name
                .insert(name, (profile, bundles, keys, why))
                .is_some()
            {
                return Err(format!("{}: `{name}` is listed twice", path.display()));
            }
        }
    }
    let mut code = String::from(
        "/// Commands and their profiles, ordered by name.\npub static ENTRIES: &[CommandProfile] = &[\n",
    );
    for (name, (profile, bundles, keys, why)) in by_name {
        let _ = writeln!(
            code,
            "    CommandProfile {{ command: {name:?}, profile: {profile:?}, bundles: &{bundles:?}, keys: &{keys:?}, why: {why:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}
