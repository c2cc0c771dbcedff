//! Checks of single values: names, capabilities and paths. Files and flags share them.

use crate::parse::nearest;
use crate::{Executed, Listed, capabilities, executed, protected};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

pub(crate) const HOSTNAME_RULE: &str =
    "expected 1 to 63 letters, digits and hyphens, with no hyphen at either end (RFC 1123)";

/// Whether it is one label of RFC 1123.
pub(crate) fn is_hostname(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Whether it can be the name of an environment variable.
pub(crate) fn is_env_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// The kernel's name of a capability that a cage can have; else what is wrong and the remedy.
pub(crate) fn check_capability(name: &str) -> Result<String, (String, String)> {
    match capabilities::find(name) {
        Some(capability) if capability.allowed => Ok(capability.name.to_owned()),
        Some(capability) => Err((
            format!("no cage can have {}", capability.name),
            format!("remove it ({})", capability.why),
        )),
        None => {
            let allowed: Vec<&str> = capabilities::ENTRIES
                .iter()
                .filter(|capability| capability.allowed)
                .map(|capability| capability.name)
                .collect();
            let upper = name.to_ascii_uppercase();
            let remedy = match nearest(&upper, &allowed) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected one of {}", allowed.join(", ")),
            };
            Err((format!("unknown capability `{name}`"), remedy))
        }
    }
}

/// What to write instead of a path that is not protected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotProtected {
    #[error("use `{0}`, which is unprotected as a whole")]
    Within(&'static str),
    #[error("did you mean `{0}`?")]
    Near(String),
    #[error("use a path relative to the workspace")]
    NotRelative,
}

/// What the host would execute or trust and is to stay writable, or to be applied.
pub(crate) fn check_unprotect(path: &str) -> Result<PathBuf, NotProtected> {
    let bare = path
        .strip_prefix("./")
        .unwrap_or(path)
        .trim_end_matches('/');
    if protected::ENTRIES.iter().any(|entry| entry.path == bare) {
        return Ok(PathBuf::from(bare));
    }
    let below = |entry: &&Listed| Path::new(bare).starts_with(entry.path);
    if let Some(entry) = protected::ENTRIES.iter().find(below) {
        return Err(NotProtected::Within(entry.path));
    }
    let parts: Vec<Component<'_>> = Path::new(bare).components().collect();
    let plain = parts
        .iter()
        .all(|part| matches!(part, Component::Normal(_)));
    let parts: Vec<&OsStr> = parts.into_iter().map(Component::as_os_str).collect();
    let listed = |entry: &Executed| entry.found_in(&parts).is_some();
    if plain && executed::NAMES.iter().any(listed) {
        return Ok(PathBuf::from(bare));
    }
    let names: Vec<&str> = executed::NAMES.iter().map(|entry| entry.path).collect();
    match nearest(bare, &names) {
        Some(near) => Err(NotProtected::Near(near.to_string())),
        // Settings of git may name it, which the plan knows.
        None if plain && !bare.is_empty() => Ok(PathBuf::from(bare)),
        None => Err(NotProtected::NotRelative),
    }
}

/// A path of the agent's home that is to be kept, relative to it; else the remedy.
pub(crate) fn check_keep(path: &Path, home: &Path) -> Result<PathBuf, &'static str> {
    let relative = path
        .strip_prefix("~")
        .or_else(|_| path.strip_prefix(home))
        .unwrap_or(path);
    let mut kept = PathBuf::new();
    for component in relative.components() {
        match component {
            Component::Normal(name) => kept.push(name),
            Component::CurDir => {}
            _ => return Err("use a path below the home directory, such as \".claude\""),
        }
    }
    if kept.as_os_str().is_empty() {
        return Err("use paths in the home directory; the whole home cannot be kept");
    }
    Ok(kept)
}

/// The path without `.` and `..`: what is compared must be what is meant.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}
