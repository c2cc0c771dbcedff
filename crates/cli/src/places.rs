//! Where things are: the user's home, Ironcage's own directories, the workspace.

use crate::error::CliError;
use ironcage_plan::{GitSetting, git_settings};
use ironcage_state::Store;
use std::io::Read as _;
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

/// Where caches of cages are kept.
pub(crate) fn cache_dir(home: &Path) -> PathBuf {
    xdg("XDG_CACHE_HOME", home.join(".cache"))
}

/// What outlives cages. Real paths, as a mount's source follows no link.
pub(crate) fn store(home: &Path) -> Store {
    let real = |path: PathBuf| resolved(&path);
    Store::new(&real(state_dir(home)), &real(cache_dir(home)))
}

/// A path without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    match (std::fs::canonicalize(path), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (Err(_), Some(above), Some(name)) => resolved(above).join(name),
        _ => path.to_owned(),
    }
}

/// The most that is read of a configuration of git.
const GIT_CONFIG_SIZE: u64 = 256 * 1024;

/// The user's harmless settings of git, from the files that git itself would read last.
pub(crate) fn git(home: &Path) -> Vec<GitSetting> {
    let absolute = |variable: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let paths = match absolute("GIT_CONFIG_GLOBAL") {
        Some(path) => vec![path],
        None => {
            let config = absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
            vec![config.join("git/config"), home.join(".gitconfig")]
        }
    };
    let mut text = String::new();
    for path in paths {
        // A file that is not there or not text says nothing; commits then ask for a name.
        if let Ok(file) = std::fs::File::open(&path)
            && file.metadata().is_ok_and(|metadata| metadata.is_file())
        {
            let mut part = String::new();
            if file.take(GIT_CONFIG_SIZE).read_to_string(&mut part).is_ok() {
                text.push_str(&part);
                text.push('\n');
            }
        }
    }
    git_settings(&text)
}

/// Ironcage's own directories, real paths where they exist: no cage gets to see them.
pub(crate) fn own(home: &Path) -> Vec<PathBuf> {
    let mut paths = vec![
        config_dir(home),
        state_dir(home),
        cache_dir(home),
        "/run/ironcage".into(),
    ];
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
