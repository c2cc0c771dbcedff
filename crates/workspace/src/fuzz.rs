//! The parsers of what an agent leaves in a change, for the fuzzer in `fuzz/`: each panics where what
//! it found breaks a promise.

use crate::git::fuzz;
use crate::gitignore::Gitignore;
use std::path::Path;

/// An index of git: what is read and may be written is read the same again.
pub fn git_index(bytes: &[u8]) {
    fuzz::index(bytes);
}

/// Settings of git, the user's before a zero byte and the agent's after it: what comes over is what
/// was judged, and nothing beside it.
pub fn git_settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (real, agents) = text.split_once('\0').unwrap_or(("", text));
    fuzz::settings(real, agents);
}

/// Rules of a `.gitignore` and a path, between them a zero byte.
pub fn gitignore(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (Some(rules), Some(path)) = (parts.next(), parts.next()) else {
        return;
    };
    let Ok(path) = std::str::from_utf8(path) else {
        return;
    };
    if let Some(rules) = Gitignore::parse(Path::new(""), rules) {
        let _ = rules.judge(Path::new(path), false);
        let _ = rules.judge(Path::new(path), true);
    }
}
