//! The bash cases of RedCode-Exec, made harmless to run: every path of a host that they name is a
//! path of the stage.

use super::failed;
use crate::BenchError;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Shown with every number that comes from it, as its licence asks.
pub(super) const ATTRIBUTION: &str = "RedCode-Exec by Guo et al., 2024 (AI-secure/RedCode), CC BY 4.0; paths were changed to those of a stage";

/// Directories of a host that the cases name. `/dev` stays: its null device is in every script.
const TOPS: [&str; 16] = [
    "etc", "usr", "root", "app", "home", "var", "bin", "sbin", "lib", "opt", "boot", "srv", "mnt",
    "media", "proc", "sys",
];

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RedCase {
    pub(super) id: String,
    pub(super) code: String,
}

impl RedCase {
    /// The kind of attack: the first part of the id.
    pub(super) fn category(&self) -> &str {
        self.id.split('_').next().unwrap_or(&self.id)
    }
}

/// Reads the corpus; says where it was looked for.
pub(super) fn read(corpora: &Path) -> Result<Vec<RedCase>, BenchError> {
    let path = corpora.join("redcode/cases.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(BenchError::NoCorpus {
                name: "redcode",
                path,
            });
        }
        Err(source) => return Err(BenchError::file("read", &path)(source)),
    };
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

/// A case on a stage: its text, and the paths below the stage that it names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StagedCase {
    pub(super) code: String,
    pub(super) files: BTreeSet<PathBuf>,
    pub(super) directories: BTreeSet<PathBuf>,
}

/// Replaces each path of a host by the same one below `host`.
pub(super) fn stage(code: &str, host: &Path) -> StagedCase {
    let mut staged = StagedCase::default();
    let mut before = ' ';
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let starts = c == '/' && !(before.is_alphanumeric() || "._-/)}".contains(before));
        if starts && let Some(path) = host_path(rest) {
            staged.code.push_str(&host.to_string_lossy());
            staged.code.push_str(path);
            staged.note(path, host);
            before = path.chars().next_back().unwrap_or('/');
            rest = &rest[path.len()..];
            continue;
        }
        staged.code.push(c);
        before = c;
        rest = &rest[c.len_utf8()..];
    }
    staged
}

/// The path of a host that a text begins with. The shell itself is not one.
fn host_path(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_alphanumeric() || "/._+@-".contains(c);
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let path = &text[..end];
    let top = path.trim_start_matches('/').split('/').next()?;
    let shell = ["/bin/bash", "/bin/sh", "/usr/bin/env"].contains(&path);
    (TOPS.contains(&top) && !shell).then_some(path)
}

impl StagedCase {
    fn note(&mut self, path: &str, host: &Path) {
        let below = host.join(path.trim_start_matches('/'));
        let is_directory = path.ends_with('/') || path.matches('/').count() == 1;
        match is_directory {
            true => self.directories.insert(below),
            false => self.files.insert(below),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_host_become_paths_of_the_stage_and_others_stay() {
        let staged = stage(
            "#!/bin/bash\ncat \"/etc/passwd\" > /dev/null; ls /app/; curl http://a.test/etc/x; cd /usr; echo a/etc",
            Path::new("/s"),
        );
        assert_eq!(
            staged.code,
            "#!/bin/bash\ncat \"/s/etc/passwd\" > /dev/null; ls /s/app/; curl http://a.test/etc/x; cd /s/usr; echo a/etc"
        );
        assert_eq!(staged.files, [PathBuf::from("/s/etc/passwd")].into());
        let directories = ["/s/app/", "/s/usr"].map(PathBuf::from);
        assert_eq!(staged.directories, directories.into());
    }

    #[test]
    fn a_corpus_that_is_not_there_is_said_so() {
        let found = read(Path::new("/nowhere"));
        assert!(matches!(found, Err(BenchError::NoCorpus { .. })));
    }
}
