//! Where things are: the user's home, Ironcage's own directories, the workspace.

use crate::error::CliError;
use std::path::{Path, PathBuf};

/// The user's home directory: `HOME`, which must be absolute. Links in it are resolved, so
/// that paths can be compared.
pub(crate) fn home() -> Result<PathBuf, CliError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match home {
        Some(home) if home.is_absolute() => Ok(std::fs::canonicalize(&home).unwrap_or(home)),
        _ => Err(CliError::new("HOME is not set to an absolute path")
            .hint("set HOME to your home directory")),
    }
}

fn xdg(variable: &str, otherwise: PathBuf) -> PathBuf {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .unwrap_or(otherwise)
        .join("ironcage")
}

/// Where the user's configuration is.
pub(crate) fn config_dir(home: &Path) -> PathBuf {
    xdg("XDG_CONFIG_HOME", home.join(".config"))
}

/// Where records are kept.
pub(crate) fn state_dir(home: &Path) -> PathBuf {
    xdg("XDG_STATE_HOME", home.join(".local/state"))
}

/// Ironcage's own directories, real paths where they exist: no cage gets to see them.
pub(crate) fn own(home: &Path) -> Vec<PathBuf> {
    let mut paths = vec![config_dir(home), state_dir(home), "/run/ironcage".into()];
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
    {
        paths.push(runtime.join("ironcage"));
    }
    paths
        .into_iter()
        .map(|path| std::fs::canonicalize(&path).unwrap_or(path))
        .collect()
}

/// The top of the repository around a directory, else the directory. A repository that is
/// the home directory itself, or lies above it, does not count: people keep their settings
/// in one.
pub(crate) fn workspace_around(cwd: &Path, home: &Path) -> PathBuf {
    cwd.ancestors()
        .take_while(|directory| !home.starts_with(directory))
        .find(|directory| directory.join(".git").symlink_metadata().is_ok())
        .unwrap_or(cwd)
        .to_owned()
}
