//! Paths of the audit log: the state directory, the logs in it and their head files.
//!
//! This module only computes paths; it creates and opens nothing.

use ironcage_model::CageId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment does not say where state belongs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoStateDir {
    /// A variable holds a path that depends on the current directory.
    #[error("{variable} is not an absolute path: `{}`; set it to one, or unset it", value.escape_debug())]
    Relative {
        variable: &'static str,
        value: String,
    },
    /// Neither variable is set.
    #[error(
        "neither XDG_STATE_HOME nor HOME is set; set HOME to your home directory, or XDG_STATE_HOME to the directory for state"
    )]
    Unset,
}

/// The directory for what Ironcage keeps: `$XDG_STATE_HOME/ironcage`, else
/// `$HOME/.local/state/ironcage`.
pub fn state_dir() -> Result<PathBuf, NoStateDir> {
    state_dir_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

/// The directory of the logs, `audit` in the state directory.
pub fn audit_dir() -> Result<PathBuf, NoStateDir> {
    Ok(state_dir()?.join("audit"))
}

/// The log of one cage, in the directory of logs.
pub fn log_path(dir: &Path, id: &CageId) -> PathBuf {
    dir.join(format!("{id}.jsonl"))
}

/// The head of one cage's log: beside the directory of logs, never in it, so that what
/// replaces or restores that directory does not take the heads along.
pub fn head_path(dir: &Path, id: &CageId) -> PathBuf {
    heads_dir(dir).join(id.as_str())
}

/// The directory of the heads that belong to a directory of logs.
pub(crate) fn heads_dir(dir: &Path) -> PathBuf {
    dir.parent().unwrap_or(Path::new("..")).join("heads")
}

fn state_dir_from(xdg: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, NoStateDir> {
    // The XDG specification takes an empty variable for one that is not set.
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty());
    if let Some(value) = set(xdg) {
        return Ok(absolute("XDG_STATE_HOME", value)?.join("ironcage"));
    }
    let home = set(home).ok_or(NoStateDir::Unset)?;
    Ok(absolute("HOME", home)?.join(".local/state/ironcage"))
}

fn absolute(variable: &'static str, value: OsString) -> Result<PathBuf, NoStateDir> {
    let path = PathBuf::from(value);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(NoStateDir::Relative {
        variable,
        value: path.to_string_lossy().into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(xdg: Option<&str>, home: Option<&str>) -> Result<PathBuf, NoStateDir> {
        state_dir_from(xdg.map(Into::into), home.map(Into::into))
    }

    #[test]
    fn xdg_state_home_wins_over_home() {
        assert_eq!(at(Some("/s"), Some("/h")), Ok("/s/ironcage".into()));
    }

    #[test]
    fn an_empty_or_absent_xdg_state_home_means_home() {
        let wanted = Ok(PathBuf::from("/h/.local/state/ironcage"));
        assert_eq!(at(Some(""), Some("/h")), wanted);
        assert_eq!(at(None, Some("/h")), wanted);
    }

    #[test]
    fn a_relative_path_is_refused_and_the_variable_named() {
        let error = at(Some("state"), Some("/h")).unwrap_err().to_string();
        assert!(
            error.contains("XDG_STATE_HOME") && error.contains("unset"),
            "{error}"
        );
        let error = at(None, Some("h")).unwrap_err().to_string();
        assert!(error.starts_with("HOME"), "{error}");
    }

    #[test]
    fn without_either_variable_the_remedy_is_named() {
        assert_eq!(at(None, None), Err(NoStateDir::Unset));
    }

    #[test]
    fn heads_lie_beside_the_logs_not_among_them() {
        let id: CageId = "c0123456789ab".parse().unwrap();
        let dir = Path::new("/s/ironcage/audit");
        assert_eq!(
            log_path(dir, &id),
            Path::new("/s/ironcage/audit/c0123456789ab.jsonl")
        );
        assert_eq!(
            head_path(dir, &id),
            Path::new("/s/ironcage/heads/c0123456789ab")
        );
    }
}
