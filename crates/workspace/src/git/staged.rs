//! Applies the part of an agent's index that the user was shown.
//!
//! `git commit` commits what the index holds, and `git status` believes what it says of files. So
//! the agent's index is never taken as it is. Each path has what the user's own index has, what
//! the commit has that HEAD is, or what lies in the tree for everybody to see; else it is as if
//! the agent had not staged it. No extension comes over: they repeat what the entries say, as
//! somebody else chose to have it (`TREE` names the very tree that is committed). Nor does what
//! the agent's git knew of files: git reads them again.

use super::index::{Index, IndexEntry, SUBMODULE, StatData};
use super::plumbing::CommittedTree;
use super::work_tree::WorkTree;
use crate::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// All that an index is made from.
pub(crate) struct Sources<'a> {
    /// What the commit holds that HEAD was; `None` where nobody knows any more.
    pub(crate) before: Option<&'a CommittedTree>,
    /// What the commit holds that HEAD is.
    pub(crate) head: &'a CommittedTree,
    pub(crate) users: &'a Index,
    /// When the user's index was last written, as the files' times in it are.
    pub(crate) users_written: (u32, u32),
    pub(crate) agents: &'a Index,
    /// Directories of the agent's sparse index of which nobody knows what is in them.
    pub(crate) unknown: &'a BTreeSet<Vec<u8>>,
    /// The files, after the apply; `None` in a repository without any.
    pub(crate) files: Option<&'a WorkTree>,
    /// Files whose times alone changed, by their real paths.
    pub(crate) touched: &'a BTreeSet<PathBuf>,
    /// When the change began.
    pub(crate) began: Moment,
}

/// An index that holds nothing but what was shown.
pub(crate) struct Rebuilt {
    pub(crate) index: Index,
    /// Paths that the agent had staged, or taken out, in another form than the tree has them.
    pub(crate) unstaged: Vec<Vec<u8>>,
}

/// Mode and object.
type Content = (u32, Vec<u8>);

/// Makes an index by the rule.
pub(crate) fn rebuild(from: &Sources<'_>) -> Rebuilt {
    let is_sparse = from
        .users
        .paths
        .values()
        .flatten()
        .any(|entry| entry.skip_worktree);
    let mut paths: BTreeSet<&Vec<u8>> = from.head.files.keys().collect();
    paths.extend(from.users.paths.keys());
    paths.extend(from.agents.paths.keys());
    let mut rebuilt = Rebuilt {
        index: Index::default(),
        unstaged: Vec::new(),
    };
    for path in paths {
        let users = from.users.paths.get(path).map_or(&[][..], Vec::as_slice);
        let (mut versions, is_shown) = from.choose(path, users);
        if !is_shown {
            rebuilt.unstaged.push(path.clone());
        }
        for entry in &mut versions {
            from.dress(path, users, is_sparse, entry);
        }
        if !versions.is_empty() {
            rebuilt.index.paths.insert(path.clone(), versions);
        }
    }
    rebuilt
}

impl Sources<'_> {
    /// What a path has, and whether that is what the agent had there.
    fn choose(&self, path: &[u8], users: &[IndexEntry]) -> (Vec<IndexEntry>, bool) {
        let head = self.head.files.get(path);
        let before = self.before.map(|before| before.files.get(path));
        // What the user had staged stays, where no commit has changed the path since.
        let mut carried = match before == Some(head) {
            true => users.to_vec(),
            false => head.map(fresh).into_iter().collect(),
        };
        if self.is_unknown(path) {
            return (carried, false);
        }
        let agents = self.agents.paths.get(path).map_or(&[][..], Vec::as_slice);
        if alike(agents, &carried) {
            for (entry, agents) in carried.iter_mut().zip(agents) {
                entry.skip_worktree = agents.skip_worktree;
            }
            return (carried, true);
        }
        // A file of the user's that was in no index, unchanged: that it is to be committed (`.env`)
        // is for the user to say.
        let is_users_own = users.is_empty() && head.is_none() && self.is_not_shown(path);
        if is_users_own {
            return (carried, agents.is_empty());
        }
        // That a file is to be added is for the user to say, and says nothing of what is in it.
        let agents: Vec<&IndexEntry> = agents.iter().filter(|entry| !entry.intent_to_add).collect();
        if agents.iter().any(|entry| entry.stage > 0) {
            // A conflict cannot be committed before somebody has taken a side.
            return (agents.into_iter().cloned().collect(), true);
        }
        let content = agents
            .first()
            .map(|entry| (entry.mode, entry.object.clone()));
        if content.as_ref() == head || self.is_shown(path, users, content.as_ref()) {
            let entry = agents.first().map(|entry| IndexEntry {
                skip_worktree: entry.skip_worktree,
                ..IndexEntry::new(entry.mode, entry.object.clone())
            });
            return (entry.into_iter().collect(), true);
        }
        let same = carried.is_empty() && agents.is_empty();
        (carried, same)
    }

    /// Whether no change showed a path: it is as it was when the change began, but for its times.
    fn is_not_shown(&self, path: &[u8]) -> bool {
        let files = self.files;
        let is_touched = files.is_some_and(|files| self.touched.contains(&files.real(path)));
        is_touched || self.is_unchanged(path)
    }

    /// Whether a path is as it was when the change began.
    fn is_unchanged(&self, path: &[u8]) -> bool {
        let files = self.files;
        files.is_some_and(|files| files.is_unchanged_since(path, self.began))
    }

    /// Whether the change showed what the agent has of a path in its index: the tree has it, and
    /// had not before.
    fn is_shown(&self, path: &[u8], users: &[IndexEntry], content: Option<&Content>) -> bool {
        let Some(files) = self.files else {
            return false;
        };
        match content {
            // The commit of a submodule is a reference, which is named.
            Some((mode, _)) if *mode != SUBMODULE && self.is_not_shown(path) => false,
            Some(_) => files.entry(path).as_ref() == content,
            // What a sparse checkout leaves out is not gone.
            None => !users.iter().any(|entry| entry.skip_worktree) && !files.has(path),
        }
    }

    fn is_unknown(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let mut above = slashes.map(|(at, _)| &path[..at]);
        !self.unknown.is_empty() && above.any(|above| self.unknown.contains(above))
    }

    /// Gives an entry the flags of the user's, and what the user's git knew of the file, where
    /// that is still true.
    fn dress(&self, path: &[u8], users: &[IndexEntry], is_sparse: bool, entry: &mut IndexEntry) {
        if entry.stage > 0 {
            entry.skip_worktree = false;
            entry.assume_unchanged = false;
            entry.stat = StatData::NONE;
            return;
        }
        let users = users.iter().find(|entry| entry.stage == 0);
        entry.assume_unchanged = users.is_some_and(|users| users.assume_unchanged);
        entry.skip_worktree = match users {
            Some(users) => users.skip_worktree,
            // New in the commit, and outside of what the user has checked out.
            None => {
                let committed = self.head.files.get(path);
                let is_committed = committed == Some(&(entry.mode, entry.object.clone()));
                let is_absent = self.files.is_some_and(|files| !files.has(path));
                is_sparse && entry.skip_worktree && is_committed && is_absent
            }
        };
        let is_true = users.is_some_and(|users| {
            // Git reads a file again that is as young as the index: what it knew is no proof.
            let is_old = users.stat.modified() < self.users_written;
            users.holds_the_same(entry) && is_old && self.is_unchanged(path)
        });
        entry.stat = match users.filter(|_| is_true) {
            Some(users) => users.stat,
            None => StatData::NONE,
        };
    }
}

fn fresh((mode, object): &Content) -> IndexEntry {
    IndexEntry::new(*mode, object.clone())
}

fn alike(one: &[IndexEntry], other: &[IndexEntry]) -> bool {
    let mut pairs = one.iter().zip(other);
    one.len() == other.len() && pairs.all(|(one, other)| one.holds_the_same(other))
}

/// Whether two indexes hold the same, with the same flags, whatever git knew of the files.
pub(crate) fn same(one: &Index, other: &Index) -> bool {
    let flags = |entry: &IndexEntry| (entry.assume_unchanged, entry.skip_worktree);
    let mut pairs = one.paths.iter().zip(&other.paths);
    one.paths.len() == other.paths.len()
        && pairs.all(|((path, versions), (other_path, others))| {
            let mut entries = versions.iter().zip(others);
            path == other_path
                && alike(versions, others)
                && entries.all(|(one, other)| flags(one) == flags(other))
        })
}

/// Puts the files in place of directories of a sparse index, by what is known of trees. Returns
/// the directories, with their trees, of which nothing is known.
pub(crate) fn expand(index: &mut Index, trees: &[&CommittedTree]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let is_directory = |path: &Vec<u8>| path.ends_with(b"/");
    let directories: Vec<Vec<u8>> = index
        .paths
        .keys()
        .filter(|path| is_directory(path))
        .cloned()
        .collect();
    let mut unknown = BTreeMap::new();
    for path in directories {
        let object = index
            .paths
            .remove(&path)
            .and_then(|entries| Some(entries.first()?.object.clone()));
        let (Some(object), Some(name)) = (object, path.strip_suffix(b"/")) else {
            continue;
        };
        let known = trees
            .iter()
            .find(|tree| tree.directories.get(name) == Some(&object));
        match known {
            Some(tree) => insert(index, tree, &path, &[]),
            None => drop(unknown.insert(name.to_vec(), object)),
        }
    }
    unknown
}

/// Adds the files of a tree below a directory that is not checked out.
pub(crate) fn insert(index: &mut Index, tree: &CommittedTree, below: &[u8], prefix: &[u8]) {
    let from = tree.files.range(below.to_vec()..);
    for (path, content) in from.take_while(|(path, _)| path.starts_with(below)) {
        let entry = IndexEntry {
            skip_worktree: true,
            ..fresh(content)
        };
        index.paths.insert([prefix, path].concat(), vec![entry]);
    }
}
