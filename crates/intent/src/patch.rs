//! Patches in the form of Codex's `apply_patch`.
//!
//! ```text
//! *** Begin Patch
//! *** Update File: src/a.rs
//! @@ fn main() {
//! -    old();
//! +    new();
//! *** End Patch
//! ```

use crate::needs::tidy;
use crate::shell::Context;
use std::path::PathBuf;

/// One file of a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchedFile {
    /// Its absolute path, from the text alone.
    pub path: PathBuf,
    pub work: PatchWork,
}

/// What a patch does with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchWork {
    Add {
        content: String,
    },
    Delete,
    Update {
        hunks: Vec<Hunk>,
        /// Where it is afterwards, if it moves.
        to: Option<PathBuf>,
    },
}

/// Lines that replace others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hunk {
    /// A line after which they are looked for.
    pub after: Option<String>,
    pub old: Vec<String>,
    pub new: Vec<String>,
    /// Whether the old lines are the last of the file.
    pub at_end: bool,
}

impl PatchedFile {
    /// Every path that it changes.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let to = match &self.work {
            PatchWork::Update { to, .. } => to.as_ref(),
            PatchWork::Add { .. } | PatchWork::Delete => None,
        };
        std::iter::once(&self.path).chain(to)
    }
}

impl Hunk {
    fn is_empty(&self) -> bool {
        self.old.is_empty() && self.new.is_empty()
    }
}

/// Reads a patch. `None` for text that is not one from its first line to its last.
pub(crate) fn read(text: &str, here: &Context) -> Option<Vec<PatchedFile>> {
    let mut lines = text.trim().lines();
    if lines.next()?.trim_end() != "*** Begin Patch" {
        return None;
    }
    let place = |path: &str| {
        let path = path.trim();
        (!path.is_empty()).then(|| tidy(&here.cwd, path))
    };
    let mut files: Vec<PatchedFile> = Vec::new();
    let mut ended = false;
    for line in lines {
        if ended {
            return None;
        }
        if let Some(mark) = line.strip_prefix("*** ") {
            match mark.trim_end() {
                "End Patch" => ended = true,
                "End of File" => hunk(files.last_mut()?)?.at_end = true,
                mark => match mark.split_once(": ")? {
                    ("Add File", path) => files.push(PatchedFile {
                        path: place(path)?,
                        work: PatchWork::Add {
                            content: String::new(),
                        },
                    }),
                    ("Delete File", path) => files.push(PatchedFile {
                        path: place(path)?,
                        work: PatchWork::Delete,
                    }),
                    ("Update File", path) => files.push(PatchedFile {
                        path: place(path)?,
                        work: PatchWork::Update {
                            hunks: Vec::new(),
                            to: None,
                        },
                    }),
                    ("Move to", path) => match &mut files.last_mut()?.work {
                        PatchWork::Update { hunks, to } if hunks.is_empty() && to.is_none() => {
                            *to = Some(place(path)?);
                        }
                        _ => return None,
                    },
                    _ => return None,
                },
            }
            continue;
        }
        change(files.last_mut()?, line)?;
    }
    let whole = |file: &PatchedFile| match &file.work {
        PatchWork::Update { hunks, to } => {
            (!hunks.is_empty() || to.is_some()) && !hunks.iter().any(Hunk::is_empty)
        }
        PatchWork::Add { .. } | PatchWork::Delete => true,
    };
    (ended && !files.is_empty() && files.iter().all(whole)).then_some(files)
}

fn hunk(file: &mut PatchedFile) -> Option<&mut Hunk> {
    match &mut file.work {
        PatchWork::Update { hunks, .. } => hunks.last_mut(),
        PatchWork::Add { .. } | PatchWork::Delete => None,
    }
}

/// One line of a file's part of the patch.
fn change(file: &mut PatchedFile, line: &str) -> Option<()> {
    match &mut file.work {
        PatchWork::Add { content } => {
            content.push_str(line.strip_prefix('+')?);
            content.push('\n');
        }
        PatchWork::Delete => return line.trim().is_empty().then_some(()),
        PatchWork::Update { hunks, .. } => {
            if let Some(after) = line.strip_prefix("@@") {
                let after = after.strip_prefix(' ').unwrap_or(after);
                hunks.push(Hunk {
                    after: (!after.is_empty()).then(|| after.to_owned()),
                    ..Hunk::default()
                });
                return Some(());
            }
            if hunks.last().is_none_or(|hunk| hunk.at_end) {
                hunks.push(Hunk::default());
            }
            let hunk = hunks.last_mut()?;
            let (kind, rest) = line.split_at_checked(1).unwrap_or((" ", ""));
            if kind != "+" {
                hunk.old.push(rest.to_owned());
            }
            if kind != "-" {
                hunk.new.push(rest.to_owned());
            }
            if !matches!(kind, "+" | "-" | " ") {
                return None;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(text: &str) -> Option<Vec<PatchedFile>> {
        let here = Context {
            cwd: "/w".into(),
            home: None,
        };
        read(text, &here)
    }

    #[test]
    fn every_kind_of_change_is_read() {
        let text = "*** Begin Patch\n*** Add File: a\n+one\n+\n*** Delete File: ../b\n*** Update File: c\n*** Move to: d\n\
                    @@ fn f() {\n x\n-y\n+z\n@@\n+end\n*** End of File\n*** End Patch\n";
        let files = patch(text).unwrap();
        let paths: Vec<String> = (files.iter().flat_map(PatchedFile::paths))
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(paths, ["/w/a", "/b", "/w/c", "/w/d"]);
        let content = "one\n\n".to_owned();
        assert_eq!(files[0].work, PatchWork::Add { content });
        assert_eq!(files[1].work, PatchWork::Delete);
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let hunks = vec![
            Hunk {
                after: Some("fn f() {".into()),
                old: lines(&["x", "y"]),
                new: lines(&["x", "z"]),
                at_end: false,
            },
            Hunk {
                after: None,
                old: Vec::new(),
                new: lines(&["end"]),
                at_end: true,
            },
        ];
        let to = Some("/w/d".into());
        assert_eq!(files[2].work, PatchWork::Update { hunks, to });
    }

    #[test]
    fn what_is_not_a_patch_from_end_to_end_is_none() {
        for text in [
            "",
            "*** Begin Patch\n*** End Patch",
            "*** Begin Patch\n*** Add File: a\n+x",
            "*** Begin Patch\n*** Add File: a\nx\n*** End Patch",
            "*** Begin Patch\n*** Add File: \n+x\n*** End Patch",
            "*** Begin Patch\n*** Update File: a\n*** End Patch",
            "*** Begin Patch\n*** Update File: a\n@@\n*** End Patch",
            "*** Begin Patch\n*** Update File: a\n?x\n*** End Patch",
            "*** Begin Patch\n*** Chmod File: a\n*** End Patch",
            "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n*** Delete File: b",
            "*** Begin Patch\n*** Add File: a\n*** Move to: b\n*** End Patch",
            "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
        ] {
            assert_eq!(patch(text), None, "{text}");
        }
    }
}
