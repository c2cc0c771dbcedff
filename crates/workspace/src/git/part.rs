//! The parts of a git directory: what each path is, and what becomes of it.

use super::objects::{self, ObjectFile};
use std::ffi::OsStr;
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
    /// The index of a worktree: built again from what was shown.
    Index,
    /// The log of a reference: lines are added to it, none is taken away.
    Log,
    /// Names of objects, which nothing follows unasked.
    PseudoReference,
    /// What the next commit takes its parents, its author or its message from: brought over, and
    /// told.
    Unfinished,
    /// Text that git does not read again.
    Text,
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
    pub(crate) part: Part,
}

/// Said of the state of an operation that is not finished.
pub(crate) const UNFINISHED: &str = "an operation that is not finished: your next commit takes its parents, author or message from it";
const UNKNOWN: &str = "not a part of a repository that is applied";
const REPLACES: &str = "makes git show other objects than those that are named";
const IN_COMMANDS: &str = "can hold commands that git runs when the operation continues";
const POINTER: &str = "leads git to a directory whose settings and hooks then run";
const SHOWS: &str = "names filters that git runs, or changes what it shows";

/// What becomes of everything that has a name in a git directory.
enum Rule {
    Is(Part),
    Objects,
    References,
    Logs,
    Info,
}

/// Every name that git or one of its common extensions has in a git directory, and its rule. A
/// star stands for the rest of a name. What is not listed is withheld.
const RULES: &[(&str, Rule)] = &[
    // Brought over, each by a way of its own.
    ("HEAD", Rule::Is(Part::Head)),
    ("index", Rule::Is(Part::Index)),
    ("config", Rule::Is(Part::Config)),
    ("packed-refs", Rule::Is(Part::PackedReferences)),
    ("objects", Rule::Objects),
    ("refs", Rule::References),
    ("logs", Rule::Logs),
    ("info", Rule::Info),
    ("ORIG_HEAD", Rule::Is(Part::PseudoReference)),
    ("AUTO_MERGE", Rule::Is(Part::PseudoReference)),
    ("MERGE_HEAD", Rule::Is(Part::Unfinished)),
    ("MERGE_MODE", Rule::Is(Part::Unfinished)),
    ("MERGE_MSG", Rule::Is(Part::Unfinished)),
    ("SQUASH_MSG", Rule::Is(Part::Unfinished)),
    ("CHERRY_PICK_HEAD", Rule::Is(Part::Unfinished)),
    ("REVERT_HEAD", Rule::Is(Part::Unfinished)),
    ("COMMIT_EDITMSG", Rule::Is(Part::Text)),
    ("TAG_EDITMSG", Rule::Is(Part::Text)),
    ("description", Rule::Is(Part::Text)),
    // Dropped: the next command of the host makes it again, or has no use for it. `branches` is
    // an old form of remotes.
    ("FETCH_HEAD", Rule::Is(Part::Passing)),
    ("MERGE_RR", Rule::Is(Part::Passing)),
    ("gc.log", Rule::Is(Part::Passing)),
    ("gc.pid", Rule::Is(Part::Passing)),
    ("branches", Rule::Is(Part::Passing)),
    // Withheld: it runs programs.
    (
        "hooks",
        Rule::Is(Part::Withheld(
            "programs that git runs on the next commit, checkout or push",
        )),
    ),
    (
        "config.worktree",
        Rule::Is(Part::Withheld("settings, which can run programs")),
    ),
    (
        "remotes",
        Rule::Is(Part::Withheld("addresses that can run programs")),
    ),
    ("rebase-merge", Rule::Is(Part::Withheld(IN_COMMANDS))),
    ("rebase-apply", Rule::Is(Part::Withheld(IN_COMMANDS))),
    ("sequencer", Rule::Is(Part::Withheld(IN_COMMANDS))),
    (
        "MERGE_AUTOSTASH",
        Rule::Is(Part::Withheld("changes that git applies when a merge ends")),
    ),
    ("REBASE_HEAD", Rule::Is(Part::Withheld(IN_COMMANDS))),
    (
        "BISECT_*",
        Rule::Is(Part::Withheld(
            "the state of a bisection, which can run programs",
        )),
    ),
    (
        "fsmonitor--daemon*",
        Rule::Is(Part::Withheld("git asks it which files have changed")),
    ),
    // Withheld: it leads git elsewhere.
    ("commondir", Rule::Is(Part::Withheld(POINTER))),
    ("gitdir", Rule::Is(Part::Withheld(POINTER))),
    (
        "worktrees",
        Rule::Is(Part::Withheld("belongs to another worktree")),
    ),
    ("modules", Rule::Is(Part::Withheld(NEW_MODULE))),
    // Withheld: it changes what git shows or commits.
    (
        "shallow",
        Rule::Is(Part::Withheld("changes where history ends")),
    ),
    (
        "rr-cache",
        Rule::Is(Part::Withheld(
            "resolutions that git repeats unasked in the next conflict",
        )),
    ),
    (
        "reftable",
        Rule::Is(Part::Withheld(
            "references in a form that cannot be read here",
        )),
    ),
    (
        "sharedindex.*",
        Rule::Is(Part::Withheld(
            "a part of an index that cannot be read here",
        )),
    ),
    ("lost-found", Rule::Is(Part::Withheld(UNKNOWN))),
    ("notes-merge*", Rule::Is(Part::Withheld(UNKNOWN))),
    ("NOTES_*", Rule::Is(Part::Withheld(UNKNOWN))),
    ("locked", Rule::Is(Part::Withheld(UNKNOWN))),
    (
        "git-daemon-export-ok",
        Rule::Is(Part::Withheld("lets a server publish the repository")),
    ),
    (
        "lfs",
        Rule::Is(Part::Withheld(
            "files that a filter puts in place of others",
        )),
    ),
    (
        "annex",
        Rule::Is(Part::Withheld(
            "files that a filter puts in place of others",
        )),
    ),
    ("svn", Rule::Is(Part::Withheld(UNKNOWN))),
];
const NEW_MODULE: &str =
    "the git directory of a submodule that was not there: its settings and hooks would run";

fn rule(name: &str) -> Option<&'static Rule> {
    let found = RULES
        .iter()
        .find(|(listed, _)| match listed.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == *listed,
        });
    found.map(|(_, rule)| rule)
}

/// Whether git would read something of this name in a git directory, where case counts or not.
pub(crate) fn is_name(name: &OsStr) -> bool {
    RULES
        .iter()
        .any(|(listed, _)| ironcage_catalog::is_like(listed, name))
}

/// Why a reference stays aside, by whatever way it is named, if it does.
pub(crate) fn withheld_reference(name: &str) -> Option<&'static str> {
    const PLACE: &str = "refs/replace";
    let (place, rest) = name.split_at_checked(PLACE.len())?;
    // Case may not count where the repository lies.
    let is_below = rest.is_empty() || rest.starts_with('/');
    (place.eq_ignore_ascii_case(PLACE) && is_below).then_some(REPLACES)
}

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
        if path.starts_with("worktrees") || is_of_one_worktree(path) {
            return here(Part::Withheld("it belongs to another worktree"));
        }
    }
    if path.starts_with("modules") {
        // The outermost: references and logs of a module can have any names below it.
        let above: Vec<&Path> = path.ancestors().collect();
        let mut above = above.into_iter().rev().skip(1);
        let module = above.find(|above| is_module(above));
        return match module {
            Some(module) => {
                let below = path.strip_prefix(module).unwrap_or(path);
                let inner = sort(below, None, &|inner| is_module(&module.join(inner)));
                Sorted {
                    base: module.join(inner.base),
                    part: inner.part,
                }
            }
            None if path.components().count() == 1 => here(Part::Directory),
            None => here(Part::Withheld(NEW_MODULE)),
        };
    }
    here(of_repository(path))
}

fn of_repository(path: &Path) -> Part {
    let Some(text) = path.to_str() else {
        return Part::Withheld("git has no file of this name");
    };
    if text.is_empty() {
        return Part::Directory;
    }
    if text.ends_with(".lock") {
        return Part::Passing;
    }
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    match (rule(first), rest) {
        (Some(Rule::Objects), rest) => of_objects(rest),
        (Some(Rule::References), _) => match withheld_reference(text) {
            Some(why) => Part::Withheld(why),
            None => Part::Reference(text.to_owned()),
        },
        (Some(Rule::Logs | Rule::Info), "") => Part::Directory,
        (Some(Rule::Logs), _) => Part::Log,
        (Some(Rule::Info), "refs") => Part::Passing,
        (Some(Rule::Info), _) => Part::Withheld(SHOWS),
        (Some(Rule::Is(part @ (Part::Passing | Part::Withheld(_)))), _)
        | (Some(Rule::Is(part)), "") => part.clone(),
        _ => Part::Withheld(UNKNOWN),
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

/// Whether git has a path of a common directory for its main worktree alone.
fn is_of_one_worktree(path: &Path) -> bool {
    let own = ["refs/bisect", "refs/rewritten", "refs/worktree"];
    match of_repository(path) {
        Part::Head | Part::Index | Part::PseudoReference | Part::Unfinished | Part::Text => true,
        Part::Reference(_) => own.iter().any(|own| path.starts_with(own)),
        Part::Log => path.strip_prefix("logs").is_ok_and(|name| {
            name == Path::new("HEAD") || own.iter().any(|own| name.starts_with(own))
        }),
        _ => false,
    }
}

/// What a worktree has of its own: HEAD, the index, logs and the state of a merge.
fn of_worktree(path: &Path) -> Part {
    match of_repository(path) {
        part @ (Part::Head
        | Part::Index
        | Part::Log
        | Part::PseudoReference
        | Part::Unfinished
        | Part::Text
        | Part::Directory
        | Part::Passing
        | Part::Withheld(_)) => part,
        Part::Reference(_) => Part::Passing,
        _ => Part::Withheld("an apply does not transfer this part of a worktree"),
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
            "rr-cache/x/postimage",
            "sharedindex.x",
            "BISECT_RUN",
            "remotes/origin",
            "HEAD/x",
            "other",
        ] {
            assert!(matches!(part(path), Part::Withheld(_)), "{path}");
        }
        assert_eq!(part("HEAD"), Part::Head);
        assert_eq!(
            part("refs/heads/a/b"),
            Part::Reference("refs/heads/a/b".into())
        );
        assert_eq!(part("logs/refs/heads/x"), Part::Log);
        assert_eq!(part("MERGE_HEAD"), Part::Unfinished);
        for path in [
            "index.lock",
            "FETCH_HEAD",
            "objects/info/commit-graph",
            "objects/pack/multi-pack-index",
            "branches/origin",
        ] {
            assert_eq!(part(path), Part::Passing, "{path}");
        }
        assert_eq!(withheld_reference("refs/replaced/x"), None);
    }

    #[test]
    fn a_worktree_moves_only_what_is_its_own() {
        let own = Path::new("worktrees/mine");
        let sorted = |path: &str| sort(Path::new(path), Some(own), &|_| false);
        assert_eq!(sorted("worktrees/mine/HEAD").part, Part::Head);
        assert_eq!(sorted("worktrees/mine/HEAD").base, own);
        assert_eq!(sorted("worktrees/mine/index").part, Part::Index);
        assert_eq!(sorted("worktrees/mine/MERGE_HEAD").part, Part::Unfinished);
        assert_eq!(sorted("logs/refs/heads/x").part, Part::Log);
        assert_eq!(
            sorted("refs/heads/x").part,
            Part::Reference("refs/heads/x".into())
        );
        for other in [
            "HEAD",
            "index",
            "logs/HEAD",
            "ORIG_HEAD",
            "MERGE_HEAD",
            "refs/bisect/bad",
            "worktrees/theirs/HEAD",
            "worktrees/mine/gitdir",
            "worktrees/mine/config.worktree",
        ] {
            assert!(matches!(sorted(other).part, Part::Withheld(_)), "{other}");
        }
    }

    #[test]
    fn a_submodule_that_was_there_has_the_rules_of_a_repository() {
        let known = |path: &Path| {
            // The last one is made of branches.
            [
                "modules/lib/x",
                "modules/lib/x/modules/y",
                "modules/lib/x/refs/heads/q",
            ]
            .iter()
            .any(|known| path == Path::new(known))
        };
        let sorted = |path: &str| sort(Path::new(path), None, &known);
        assert_eq!(sorted("modules/lib/x/HEAD").part, Part::Head);
        assert_eq!(
            sorted("modules/lib/x/HEAD").base,
            Path::new("modules/lib/x")
        );
        assert_eq!(sorted("modules/lib/x/modules/y/HEAD").part, Part::Head);
        assert_eq!(
            sorted("modules/lib/x/modules/y/HEAD").base,
            Path::new("modules/lib/x/modules/y")
        );
        assert_eq!(
            sorted("modules/lib/x/refs/heads/q/config").part,
            Part::Reference("refs/heads/q/config".into())
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
