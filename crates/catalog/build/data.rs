//! Reading data files in build scripts, this crate's and that of `policy`.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// What is wrong with a data file, in one line.
pub(crate) type Failure = String;

pub(crate) fn variable(name: &str) -> Result<String, Failure> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}

pub(crate) fn write(path: &Path, code: &str) -> Result<(), Failure> {
    fs::write(path, code).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a data file into its type; the failure names the file, the line and the key.
pub(crate) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = read_text(path)?;
    toml::from_str(&text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("{}:{line}: {}", path.display(), error.message())
    })
}

pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files `*.toml` of a folder, ordered by name.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listing = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in listing {
        let path = entry
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The file's name without `.toml`, which is the name of what it holds.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Fails where a reason is missing: an entry that nobody can explain must not ship.
pub(crate) fn check_reason(path: &Path, entry: &str, why: &str) -> Result<(), Failure> {
    if why.trim().is_empty() {
        return Err(format!("{}: `{entry}` has no reason", path.display()));
    }
    Ok(())
}
