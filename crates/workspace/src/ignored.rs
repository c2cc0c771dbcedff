//! Which paths of a change git ignores, by the rules that the agent's view of the tree has.
//!
//! Rules are read as text; git is not started. An agent that writes rules of its own can keep
//! files of its change aside, which is no more than not making them.

use crate::content::read_bounded;
use crate::git::{Tracked, parse_settings};
use crate::gitignore::Gitignore;
use crate::tree;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

/// The most that is read of one file of rules.
const RULES_SIZE: u64 = 512 * 1024;
/// The most that is read of an index: that of a million files.
const INDEX_SIZE: u64 = 256 * 1024 * 1024;

/// The rules that hold in the directory that is being read.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Those of the directories above, the outermost first; a directory without any has none.
    stack: Vec<Option<Gitignore>>,
    tracked: Tracked,
}

impl Rules {
    /// The rules that hold everywhere in a tree, and what git tracks there. Both are of the
    /// real tree, which no agent writes.
    pub(crate) fn new(real: &Path) -> Rules {
        let git = git_directory(real);
        let mut outer = Vec::new();
        let common = git.as_deref().map(common_directory);
        let exclude = common.map(|common| common.join("info/exclude"));
        for path in [excludes(), exclude].into_iter().flatten() {
            let text = read(&path, RULES_SIZE);
            outer.push(text.and_then(|text| Gitignore::parse(Path::new(""), &text)));
        }
        let index = git.and_then(|git| read_index(&git));
        Rules {
            stack: outer,
            tracked: index
                .map(|index| Tracked::parse(&index))
                .unwrap_or_default(),
        }
    }

    /// Goes into a directory of the change, by its own rules first and the real ones else.
    pub(crate) fn enter(
        &mut self,
        path: &Path,
        upper: BorrowedFd<'_>,
        lower: Option<BorrowedFd<'_>>,
    ) {
        let name = OsStr::new(".gitignore");
        let above = match tree::look(upper, name) {
            Ok(Some(_)) => Some(upper),
            _ => lower,
        };
        let text = above
            .and_then(|above| tree::open_file(above, name).ok())
            .and_then(|file| read_bounded(&file, RULES_SIZE).ok().flatten());
        self.stack
            .push(text.and_then(|text| Gitignore::parse(path, &text)));
    }

    /// Leaves it again.
    pub(crate) fn leave(&mut self) {
        self.stack.pop();
    }

    /// Whether git tracks a path of the real tree, or something below it.
    pub(crate) fn track(&self, path: &Path) -> bool {
        self.tracked.holds(path)
    }

    /// Whether git ignores a path in the directory that was entered last.
    pub(crate) fn ignore(&self, path: &Path, is_directory: bool) -> bool {
        let mut rules = self.stack.iter().rev().flatten();
        let verdict = rules.find_map(|rules| rules.judge(path, is_directory));
        verdict == Some(true) && !self.tracked.holds(path)
    }
}

/// The user's own file of rules: where `core.excludesFile` says, else where git looks then.
fn excludes() -> Option<PathBuf> {
    let (home, config) = homes();
    for path in own_settings() {
        let text = read(&path, RULES_SIZE).and_then(|text| String::from_utf8(text).ok());
        let settings = text.and_then(|text| parse_settings(&text));
        let named = settings.into_iter().flatten().rev().find(|setting| {
            setting.section == "core"
                && setting.subsection.is_none()
                && setting.key == "excludesfile"
        });
        if let Some(value) = named.and_then(|setting| setting.value) {
            return match value.strip_prefix("~/") {
                Some(below) => Some(home?.join(below)),
                None => Some(PathBuf::from(value)).filter(|path| path.is_absolute()),
            };
        }
    }
    Some(config?.join("git/ignore"))
}

/// The user's home directory, and the one of settings.
fn homes() -> (Option<PathBuf>, Option<PathBuf>) {
    let absolute = |variable: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let home = absolute("HOME");
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    (home, config)
}

/// Where the user's own settings of git may lie.
pub(crate) fn own_settings() -> Vec<PathBuf> {
    let (home, config) = homes();
    let own = home.map(|home| home.join(".gitconfig"));
    let shared = config.map(|config| config.join("git/config"));
    [own, shared].into_iter().flatten().collect()
}

/// The index of a git directory.
pub(crate) fn read_index(git: &Path) -> Option<Vec<u8>> {
    read(&git.join("index"), INDEX_SIZE)
}

fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let directory = tree::open_root(path.parent()?).ok()?;
    let file = tree::open_file(directory.as_fd(), path.file_name()?).ok()?;
    read_bounded(&file, most).ok().flatten()
}

/// The git directory of a real tree: `.git` itself, or where the file of that name points.
pub(crate) fn git_directory(real: &Path) -> Option<PathBuf> {
    let git = real.join(".git");
    if git.symlink_metadata().ok()?.is_dir() {
        return Some(git);
    }
    let text = String::from_utf8(read(&git, 4096)?).ok()?;
    let target = text.strip_prefix("gitdir:")?.trim();
    Some(real.join(target))
}

/// The directory that a worktree shares with its repository.
pub(crate) fn common_directory(git: &Path) -> PathBuf {
    read(&git.join("commondir"), 4096)
        .and_then(|text| String::from_utf8(text).ok())
        .map_or_else(|| git.to_owned(), |common| git.join(common.trim()))
}
