//! What a path in a git directory is, and what becomes of it.

use super::objects::{self, ObjectFile};
use std::path::{Path, PathBuf};

/// What a path in a git directory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// An object: brought over when it is what its name says.
    Object(ObjectFile),
    /// A reference: moved by compare and swap.
    Reference(String),
    /// All references that are packed.
    PackedReferences,
    /// HEAD of a worktree.
    Head,
    /// The index of a worktree.
    Index,
    /// Text that runs nothing: logs, messages, the state of a merge.
    Text,
    /// The settings.
    Config,
    /// A directory that parts are in.
    Directory,
    /// Of no use to the host, or made again when it is missing.
    Passing,
    /// It stays aside until it is named.
    Withheld(&'static str),
}

/// A git directory in a git directory, and what a path in it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sorted {
    /// The directory whose part it is, below the git directory: empty, a worktree's, a module's.
    pub(crate) base: PathBuf,
    /// What it is there.
    pub(crate) part: Part,
}

const TEXTS: &[&str] = &[
    "ORIG_HEAD",
    "MERGE_HEAD",
    "MERGE_MSG",
    "MERGE_MODE",
    "MERGE_RR",
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "AUTO_MERGE",
    "SQUASH_MSG",
    "TAG_EDITMSG",
    "description",
];

/// Sorts a path below a git directory. `own` is the worktree's part of a common directory;
/// `is_module` tells whether a path below is a git directory that was there before.
pub(crate) fn sort(path: &Path, own: Option<&Path>, is_module: &dyn Fn(&Path) -> bool) -> Sorted {
    let here = |part| Sorted {
        base: PathBuf::new(),
        part,
    };
    if let Some(own) = own {
        if let Ok(below) = path.strip_prefix(own) {
            return Sorted {
                base: own.to_owned(),
                part: of_worktree(below),
            };
        }
        if own.starts_with(path) {
            return here(Part::Directory);
        }
        if path.starts_with("worktrees") || path == Path::new("HEAD") || path == Path::new("index")
        {
            return here(Part::Withheld("it belongs to another worktree"));
        }
    }
    if path.starts_with("modules") {
        let module = path.ancestors().find(|above| is_module(above));
        return match module {
            Some(module) => {
                let below = path.strip_prefix(module).unwrap_or(path);
                let inner = sort(below, None, &|_| false);
                Sorted {
                    base: module.join(inner.base),
                    part: inner.part,
                }
            }
            None if path.components().count() == 1 => here(Part::Directory),
            None => here(Part::Withheld(
                "the git directory of a submodule that was not there: its settings and hooks would run",
            )),
        };
    }
    here(of_repository(path))
}

fn of_repository(path: &Path) -> Part {
    let Some(text) = path.to_str() else {
        return Part::Withheld("its name is none of git's");
    };
    if text.is_empty() {
        return Part::Directory;
    }
    if text.ends_with(".lock") {
        return Part::Passing;
    }
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    match (first, rest) {
        ("HEAD", "") => Part::Head,
        ("index", "") => Part::Index,
        ("config", "") => Part::Config,
        ("packed-refs", "") => Part::PackedReferences,
        ("objects", rest) => of_objects(rest),
        ("refs", rest) if rest == "replace" || rest.starts_with("replace/") => {
            Part::Withheld("makes git show other objects than those that are named")
        }
        ("refs", _) => Part::Reference(text.to_owned()),
        ("logs", "") => Part::Directory,
        ("logs", _) => Part::Text,
        ("info", "") => Part::Directory,
        ("info", "refs") | ("gc.log" | "gc.pid" | "branches", _) => Part::Passing,
        (name, "") if TEXTS.contains(&name) => Part::Text,
        ("hooks", _) => {
            Part::Withheld("programs that git runs on the next commit, checkout or push")
        }
        ("rebase-merge" | "rebase-apply" | "sequencer", _) => {
            Part::Withheld("can hold commands that git runs when it goes on with a rebase")
        }
        ("commondir" | "gitdir", _) => {
            Part::Withheld("leads git to a directory whose settings and hooks then run")
        }
        ("worktrees", _) => Part::Withheld("belongs to another worktree"),
        ("info", _) => Part::Withheld("names filters that git runs, or changes what it shows"),
        ("shallow", _) => Part::Withheld("changes where history ends"),
        _ => Part::Withheld("it is no part of a repository that is brought over"),
    }
}

fn of_objects(rest: &str) -> Part {
    let path = Path::new(rest);
    if let Some(file) = objects::sort(path) {
        return Part::Object(file);
    }
    match rest {
        "" | "pack" | "info" => Part::Directory,
        "info/alternates" | "info/http-alternates" => {
            Part::Withheld("leads git to objects in another place")
        }
        _ if rest.len() == 2 => Part::Directory,
        _ => Part::Passing,
    }
}

/// What a worktree has of its own: HEAD, the index, logs and the state of a merge.
fn of_worktree(path: &Path) -> Part {
    match of_repository(path) {
        part @ (Part::Head
        | Part::Index
        | Part::Text
        | Part::Directory
        | Part::Passing
        | Part::Withheld(_)) => part,
        Part::Reference(_) => Part::Passing,
        _ => Part::Withheld("it is no part of a worktree that is brought over"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(path: &str) -> Part {
        sort(Path::new(path), None, &|_| false).part
    }

    #[test]
    fn what_runs_or_misleads_is_withheld_and_what_commits_make_is_not() {
        for path in [
            "hooks/pre-commit",
            "info/attributes",
            "info/grafts",
            "rebase-merge/git-rebase-todo",
            "sequencer/todo",
            "commondir",
            "gitdir",
            "objects/info/alternates",
            "refs/replace/x",
            "config.worktree",
            "modules/evil/config",
            "shallow",
            "worktrees/x/HEAD",
            "other",
        ] {
            assert!(matches!(part(path), Part::Withheld(_)), "{path}");
        }
        assert_eq!(part("HEAD"), Part::Head);
        assert_eq!(
            part("refs/heads/a/b"),
            Part::Reference("refs/heads/a/b".into())
        );
        assert_eq!(part("logs/refs/heads/x"), Part::Text);
        assert_eq!(part("index.lock"), Part::Passing);
    }

    #[test]
    fn a_worktree_moves_only_what_is_its_own() {
        let own = Path::new("worktrees/mine");
        let sorted = |path: &str| sort(Path::new(path), Some(own), &|_| false);
        assert_eq!(sorted("worktrees/mine/HEAD").part, Part::Head);
        assert_eq!(sorted("worktrees/mine/HEAD").base, own);
        assert_eq!(sorted("worktrees/mine/index").part, Part::Index);
        assert_eq!(
            sorted("refs/heads/x").part,
            Part::Reference("refs/heads/x".into())
        );
        for other in [
            "HEAD",
            "index",
            "worktrees/theirs/HEAD",
            "worktrees/mine/gitdir",
            "worktrees/mine/config.worktree",
        ] {
            assert!(matches!(sorted(other).part, Part::Withheld(_)), "{other}");
        }
    }

    #[test]
    fn a_submodule_that_was_there_has_the_rules_of_a_repository() {
        let known = |path: &Path| path == Path::new("modules/lib/x");
        let sorted = |path: &str| sort(Path::new(path), None, &known);
        assert_eq!(sorted("modules/lib/x/HEAD").part, Part::Head);
        assert_eq!(
            sorted("modules/lib/x/HEAD").base,
            Path::new("modules/lib/x")
        );
        assert!(matches!(
            sorted("modules/lib/x/hooks/y").part,
            Part::Withheld(_)
        ));
        assert!(matches!(
            sorted("modules/lib/new/HEAD").part,
            Part::Withheld(_)
        ));
    }
}
