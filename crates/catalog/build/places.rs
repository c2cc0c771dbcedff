//! Toolchains, caches, and files that are kept by way of a directory.

use crate::{Failure, check_reason, read};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolchainFile {
    variable: Vec<Variable>,
    toolchain: Vec<Toolchain>,
    credential: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    default: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Toolchain {
    name: String,
    #[serde(default)]
    entries: Vec<String>,
    beside: Option<String>,
    follow: Option<String>,
    #[serde(default)]
    interpreter: bool,
    parts: Vec<Part>,
    #[serde(default)]
    set: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    path: String,
    why: String,
}

pub(crate) fn toolchains(path: &Path) -> Result<String, Failure> {
    let file: ToolchainFile = read(path)?;
    let wrong = |what: String| Err(format!("{}: {what}", path.display()));
    let mut names = BTreeSet::new();
    let mut code = String::from(
        "/// Directories that an environment variable of the caller may move.\npub static VARIABLES: &[Variable] = &[\n",
    );
    for Variable { name, default } in &file.variable {
        if !default.starts_with("~/") || !names.insert(name.as_str()) {
            return wrong(format!(
                "the variable `{name}` is not below ~/, or twice there"
            ));
        }
        let _ = writeln!(
            code,
            "    Variable {{ name: {name:?}, default: {default:?} }},"
        );
    }
    let rooted = |text: &str, beside: bool| match text.split('/').next() {
        Some("" | "~") => true,
        Some("@") => beside,
        Some(first) => first
            .strip_prefix('$')
            .is_some_and(|name| names.contains(name)),
        None => false,
    };
    code.push_str("];\n/// Every toolchain.\npub static ENTRIES: &[Toolchain] = &[\n");
    for toolchain in &file.toolchain {
        let Toolchain {
            name,
            entries,
            beside,
            follow,
            interpreter,
            parts,
            set,
        } = toolchain;
        if entries.is_empty() == beside.is_none() || parts.is_empty() {
            return wrong(format!("`{name}` needs parts, and entries or beside"));
        }
        let stars = entries.iter().map(|entry| entry.matches('*').count()).min();
        for text in entries
            .iter()
            .chain(parts.iter().map(|part| &part.path))
            .chain(set.values())
            .chain(follow)
        {
            if !rooted(text, beside.is_some()) || text.ends_with('/') {
                return wrong(format!("`{name}`: `{text}` has no known root"));
            }
        }
        for part in parts {
            check_reason(path, &part.path, &part.why)?;
            if part.path.matches('*').count() > stars.unwrap_or(0) {
                return wrong(format!("`{name}`: `{}` has a star too many", part.path));
            }
            // Credentials lie beside what executes: a part that holds one is too wide.
            if let Some(held) = file
                .credential
                .iter()
                .find(|held| Path::new(&held.path).starts_with(&part.path))
            {
                return wrong(format!("`{name}`: `{}` holds {}", part.path, held.path));
            }
        }
        let parts: String = parts
            .iter()
            .map(|Part { path, why }| format!("Listed {{ path: {path:?}, why: {why:?} }}, "))
            .collect();
        let set: Vec<(&String, &String)> = set.iter().collect();
        let _ = writeln!(
            code,
            "    Toolchain {{ name: {name:?}, entries: &{entries:?}, beside: {beside:?}, follow: {follow:?}, interpreter: {interpreter}, parts: &[{parts}], set: &{set:?} }},"
        );
    }
    code.push_str(
        "];\n/// Credential files, which are in no view.\npub static CREDENTIALS: &[Listed] = &[\n",
    );
    for Part { path: held, why } in &file.credential {
        check_reason(path, held, why)?;
        if !rooted(held, true) {
            return wrong(format!("`{held}` has no known root"));
        }
        let _ = writeln!(code, "    Listed {{ path: {held:?}, why: {why:?} }},");
    }
    code.push_str("];\n");
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheFile {
    cache: Vec<Cache>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cache {
    name: String,
    set: BTreeMap<String, String>,
    #[serde(default)]
    host: Vec<HostCache>,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostCache {
    variable: String,
    default: String,
    part: String,
    place: String,
    #[serde(default)]
    without: Vec<String>,
    why: String,
}

pub(crate) fn caches(path: &Path) -> Result<String, Failure> {
    let file: CacheFile = read(path)?;
    let wrong = |place: &str| format!("{}: `{place}` is not plain, or twice there", path.display());
    let mut places = BTreeSet::new();
    let mut code = String::from("/// Every cache.\npub static ENTRIES: &[Cache] = &[\n");
    for Cache {
        name,
        set,
        host,
        why,
    } in &file.cache
    {
        check_reason(path, name, why)?;
        for place in set.values() {
            if !is_plain(place) || !places.insert(place) {
                return Err(wrong(place));
            }
        }
        let set: Vec<(&String, &String)> = set.iter().collect();
        let _ = writeln!(code, "    Cache {{ name: {name:?}, set: &{set:?}, host: &[");
        for host in host {
            let HostCache {
                variable,
                default,
                part,
                place,
                without,
                why,
            } = host;
            check_reason(path, place, why)?;
            let below = |(_, set): &(&String, &String)| Path::new(place).starts_with(set);
            if !is_plain(place) || !set.iter().any(below) {
                return Err(wrong(place));
            }
            if !default.starts_with("~/") || !without.iter().all(|name| is_plain(name)) {
                return Err(wrong(default));
            }
            let _ = writeln!(
                code,
                "        HostCache {{ variable: {variable:?}, default: {default:?}, part: {part:?}, place: {place:?}, without: &{without:?}, why: {why:?} }},"
            );
        }
        let _ = writeln!(code, "    ], why: {why:?} }},");
    }
    code.push_str("];\n");
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFileList {
    file: Vec<KeptFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    path: String,
    inside: String,
    variable: String,
    value: String,
    why: String,
}

pub(crate) fn kept_files(path: &Path) -> Result<String, Failure> {
    let list: KeptFileList = read(path)?;
    let mut code = String::from("/// Every such file.\npub static ENTRIES: &[KeptFile] = &[\n");
    for KeptFile {
        path: file,
        inside,
        variable,
        value,
        why,
    } in &list.file
    {
        check_reason(path, file, why)?;
        let in_directory = Path::new(inside).components().count() > 1;
        if ![file, inside, value].into_iter().all(|text| is_plain(text)) || !in_directory {
            return Err(format!(
                "{}: `{file}` is not plain, or in no directory",
                path.display()
            ));
        }
        let _ = writeln!(
            code,
            "    KeptFile {{ path: {file:?}, inside: {inside:?}, variable: {variable:?}, value: {value:?}, why: {why:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}

fn is_plain(path: &str) -> bool {
    !path.ends_with('/')
        && Path::new(path)
            .components()
            .all(|component| matches!(component, std::path::Component::Normal(_)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GitFile {
    key: Vec<GitKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GitKey {
    name: String,
    why: String,
}

pub(crate) fn git(path: &Path) -> Result<String, Failure> {
    let file: GitFile = read(path)?;
    let mut code = String::from("/// Every key, in lower case.\npub static KEYS: &[GitKey] = &[\n");
    for GitKey { name, why } in &file.key {
        check_reason(path, name, why)?;
        let lower = name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'.');
        if !lower || name.matches('.').count() != 1 {
            return Err(format!(
                "{}: `{name}` is not section.key in lower case",
                path.display()
            ));
        }
        let _ = writeln!(code, "    GitKey {{ name: {name:?}, why: {why:?} }},");
    }
    code.push_str("];\n");
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BundleFile {
    bundle: Vec<Bundle>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bundle {
    name: String,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    asked: bool,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default)]
    without: BTreeMap<String, String>,
    why: String,
}

pub(crate) fn bundles(path: &Path) -> Result<String, Failure> {
    let file: BundleFile = read(path)?;
    let mut code = String::from("/// Every bundle.\npub static ENTRIES: &[Bundle] = &[\n");
    let mut seen = BTreeSet::new();
    for Bundle {
        name,
        hosts,
        asked,
        labels,
        without,
        why,
    } in &file.bundle
    {
        check_reason(path, name, why)?;
        if hosts.is_empty() != *asked || !seen.insert(name) {
            return Err(format!(
                "{}: `{name}` has hosts or is asked for, one of the two, and is there once",
                path.display()
            ));
        }
        if !labels.is_empty() && !asked {
            return Err(format!(
                "{}: `{name}` has labels and is not asked for",
                path.display()
            ));
        }
        let without: Vec<(&String, &String)> = without.iter().collect();
        let _ = writeln!(
            code,
            "    Bundle {{ name: {name:?}, hosts: &{hosts:?}, asked: {asked}, labels: &{labels:?}, without: &{without:?}, why: {why:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    key: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Key {
    variable: String,
    #[serde(default)]
    hosts: Vec<String>,
    bundle: Option<String>,
    flag: Option<String>,
    base_url: Option<String>,
    why: String,
}

/// The variables, for those who name them.
pub(crate) fn key_names(path: &Path) -> Result<BTreeSet<String>, Failure> {
    let file: KeyFile = read(path)?;
    Ok(file.key.into_iter().map(|key| key.variable).collect())
}

pub(crate) fn keys(path: &Path) -> Result<String, Failure> {
    let file: KeyFile = read(path)?;
    let mut code =
        String::from("/// Every credential variable.\npub static ENTRIES: &[Key] = &[\n");
    let mut seen = BTreeSet::new();
    for Key {
        variable,
        hosts,
        bundle,
        flag,
        base_url,
        why,
    } in &file.key
    {
        check_reason(path, variable, why)?;
        let ways = [!hosts.is_empty(), bundle.is_some(), flag.is_some()];
        if ways.iter().filter(|way| **way).count() != 1 || !seen.insert(variable) {
            return Err(format!(
                "{}: `{variable}` has hosts, a bundle or a flag, one of the three, and is there once",
                path.display()
            ));
        }
        let _ = writeln!(
            code,
            "    Key {{ variable: {variable:?}, hosts: &{hosts:?}, bundle: {bundle:?}, flag: {flag:?}, base_url: {base_url:?}, why: {why:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginFile {
    login: Vec<Login>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Login {
    name: String,
    format: String,
    file: String,
    hosts: Vec<String>,
    requests: Vec<String>,
    token_url: String,
    client: String,
    why: String,
}

pub(crate) fn logins(path: &Path) -> Result<String, Failure> {
    let list: LoginFile = read(path)?;
    let mut code = String::from("/// Every login.\npub static ENTRIES: &[Login] = &[\n");
    for Login {
        name,
        format,
        file,
        hosts,
        requests,
        token_url,
        client,
        why,
    } in &list.login
    {
        check_reason(path, name, why)?;
        if !matches!(format.as_str(), "Claude" | "Codex") || hosts.is_empty() || requests.is_empty()
        {
            return Err(format!(
                "{}: `{name}` has hosts, requests, and the format Claude or Codex",
                path.display()
            ));
        }
        let _ = writeln!(
            code,
            "    Login {{ name: {name:?}, format: LoginFormat::{format}, file: {file:?}, hosts: &{hosts:?}, requests: &{requests:?}, token_url: {token_url:?}, client: {client:?}, why: {why:?} }},"
        );
    }
    code.push_str("];\n");
    Ok(code)
}
