//! Whether a path stays below a directory, from its text alone.
//!
//! Links are the cage's business: what a server opens, its cage decides. Here only the text counts,
//! and text that programs read differently is refused: `..`, `%2e`, backslashes, a `~`.

use std::path::{Path, PathBuf};
use unicode_normalization::UnicodeNormalization;

/// What every program reads as the same path, made absolute. `None` for anything else.
pub(crate) fn plain(text: &str, cwd: Option<&Path>) -> Option<PathBuf> {
    let (text, url) = match text.get(..7) {
        Some(scheme) if scheme.eq_ignore_ascii_case("file://") => (text.get(7..)?, true),
        _ => (text, false),
    };
    if text.is_empty() || text.len() > 4096 || text.starts_with('~') {
        return None;
    }
    // Programs trim names, take in variables, and read `data:x` as an address.
    let first = text.split('/').next().unwrap_or_default();
    if text.trim() != text || text.contains('$') || first.contains(':') {
        return None;
    }
    if url && !text.starts_with('/') {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let encoded = ["%2e", "%2f", "%5c", "%00", "%25"];
    if encoded.iter().any(|code| lower.contains(code)) || (url && text.contains(['%', '?', '#'])) {
        return None;
    }
    let plain = |c: char| {
        let mut folded = std::iter::once(c).nfkc();
        let special = |c: char| matches!(c, '/' | '\\' | '.' | '~' | ':' | '%');
        c.is_ascii() && !c.is_ascii_control() && c != '\\'
            || !c.is_ascii() && !folded.any(special) && crate::findings(&c.to_string()).is_empty()
    };
    if !text.chars().all(plain) {
        return None;
    }
    if text.split('/').any(|part| part == "..") {
        return None;
    }
    let path = match text.starts_with('/') {
        true => PathBuf::from(text),
        false => cwd?.join(text),
    };
    // Without `.` and doubled slashes.
    Some(path.components().collect())
}

/// Whether it is one of the directories, or below one.
pub(crate) fn is_below(text: &str, roots: &[PathBuf], cwd: Option<&Path>) -> bool {
    let path = plain(text, cwd);
    path.is_some_and(|path| roots.iter().any(|root| path.starts_with(root)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_is_one_and_tricks_are_not() {
        let roots = [PathBuf::from("/srv/data")];
        let below = |text: &str| is_below(text, &roots, Some(Path::new("/srv/data/x")));
        for text in [
            "/srv/data",
            "/srv/data/a b.txt",
            "/srv//data/./a",
            "file:///srv/data/a",
            "a/ä..b",
            "./a",
            "x/a:b",
        ] {
            assert!(below(text), "{text}");
        }
        for text in [
            "/srv/database",
            "/srv/data/../other",
            "../a",
            "/srv/data/%2e%2e/x",
            "/srv/data/..\\x",
            "~/a",
            "/etc/passwd",
            "file://host/srv/data/a",
            "file:///srv/data/%2e%2e/x",
            "/srv/data/\u{2024}\u{2024}/x",
            "/srv/data/\u{ff0f}x",
            "/srv/data/\u{202e}x",
            "/srv/data/a\0b",
            "http://x/y",
            "data:x",
            "C:/x",
            " /srv/data/a",
            "a ",
            "$HOME/a",
            "/srv/data/${X}",
            "",
        ] {
            assert!(!below(text), "{text:?}");
        }
        assert!(!is_below("a", &roots, None));
    }
}
