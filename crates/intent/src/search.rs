//! Searches for text in files, and for files by name.

use crate::call::Call;
use serde_json::{Map, Value};

/// What is looked for below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// Files by their path below the directory.
    Names { glob: String },
    /// Lines of files.
    Text(TextSearch),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSearch {
    /// A regular expression.
    pub pattern: String,
    pub ignore_case: bool,
    /// Only in files whose name matches, or whose path does where it has a slash.
    pub glob: Option<String>,
    pub output: SearchOutput,
    /// Most lines of the result.
    pub limit: Option<u64>,
}

/// What of the matches is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchOutput {
    Files,
    Counts,
    Lines {
        numbers: bool,
        before: u64,
        after: u64,
    },
}

/// Arguments that are taken out one by one: what is left over is one that nobody here knows.
struct Arguments(Map<String, Value>);

impl Arguments {
    fn text(&mut self, names: &[&str]) -> Option<Option<String>> {
        for name in names {
            match self.0.remove(*name) {
                Some(Value::String(text)) => return Some(Some(text)),
                Some(Value::Null) | None => {}
                Some(_) => return None,
            }
        }
        Some(None)
    }

    fn flag(&mut self, name: &str) -> Option<Option<bool>> {
        match self.0.remove(name) {
            Some(Value::Bool(value)) => Some(Some(value)),
            Some(Value::Null) | None => Some(None),
            Some(_) => None,
        }
    }

    fn number(&mut self, names: &[&str]) -> Option<Option<u64>> {
        for name in names {
            match self.0.remove(*name) {
                Some(Value::Null) | None => {}
                Some(value) => return value.as_u64().map(Some),
            }
        }
        Some(None)
    }
}

/// Reads the call of a tool that searches. `paths` are the names of the argument that says where. `None` for what is
/// not one, and for one with an argument that would be left out.
pub(crate) fn read(call: &Call, paths: &[String]) -> Option<Search> {
    let mut given = Arguments(call.input.as_object()?.clone());
    for path in paths {
        given.0.remove(path);
    }
    let search = match call.name.as_str() {
        "Glob" | "glob" => names(&mut given)?,
        "search_files" if !given.0.contains_key("regex") => names(&mut given)?,
        "Grep" | "grep" | "search_file_content" | "search_files" => text(call, &mut given)?,
        _ => return None,
    };
    given.0.is_empty().then_some(search)
}

fn names(given: &mut Arguments) -> Option<Search> {
    let glob = given.text(&["pattern"])??;
    Some(Search::Names { glob })
}

fn text(call: &Call, given: &mut Arguments) -> Option<Search> {
    let pattern = given.text(&["pattern", "regex"])??;
    let around = given.number(&["-C", "context"])?.unwrap_or(0);
    let before = given.number(&["-B"])?.unwrap_or(around);
    let after = given.number(&["-A"])?.unwrap_or(around);
    let numbers = given.flag("-n")?;
    let mode = given.text(&["output_mode"])?;
    // Claude's tool shows the files unless it is told otherwise.
    let lines = SearchOutput::Lines {
        numbers: numbers.unwrap_or(call.name != "Grep"),
        before,
        after,
    };
    let output = match mode.as_deref() {
        None if call.name == "Grep" => SearchOutput::Files,
        Some("files_with_matches") => SearchOutput::Files,
        Some("count") => SearchOutput::Counts,
        None | Some("content") => lines,
        Some(_) => return None,
    };
    // A pattern over several lines is another search.
    if given.flag("multiline")? == Some(true) {
        return None;
    }
    let sensitive = given.flag("case_sensitive")?;
    Some(Search::Text(TextSearch {
        pattern,
        ignore_case: given.flag("-i")?.unwrap_or(sensitive == Some(false)),
        glob: given.text(&["glob", "include", "file_pattern"])?,
        output,
        limit: given.number(&["head_limit"])?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn search(name: &str, input: Value) -> Option<Search> {
        let call = Call {
            id: None,
            name: name.to_owned(),
            input,
        };
        read(&call, &["path".to_owned(), "dir_path".to_owned()])
    }

    #[test]
    fn searches_of_each_agent_are_read() {
        let glob = "**/*.rs".to_owned();
        assert_eq!(
            search("Glob", json!({"pattern": "**/*.rs", "path": "src"})),
            Some(Search::Names { glob })
        );
        let text = |output| TextSearch {
            pattern: "fn main".into(),
            ignore_case: false,
            glob: None,
            output,
            limit: None,
        };
        let files = Some(Search::Text(text(SearchOutput::Files)));
        assert_eq!(search("Grep", json!({"pattern": "fn main"})), files);
        let lines = SearchOutput::Lines {
            numbers: true,
            before: 2,
            after: 1,
        };
        let wanted = TextSearch {
            ignore_case: true,
            glob: Some("*.rs".into()),
            limit: Some(5),
            ..text(lines)
        };
        let input = json!({"pattern": "fn main", "output_mode": "content", "-n": true, "-C": 2, "-A": 1, "-i": true,
            "glob": "*.rs", "head_limit": 5, "multiline": false});
        assert_eq!(search("Grep", input), Some(Search::Text(wanted)));
        let gemini = json!({"pattern": "fn main", "include": "*.rs", "dir_path": "src"});
        let lines = SearchOutput::Lines {
            numbers: true,
            before: 0,
            after: 0,
        };
        let wanted = TextSearch {
            glob: Some("*.rs".into()),
            ..text(lines)
        };
        assert_eq!(
            search("search_file_content", gemini),
            Some(Search::Text(wanted))
        );
    }

    #[test]
    fn an_argument_that_would_be_left_out_is_not_left_out() {
        for (name, input) in [
            ("Grep", json!({"pattern": "x", "type": "rust"})),
            ("Grep", json!({"pattern": "x", "multiline": true})),
            ("Grep", json!({"pattern": "x", "output_mode": "json"})),
            ("Grep", json!({"pattern": 7})),
            ("Grep", json!({"pattern": "x", "head_limit": -1})),
            ("Grep", json!({})),
            ("Glob", json!({"pattern": "*", "exclude": "a"})),
            (
                "search_files",
                json!({"pattern": "a", "excludePatterns": ["b"]}),
            ),
            ("directory_tree", json!({"path": "."})),
        ] {
            assert_eq!(search(name, input.clone()), None, "{name} {input}");
        }
    }
}
