//! Searches files below a directory: by their names, or by their lines.

use super::{ToolError, bytes};
use ironcage_intent::{Search, SearchOutput, TextSearch};
use ironcage_model::Printable;
use regex::{Regex, RegexBuilder};
use std::fs;
use std::path::{Path, PathBuf};

/// Most files that are looked at.
const MOST_FILES: usize = 100_000;
/// Most lines of a result.
const MOST_LINES: usize = 2_000;
/// Longest line that is shown, in characters.
const LONGEST_LINE: usize = 500;
/// Memory of a compiled pattern.
const PATTERN: usize = 1 << 20;

/// The files below a directory, and whether there are more.
#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    more: bool,
}

/// The lines of a result, and whether there are more.
struct Lines {
    text: String,
    left: usize,
    more: bool,
}

impl Lines {
    fn push(&mut self, line: &str) {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.text.push_str(line);
                self.text.push('\n');
            }
            None => self.more = true,
        }
    }
}

/// Carries a search out, from a file or a directory.
pub(super) fn run(path: &Path, search: &Search, here: &Path) -> Result<String, ToolError> {
    let (glob, limit) = match search {
        Search::Names { glob } => (Some((glob.as_str(), true)), None),
        Search::Text(text) => (text.glob.as_deref().map(|glob| (glob, false)), text.limit),
    };
    let glob = glob
        .map(|(glob, whole)| Glob::new(glob, whole))
        .transpose()?;
    let mut files = Files::default();
    collect(path, &mut files)?;
    files.paths.sort();
    let named = |file: &&PathBuf| {
        let below = file.strip_prefix(path).unwrap_or(file);
        glob.as_ref().is_none_or(|glob| glob.matches(file, below))
    };
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    let mut lines = Lines {
        text: String::new(),
        left: limit.unwrap_or(MOST_LINES).min(MOST_LINES),
        more: false,
    };
    let chosen = files.paths.iter().filter(named);
    let shown = |file: &Path| Printable::new(file.strip_prefix(here).unwrap_or(file)).to_string();
    match search {
        Search::Names { .. } => chosen.for_each(|file| lines.push(&shown(file))),
        Search::Text(search) => {
            let pattern = pattern(&search.pattern, search.ignore_case)?;
            for file in chosen {
                // One that cannot be read is not one that was searched for.
                let Ok(text) = bytes(file) else { continue };
                if text.iter().take(8192).any(|byte| *byte == 0) {
                    continue;
                }
                let text = String::from_utf8_lossy(&text);
                matches(&text, &pattern, search, &shown(file), &mut lines);
                if lines.more {
                    break;
                }
            }
        }
    }
    if lines.text.is_empty() {
        lines.text.push_str("no matches\n");
    }
    if lines.more {
        lines.text.push_str("[more matches were left out]\n");
    }
    if files.more {
        lines.text.push_str(&format!(
            "[only the first {MOST_FILES} files were searched]\n"
        ));
    }
    Ok(lines.text)
}

/// Links are not followed, and directories of git are left out.
fn collect(path: &Path, files: &mut Files) -> Result<(), ToolError> {
    let failed = |source| ToolError::File {
        path: Printable::new(path).to_string(),
        source,
    };
    let found = fs::metadata(path).map_err(failed)?;
    if found.is_file() {
        files.paths.push(path.to_owned());
        return Ok(());
    }
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == path => return Err(failed(error)),
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && entry.file_name() != ".git" => {
                    directories.push(entry.path());
                }
                Ok(kind) if kind.is_file() => {
                    if files.paths.len() >= MOST_FILES {
                        files.more = true;
                        return Ok(());
                    }
                    files.paths.push(entry.path());
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn pattern(text: &str, ignore_case: bool) -> Result<Regex, ToolError> {
    let built = RegexBuilder::new(text)
        .case_insensitive(ignore_case)
        .size_limit(PATTERN)
        .build();
    built.map_err(|error| ToolError::Pattern(Box::new(error)))
}

/// Adds what one file has.
fn matches(text: &str, pattern: &Regex, search: &TextSearch, file: &str, out: &mut Lines) {
    let lines: Vec<&str> = text.lines().collect();
    let hits = (0..lines.len()).filter(|at| lines.get(*at).is_some_and(|l| pattern.is_match(l)));
    let hits: Vec<usize> = hits.collect();
    if hits.is_empty() {
        return;
    }
    let (numbers, before, after) = match search.output {
        SearchOutput::Files => return out.push(file),
        SearchOutput::Counts => return out.push(&format!("{file}:{}", hits.len())),
        SearchOutput::Lines {
            numbers,
            before,
            after,
        } => (numbers, before, after),
    };
    let size = |lines: u64| usize::try_from(lines).unwrap_or(usize::MAX);
    let mut next = 0;
    for hit in &hits {
        let first = hit.saturating_sub(size(before)).max(next);
        let last = hit.saturating_add(size(after)).min(lines.len() - 1);
        if (before > 0 || after > 0) && first > next && next > 0 {
            out.push("--");
        }
        for at in first..=last {
            // Between two matches a line is shown once.
            let mark = if hits.binary_search(&at).is_ok() {
                ':'
            } else {
                '-'
            };
            let line: String = lines
                .get(at)
                .copied()
                .unwrap_or_default()
                .chars()
                .take(LONGEST_LINE)
                .collect();
            match numbers {
                true => out.push(&format!("{file}{mark}{}{mark}{line}", at + 1)),
                false => out.push(&format!("{file}{mark}{line}")),
            }
            if out.more {
                return;
            }
        }
        next = last.max(next.saturating_sub(1)) + 1;
    }
}

/// A pattern of paths: `*`, `?`, `**`, `{a,b}` and `[abc]`.
struct Glob {
    regex: Regex,
    /// Whether the path below the directory is meant, and not the name alone.
    path: bool,
}

impl Glob {
    fn new(text: &str, whole: bool) -> Result<Self, ToolError> {
        let mut regex = String::from("^");
        let mut chars = text.chars().peekable();
        let (mut braces, mut class) = (0_u32, false);
        while let Some(c) = chars.next() {
            match c {
                ']' if class => {
                    class = false;
                    regex.push(']');
                }
                c if class => match c {
                    '-' | '^' => regex.push(c),
                    '!' if regex.ends_with('[') => regex.push('^'),
                    c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
                },
                '[' => {
                    class = true;
                    regex.push('[');
                }
                '*' if chars.next_if_eq(&'*').is_some() => match chars.next_if_eq(&'/').is_some() {
                    true => regex.push_str("(?:.*/)?"),
                    false => regex.push_str(".*"),
                },
                '*' => regex.push_str("[^/]*"),
                '?' => regex.push_str("[^/]"),
                '{' => {
                    braces += 1;
                    regex.push_str("(?:");
                }
                '}' if braces > 0 => {
                    braces -= 1;
                    regex.push(')');
                }
                ',' if braces > 0 => regex.push('|'),
                c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
        }
        regex.push('$');
        Ok(Glob {
            regex: pattern(&regex, false)?,
            path: whole || text.contains('/'),
        })
    }

    fn matches(&self, file: &Path, below: &Path) -> bool {
        let text = match self.path {
            true => below.to_str(),
            false => file.file_name().and_then(|name| name.to_str()),
        };
        text.is_some_and(|text| self.regex.is_match(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(search: &Search) -> String {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for (name, text) in [
            ("a.rs", "fn main() {\n    one();\n}\n\n// fn two\nend\n"),
            ("sub/b.rs", "FN MAIN\n"),
            ("sub/c.txt", "fn main\n"),
            ("bin.rs", "fn main\0"),
            (".git/d.rs", "fn main\n"),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
        run(root, search, root).unwrap()
    }

    fn text(pattern: &str, output: SearchOutput) -> TextSearch {
        TextSearch {
            pattern: pattern.into(),
            ignore_case: false,
            glob: None,
            output,
            limit: None,
        }
    }

    #[test]
    fn files_are_found_by_their_paths() {
        let names = |glob: &str| found(&Search::Names { glob: glob.into() });
        assert_eq!(names("*.rs"), "a.rs\nbin.rs\n");
        assert_eq!(names("**/*.rs"), "a.rs\nbin.rs\nsub/b.rs\n");
        assert_eq!(names("sub/[bc].{rs,txt}"), "sub/b.rs\nsub/c.txt\n");
        assert_eq!(names("?.rs"), "a.rs\n");
        assert_eq!(names("**/passwd"), "no matches\n");
    }

    #[test]
    fn lines_are_found_by_a_regular_expression() {
        let of = |search: TextSearch| found(&Search::Text(search));
        assert_eq!(
            of(text("^fn main", SearchOutput::Files)),
            "a.rs\nsub/c.txt\n"
        );
        let rust = TextSearch {
            ignore_case: true,
            glob: Some("*.rs".into()),
            ..text("fn", SearchOutput::Counts)
        };
        assert_eq!(of(rust), "a.rs:2\nsub/b.rs:1\n");
        let lines = |before, after| SearchOutput::Lines {
            numbers: true,
            before,
            after,
        };
        let in_a = |output| TextSearch {
            glob: Some("a.rs".into()),
            ..text("fn", output)
        };
        assert_eq!(
            of(in_a(lines(0, 0))),
            "a.rs:1:fn main() {\na.rs:5:// fn two\n"
        );
        let around =
            "a.rs:1:fn main() {\na.rs-2-    one();\n--\na.rs-4-\na.rs:5:// fn two\na.rs-6-end\n";
        assert_eq!(of(in_a(lines(1, 1))), around);
        let first = TextSearch {
            limit: Some(1),
            ..in_a(lines(0, 0))
        };
        assert_eq!(
            of(first),
            "a.rs:1:fn main() {\n[more matches were left out]\n"
        );
        assert_eq!(of(text("nowhere", SearchOutput::Files)), "no matches\n");
        assert!(matches!(pattern("(", false), Err(ToolError::Pattern(_))));
        assert!(matches!(
            pattern("(x{1000}){1000}", false),
            Err(ToolError::Pattern(_))
        ));
    }
}
