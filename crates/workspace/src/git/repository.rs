//! Recognises repositories by git's own rule (`is_git_directory` in git's setup.c).
//!
//! Git looks for a repository in the current directory and in every one above it: first at
//! `.git`, a directory or a file that points to one, then at the directory itself. It takes a
//! directory for one when it has a `HEAD` and, in itself or in the directory that its `commondir`
//! names, `objects` and `refs`. What `HEAD` holds, where `commondir` leads and whether the two
//! directories can be entered is not asked here: the agent can change that later, or the host's
//! tree can have it already. So everything that git takes for a repository is one here, too.

use super::part;
use crate::tree;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

/// Whether a name leads to `.git` on some file system, as git's own `is_ntfs_dotgit` and
/// `is_hfs_dotgit` have it: case may not count, FAT and NTFS drop dots and spaces at the end and
/// have short names, HFS+ and ext4 with casefold do not see some characters.
pub(crate) fn is_git_name(name: &OsStr) -> bool {
    let name = ironcage_catalog::as_compared(name).to_ascii_lowercase();
    let short = name.strip_prefix(b"git~");
    name == b".git" || short.is_some_and(|rest| rest.iter().all(u8::is_ascii_digit))
}

/// The names that make a directory a repository.
pub(crate) const MAKERS: [&str; 4] = ["HEAD", "commondir", "objects", "refs"];

/// Whether git takes a directory that has some names for a repository.
pub(crate) fn is_repository(has: &dyn Fn(&str) -> bool) -> bool {
    has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

/// Whether git takes a real directory for a repository.
pub(crate) fn is_real(directory: BorrowedFd<'_>) -> bool {
    is_repository(&|name| matches!(tree::look(directory, OsStr::new(name)), Ok(Some(_))))
}

/// The same by its path.
pub(crate) fn is_real_path(directory: &Path) -> bool {
    tree::open_root(directory).is_ok_and(|directory| is_real(directory.as_fd()))
}

/// The directory that git takes for a repository of which a path is a part. `has` tells whether a
/// directory has a name in it, by the change or really.
pub(crate) fn around(path: &Path, has: &dyn Fn(&Path, &str) -> bool) -> Option<PathBuf> {
    let mut below = path;
    while let Some(directory) = below.parent() {
        let name = below.file_name().unwrap_or_default();
        if part::is_name(name) && is_repository(&|name| has(directory, name)) {
            return Some(directory.to_owned());
        }
        below = directory;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Whether git itself takes a directory for a repository.
    fn git_takes(directory: &Path) -> bool {
        let output = Command::new("git")
            .args(["rev-parse", "--resolve-git-dir", "."])
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .output()
            .expect("git");
        output.status.success()
    }

    #[test]
    fn every_directory_that_git_takes_for_a_repository_is_one() {
        let base = tempfile::tempdir().expect("a directory");
        let common = base.path().join("common");
        for name in ["objects", "refs"] {
            std::fs::create_dir_all(common.join(name)).expect("a directory");
        }
        let (mut taken, mut left) = (0, 0);
        // Every combination of names, each as a file, a directory or a link.
        for number in 0..4_usize.pow(4) {
            let place = base.path().join(format!("d{number}"));
            std::fs::create_dir(&place).expect("a directory");
            for (at, name) in MAKERS.iter().enumerate() {
                let path = place.join(name);
                match number / 4_usize.pow(u32::try_from(at).expect("small")) % 4 {
                    0 => {}
                    1 if *name == "HEAD" => {
                        std::fs::write(path, "ref: refs/heads/x\n").expect("a file")
                    }
                    1 => std::fs::write(path, "../common\n").expect("a file"),
                    2 => std::fs::create_dir(path).expect("a directory"),
                    _ if *name == "HEAD" => {
                        std::os::unix::fs::symlink("refs/heads/x", path).expect("a link");
                    }
                    _ => std::os::unix::fs::symlink("../common/refs", path).expect("a link"),
                }
            }
            match git_takes(&place) {
                true => {
                    assert!(is_real_path(&place), "{number}");
                    taken += 1;
                }
                false => left += 1,
            }
        }
        assert!(taken > 10 && left > 10, "{taken} {left}");
        let plain = base.path().join("d0");
        assert!(!is_real_path(&plain) && !git_takes(&plain));
    }

    #[test]
    fn every_name_of_the_git_directory_on_some_file_system_is_one() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git . .",
            "git~1",
            "GIT~2",
            ".g\u{200c}it",
            "\u{feff}.GIT",
        ] {
            assert!(is_git_name(OsStr::new(name)), "{name:?}");
        }
        for name in [
            "git",
            ".gitignore",
            ".github",
            "git~x",
            ".git x",
            "x.git",
            "gitx~1",
        ] {
            assert!(!is_git_name(OsStr::new(name)), "{name:?}");
        }
    }

    #[test]
    fn a_part_belongs_to_the_innermost_directory_that_is_a_repository() {
        let has = |directory: &Path, name: &str| {
            directory == Path::new("a/b") && matches!(name, "HEAD" | "commondir")
        };
        let found = |path: &str| around(Path::new(path), &has);
        for path in [
            "a/b/commondir",
            "a/b/hooks/pre-commit",
            "a/b/config.worktree",
            "a/b/info",
        ] {
            assert_eq!(found(path), Some(PathBuf::from("a/b")), "{path}");
        }
        for path in ["a/b/main.rs", "a/HEAD", "a/b/src/config"] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
