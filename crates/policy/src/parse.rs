//! Parses text into a `PolicyFile`, with errors that show the line and the fix.

use crate::diagnostic::Document;
use crate::{Diagnostic, PolicyFile};
use std::path::Path;

/// Reads policy text. `path` is what errors name.
///
/// # Errors
/// Where the text is not TOML, has a key that does not exist, or a value of the wrong type.
pub fn parse(path: &Path, text: &str) -> Result<PolicyFile, Diagnostic> {
    parse_document(&Document {
        path: path.to_owned(),
        text: text.into(),
    })
}

pub(crate) fn parse_document(document: &Document) -> Result<PolicyFile, Diagnostic> {
    toml::from_str(&document.text).map_err(|error| explain(document, &error))
}

/// Every key, to find what a misspelt one may have meant.
const SECTIONS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "extends",
            "workspace",
            "files",
            "env",
            "process",
            "syscalls",
            "limits",
            "layers",
        ],
    ),
    ("workspace", &["mode", "in-memory", "unprotect"]),
    (
        "files",
        &["read", "write", "write-direct", "hide", "hide-sensitive"],
    ),
    ("env", &["pass", "set"]),
    (
        "process",
        &[
            "hostname",
            "root-inside",
            "guest-root",
            "side-channels",
            "capabilities",
        ],
    ),
    ("syscalls", &["list", "groups"]),
    (
        "limits",
        &[
            "memory", "cpus", "pids", "disk", "inodes", "files", "time", "idle", "fuel",
        ],
    ),
    ("layers", &["require", "allow-degraded"]),
];

/// What a right value of each key looks like.
const EXAMPLES: &[(&str, &str)] = &[
    ("extends", "extends = \"coding-agent\""),
    ("profile", "profile = \"coding-agent\""),
    ("mode", "mode = \"read-only\""),
    ("unprotect", "unprotect = [\".vscode\"]"),
    ("read", "read = [\"~/datasets\"]"),
    ("write", "write = [\"~/.cache/pip\"]"),
    ("write-direct", "write-direct = [\"~/build\"]"),
    ("hide", "hide = [\"secrets\", \"**/.env\"]"),
    ("pass", "pass = [\"EDITOR\"]"),
    ("set", "set = { DEBUG = \"1\" }"),
    ("hostname", "hostname = \"cage\""),
    ("root-inside", "root-inside = true"),
    ("guest-root", "guest-root = true"),
    ("side-channels", "side-channels = \"hardened\""),
    ("capabilities", "capabilities = [\"CAP_NET_BIND_SERVICE\"]"),
    ("list", "list = \"minimal\""),
    ("groups", "groups = [\"debug\"]"),
    ("memory", "memory = \"2G\" or memory = \"50%\""),
    ("cpus", "cpus = 1.5 or cpus = \"50%\""),
    ("pids", "pids = 512"),
    ("disk", "disk = \"4G\" or disk = \"10%\""),
    ("inodes", "inodes = 100000"),
    ("files", "files = 4096"),
    ("time", "time = \"30m\" or time = \"none\""),
    ("idle", "idle = \"5m\" or idle = \"none\""),
    ("fuel", "fuel = 1000000000"),
    ("require", "require = [\"landlock\"]"),
    ("allow-degraded", "allow-degraded = [\"time-ns\"]"),
];

fn explain(document: &Document, error: &toml::de::Error) -> Diagnostic {
    let span = error.span().unwrap_or(0..0);
    let message = error.message();
    if let Some(key) = quoted_after(message, "unknown field `") {
        return unknown_key(document, span, key, message);
    }
    let wrong_type =
        message.starts_with("invalid type") || message.starts_with("expected a number");
    let title = if wrong_type {
        "a value has the wrong type"
    } else if message.starts_with("duplicate key") {
        "duplicate key"
    } else {
        "the policy is not valid TOML"
    };
    let diagnostic = Diagnostic::new(document, span.clone(), title, message);
    match key_before(&document.text, span.start) {
        Some(key) if wrong_type => match EXAMPLES.iter().find(|(known, _)| *known == key) {
            Some((_, example)) => diagnostic.remedy(format!("use {example}")),
            None => diagnostic,
        },
        _ => diagnostic,
    }
}

fn unknown_key(
    document: &Document,
    span: std::ops::Range<usize>,
    key: &str,
    message: &str,
) -> Diagnostic {
    let title = format!("unknown key `{key}`");
    // The message lists the keys of the section that the unknown one stands in.
    let allowed: Vec<&str> = message
        .split_once(", expected ")
        .map(|(_, list)| list.split('`').skip(1).step_by(2).collect())
        .unwrap_or_default();
    let allowed: Vec<&str> = allowed
        .into_iter()
        .filter(|name| *name != "profile")
        .collect();
    if let Some(near) = nearest(key, &allowed) {
        return Diagnostic::new(document, span, title, "unknown key")
            .remedy(format!("did you mean `{near}`?"));
    }
    let elsewhere = SECTIONS
        .iter()
        .find(|(section, keys)| !section.is_empty() && keys.contains(&key));
    let remedy = match elsewhere {
        Some((section, _)) => format!("move `{key}` to the section [{section}]"),
        None if allowed.is_empty() => "remove it".to_owned(),
        None => format!("expected one of {}", allowed.join(", ")),
    };
    Diagnostic::new(document, span, title, "unknown key").remedy(remedy)
}

/// The one of the names that is most like this one, if any is.
pub(crate) fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    names
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known), *known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min()
        .map(|(_, known)| known)
}

fn quoted_after<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    let (name, _) = message.strip_prefix(start)?.split_once('`')?;
    Some(name)
}

/// The key whose value stands at a place: the last bare word before an `=`.
fn key_before(text: &str, at: usize) -> Option<&str> {
    let (before, _) = text.get(..at)?.rsplit_once('=')?;
    let key = before.trim_end();
    let start = key
        .rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
        .map_or(0, |index| index + 1);
    key.get(start..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fail(text: &str) -> String {
        parse(Path::new("ironcage.toml"), text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_file_with_every_key_parses() {
        let file = parse(Path::new("ironcage.toml"), EVERY_KEY).unwrap();
        assert_eq!(file.limits.pids.unwrap().into_inner(), 512);
        assert_eq!(file.env.set.len(), 1);
    }

    #[test]
    fn an_empty_file_is_a_policy() {
        assert!(parse(Path::new("ironcage.toml"), "").is_ok());
    }

    #[test]
    fn a_misspelt_key_is_shown_with_what_was_meant() {
        let shown = fail("[limits]\nmemroy = \"2G\"\n");
        assert!(shown.contains("unknown key `memroy`"), "{shown}");
        assert!(shown.contains("ironcage.toml:2:1"), "{shown}");
        assert!(shown.contains("^^^^^^"), "{shown}");
        assert!(shown.contains("did you mean `memory`?"), "{shown}");
    }

    #[test]
    fn a_key_of_another_section_is_sent_there() {
        let shown = fail("memory = \"2G\"\n");
        assert!(shown.contains("to the section [limits]"), "{shown}");
    }

    #[test]
    fn an_unknown_key_like_no_other_lists_those_that_exist() {
        let shown = fail("[files]\nblorb = 1\n");
        assert!(
            shown.contains("expected one of read, write, write-direct, hide"),
            "{shown}"
        );
    }

    #[test]
    fn a_wrong_type_is_shown_with_an_example() {
        let shown = fail("[limits]\nmemory = 5\n");
        assert!(
            shown.contains("wrong type") && shown.contains(":2:10"),
            "{shown}"
        );
        assert!(shown.contains("use memory = \"2G\""), "{shown}");
        let shown = fail("[limits]\ncpus = []\n");
        assert!(shown.contains("use cpus = 1.5"), "{shown}");
        let shown = fail("[files]\nread = [1]\n");
        assert!(shown.contains("use read = ["), "{shown}");
    }

    #[test]
    fn control_characters_of_a_file_do_not_reach_the_terminal() {
        let acts = ['\u{1b}', '\u{7}', '\u{9b}', '\u{9d}', '\u{200b}'];
        for text in [
            "[limits]\n\"mem\u{1b}]0;x\u{7}\" = 1\n# \u{1b}[31m\n",
            "[limits]\n\"mem\u{9b}31m\u{9d}52;c\u{200b}\" = 1\n",
        ] {
            let shown = fail(text);
            assert!(shown.contains("31m") && !shown.contains(acts), "{shown:?}");
        }
    }

    const EVERY_KEY: &str = include_str!("../tests/every_key.toml");

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC*|(?s).{0,200}") {
            if let Err(error) = parse(Path::new("x"), &text) {
                let _ = error.to_string();
            }
        }

        #[test]
        fn a_mutated_policy_never_panics(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..12)
        ) {
            let mut bytes = EVERY_KEY.as_bytes().to_vec();
            for (index, byte, kind) in edits {
                if bytes.is_empty() {
                    break;
                }
                let at = index.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => {
                        bytes.remove(at);
                    }
                    _ => bytes.insert(at, byte),
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            if let Err(error) = parse(Path::new("x"), &text) {
                let _ = error.to_string();
            }
        }
    }
}
