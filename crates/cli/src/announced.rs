//! What `run` has printed before: the same note for the same workspace is printed once.

use ironcage_files::{Links, read_text};
use std::collections::hash_map::DefaultHasher;
use std::fs::DirBuilder;
use std::hash::{Hash as _, Hasher as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Numbers of notes that were printed, one a line, the newest last.
const FILE: &str = "announced";
/// Bytes of that file, at most.
const LARGEST: u64 = 64 * 1024;
/// Older ones are forgotten, and printed once more.
const MOST: usize = 256;

/// Whether these lines were not printed for this workspace yet, as far as is known. They count as
/// printed from now on.
pub(crate) fn is_new(state: &Path, workspace: &Path, lines: &[String]) -> bool {
    let mut hasher = DefaultHasher::new();
    (workspace, lines).hash(&mut hasher);
    let number = format!("{:016x}", hasher.finish());
    let path = state.join(FILE);
    // Unreadable is unknown: printing twice does no harm, and neither does a lost update.
    let known = read_text(&path, LARGEST, Links::Refuse).unwrap_or_default();
    let mut numbers: Vec<&str> = known.lines().collect();
    if numbers.contains(&number.as_str()) {
        return false;
    }
    numbers.push(&number);
    let first = numbers.len().saturating_sub(MOST);
    let kept = numbers.get(first..).unwrap_or_default().join("\n");
    let kept = kept + "\n";
    if std::fs::write(&path, &kept).is_err() {
        // The first run makes the directory.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(state);
        let _ = std::fs::write(&path, &kept);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_note_is_new_once_for_each_workspace() {
        let state = std::env::temp_dir().join(format!("announced-{}", std::process::id()));
        std::fs::create_dir_all(&state).unwrap();
        let (a, b) = (Path::new("/a"), Path::new("/b"));
        let lines = |text: &str| vec![text.to_owned()];
        assert!(is_new(&state, a, &lines("profile shell")));
        assert!(!is_new(&state, a, &lines("profile shell")));
        assert!(is_new(&state, a, &lines("profile python")));
        assert!(is_new(&state, b, &lines("profile shell")));
        for number in 0..MOST {
            is_new(&state, b, &lines(&number.to_string()));
        }
        let kept = std::fs::read_to_string(state.join(FILE)).unwrap();
        assert_eq!(kept.lines().count(), MOST);
        assert!(is_new(&state, a, &lines("profile shell")), "forgotten");
        std::fs::remove_dir_all(&state).unwrap();
    }
}
