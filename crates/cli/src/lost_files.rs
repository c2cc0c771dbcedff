//! Files that a command names for writing and that were gone with its cage: it wrote to storage in the
//! place of the user's home, and nothing failed.
//!
//! The command is read as in `hidden_files`, outside the cage and for the user alone.

use crate::hidden_files;
use ironcage_model::Printable;
use ironcage_plan::{PathStatus, Plan, guard, locate};
use std::path::{Component, Path, PathBuf};

/// More are not named.
const MOST: usize = 3;

/// A line for each file that the command names for writing, and that the cage did not keep.
pub(crate) fn lines(plan: &Plan, home: &Path) -> Vec<String> {
    let words = plan.command.argv.iter();
    let words: Vec<String> = words
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let text = words.join(" ");
    // Most commands do not speak of the home, and are not read.
    let speaks = |name: &str| text.contains(name);
    if !speaks("~") && !speaks("HOME") && !speaks(&home.to_string_lossy()) {
        return Vec::new();
    }
    let Some(needs) = hidden_files::needs(&words, &plan.command.cwd, home) else {
        return Vec::new();
    };
    let lost = needs.writes.iter().filter(|path| is_named(path, &text));
    lost.filter_map(|path| line(plan, home, path))
        .take(MOST)
        .collect()
}

/// Whether the command itself says the name. Caches and settings, which its programs are known to
/// write, it does not.
fn is_named(path: &Path, text: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| text.contains(name))
}

fn line(plan: &Plan, home: &Path, path: &Path) -> Option<String> {
    let below = path.strip_prefix(home).ok()?;
    let hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
    let own =
        locate(plan, path).standing == PathStatus::Ephemeral && !path.starts_with(&plan.workspace);
    if below.as_os_str().is_empty() || !own || below.components().any(hidden) {
        return None;
    }
    let shown = Printable::new(path);
    let remedy = match on_host(home, path) {
        Some(there) => {
            let flag = format!("-w {}", Printable::new(&there));
            match guard(home, &there, true) {
                Some(why) => format!("to write the host's: {flag} --i-know ({why})"),
                None => format!("to write the host's: {flag}"),
            }
        }
        // What is kept of a home is a directory.
        None => match path.parent().filter(|parent| *parent != home) {
            Some(parent) => format!(
                "to keep it for the next run: --state {}",
                Printable::new(parent)
            ),
            None => "to keep it, write it below the workspace".to_owned(),
        },
    };
    Some(format!(
        "what the command wrote to {shown} is gone with the cage; {remedy}"
    ))
}

/// The file, or the directory around it, as far as the host has it below the home.
fn on_host(home: &Path, path: &Path) -> Option<PathBuf> {
    let mut around = path.ancestors().take_while(|around| *around != home);
    let found = around.find(|around| around.symlink_metadata().is_ok());
    found.map(Path::to_owned)
}
