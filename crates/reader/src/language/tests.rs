//! pytest: the test files that it is given, or those that it finds, with their `conftest.py`.

use ironcage_intent::{Code, Unsure, tidy};
use std::path::{Path, PathBuf};

/// Files that are read.
const MOST_FILES: usize = 60;

/// The files that a call of pytest executes. `None` if that cannot be known.
pub(crate) fn files(
    code: &Code<'_>,
    list: &dyn Fn(&Path) -> Vec<PathBuf>,
) -> Result<Vec<PathBuf>, (Unsure, String)> {
    let unknown = |why: &str| (Unsure::Everything, why.to_owned());
    let cwd = code
        .cwd
        .ok_or_else(|| unknown("the working directory of pytest is not known"))?;
    let mut places: Vec<PathBuf> = Vec::new();
    for argument in code.arguments {
        if !argument.whole {
            return Err(unknown("a file of pytest is not known"));
        }
        if argument.text.starts_with('-') {
            continue;
        }
        let path = argument.text.split("::").next().unwrap_or_default();
        places.push(tidy(cwd, path));
    }
    if places.is_empty() {
        places.push(cwd.to_owned());
    }
    let mut found = Vec::new();
    let mut left = places;
    let mut looked = 0_usize;
    while let Some(path) = left.pop() {
        looked += 1;
        if found.len() >= MOST_FILES || looked > 2000 {
            return Err(unknown("pytest has more files than are followed"));
        }
        if path.extension().is_some_and(|end| end == "py") {
            for place in path
                .ancestors()
                .skip(1)
                .take_while(|place| place.starts_with(cwd))
            {
                let shared = place.join("conftest.py");
                if !found.contains(&shared) && (code.file)(&shared).is_some() {
                    found.push(shared);
                }
            }
            if !found.contains(&path) {
                found.push(path);
            }
            continue;
        }
        for entry in list(&path) {
            let name = entry
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let skipped = name.starts_with('.')
                || matches!(
                    name,
                    "node_modules" | "__pycache__" | "venv" | "build" | "dist"
                );
            let is_test =
                (name.starts_with("test_") && name.ends_with(".py")) || name.ends_with("_test.py");
            if is_test || (!name.contains('.') && !skipped) {
                left.push(entry);
            }
        }
    }
    match found.is_empty() {
        true => Err(unknown("pytest executes tests that were not found")),
        false => Ok(found),
    }
}
