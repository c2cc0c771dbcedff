//! Applies a patch: all of it, or nothing of it.

use super::{ToolError, contents};
use ironcage_intent::{Hunk, PatchWork, PatchedFile};
use ironcage_model::Printable;
use std::fs;
use std::path::{Path, PathBuf};

/// Applies a patch and lists what changed.
pub(super) fn apply(files: &[PatchedFile]) -> Result<String, ToolError> {
    // Everything is computed before anything is written.
    let mut writes: Vec<(&PathBuf, String)> = Vec::new();
    let mut deletes: Vec<&PathBuf> = Vec::new();
    let mut told = String::new();
    for file in files {
        let path = &file.path;
        let once = |path: &PathBuf| {
            let mut paths = files.iter().flat_map(PatchedFile::paths);
            match paths.by_ref().filter(|other| *other == path).count() {
                1 => Ok(()),
                _ => Err(ToolError::PatchedTwice { path: shown(path) }),
            }
        };
        file.paths().try_for_each(once)?;
        let free = |path: &PathBuf| match path.symlink_metadata() {
            Ok(_) => Err(ToolError::Exists { path: shown(path) }),
            Err(_) => Ok(()),
        };
        match &file.work {
            PatchWork::Add { content } => {
                free(path)?;
                told.push_str(&format!("A {}\n", shown(path)));
                writes.push((path, content.clone()));
            }
            PatchWork::Delete => {
                contents(path)?;
                told.push_str(&format!("D {}\n", shown(path)));
                deletes.push(path);
            }
            PatchWork::Update { hunks, to } => {
                let text = updated(path, &contents(path)?, hunks)?;
                told.push_str(&format!("M {}\n", shown(to.as_ref().unwrap_or(path))));
                match to {
                    Some(to) => {
                        free(to)?;
                        writes.push((to, text));
                        deletes.push(path);
                    }
                    None => writes.push((path, text)),
                }
            }
        }
    }
    let failed = |path: &Path| {
        let path = shown(path);
        move |source| ToolError::File { path, source }
    };
    for (path, text) in writes {
        if let Some(around) = path.parent() {
            fs::create_dir_all(around).map_err(failed(path))?;
        }
        super::write(path, text.as_bytes())?;
    }
    for path in deletes {
        fs::remove_file(path).map_err(failed(path))?;
    }
    Ok(told)
}

fn shown(path: &Path) -> String {
    Printable::new(path).to_string()
}

/// The text with every hunk applied, each below the one before.
fn updated(path: &Path, text: &str, hunks: &[Hunk]) -> Result<String, ToolError> {
    let mut lines: Vec<&str> = text.split('\n').collect();
    // What follows the last line break is a line only if there is something.
    let newline = lines.last() == Some(&"");
    if newline {
        lines.pop();
    }
    let mut out: Vec<&str> = Vec::with_capacity(lines.len());
    let mut at = 0;
    for (index, hunk) in hunks.iter().enumerate() {
        let missing = || ToolError::HunkNotFound {
            path: shown(path),
            hunk: index + 1,
        };
        let rest = lines.get(at..).unwrap_or_default();
        let start = match &hunk.after {
            Some(after) => rest.iter().position(|line| line == after).map(|at| at + 1),
            None => Some(0),
        };
        let start = at + start.ok_or_else(missing)?;
        let place = match (hunk.at_end, hunk.old.is_empty()) {
            (true, _) => lines.len().checked_sub(hunk.old.len()),
            // Nothing to replace and nothing to stand behind: at the end.
            (false, true) if hunk.after.is_none() => Some(lines.len()),
            (false, true) => Some(start),
            (false, false) => {
                let rest = lines.get(start..).unwrap_or_default();
                let found = rest
                    .windows(hunk.old.len())
                    .position(|lines| lines == hunk.old);
                found.map(|found| start + found)
            }
        };
        let place = place.filter(|place| *place >= start).ok_or_else(missing)?;
        let end = place + hunk.old.len();
        if lines.get(place..end).is_none_or(|lines| lines != hunk.old) {
            return Err(missing());
        }
        out.extend(lines.get(at..place).unwrap_or_default());
        out.extend(hunk.new.iter().map(String::as_str));
        at = end;
    }
    out.extend(lines.get(at..).unwrap_or_default());
    let mut text = out.join("\n");
    if (newline || lines.is_empty()) && !out.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunk(after: Option<&str>, old: &[&str], new: &[&str], at_end: bool) -> Hunk {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        Hunk {
            after: after.map(str::to_owned),
            old: lines(old),
            new: lines(new),
            at_end,
        }
    }

    fn applied(text: &str, hunks: &[Hunk]) -> Option<String> {
        updated(Path::new("/f"), text, hunks).ok()
    }

    #[test]
    fn hunks_replace_their_lines_and_keep_the_rest() {
        let text = "a\nb\nc\nb\n";
        let of = |hunk: Hunk| applied(text, &[hunk]);
        assert_eq!(
            of(hunk(None, &["b"], &["x"], false)).as_deref(),
            Some("a\nx\nc\nb\n")
        );
        assert_eq!(
            of(hunk(Some("c"), &["b"], &["x"], false)).as_deref(),
            Some("a\nb\nc\nx\n")
        );
        assert_eq!(
            of(hunk(None, &["b"], &["x"], true)).as_deref(),
            Some("a\nb\nc\nx\n")
        );
        assert_eq!(
            of(hunk(None, &[], &["x"], false)).as_deref(),
            Some("a\nb\nc\nb\nx\n")
        );
        assert_eq!(
            of(hunk(Some("a"), &[], &["x"], false)).as_deref(),
            Some("a\nx\nb\nc\nb\n")
        );
        let twice = [
            hunk(None, &["b"], &[], false),
            hunk(None, &["b"], &["y"], false),
        ];
        assert_eq!(applied(text, &twice).as_deref(), Some("a\nc\ny\n"));
        assert_eq!(
            applied("a", &[hunk(None, &["a"], &["b"], false)]).as_deref(),
            Some("b")
        );
        assert_eq!(
            applied("", &[hunk(None, &[], &["b"], false)]).as_deref(),
            Some("b\n")
        );
    }

    #[test]
    fn lines_that_are_not_there_are_an_error() {
        for wrong in [
            hunk(None, &["z"], &["x"], false),
            hunk(Some("z"), &["b"], &["x"], false),
            hunk(Some("b"), &["a"], &["x"], false),
            hunk(None, &["a"], &["x"], true),
            hunk(None, &["a", "b", "c", "d"], &[], true),
        ] {
            assert_eq!(
                applied("a\nb\nc\n", std::slice::from_ref(&wrong)),
                None,
                "{wrong:?}"
            );
        }
        let back = [
            hunk(None, &["c"], &["c"], false),
            hunk(None, &["a"], &["x"], false),
        ];
        assert_eq!(applied("a\nb\nc\n", &back), None);
    }
}
