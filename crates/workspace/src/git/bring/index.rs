//! The index of a worktree: built again, so that it holds nothing that was not shown.

use super::{Bringing, Done, LARGEST, MOVED_ON, is_directory};
use crate::content;
use crate::git::index::{Index, hexadecimal};
use crate::git::plumbing::{CommittedTree, Plumbing};
use crate::git::staged::{self, Sources, rebuild};
use crate::git::work_tree::WorkTree;
use crate::git::{config, index::ObjectFormat};
use crate::ignored;
use crate::reading::Entry;
use crate::summary::ReportedPath;
use crate::tree::Kind;
use crate::unified::quoted;
use crate::{LayerRole, Moment};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// More are counted, not named.
const MOST_NAMED: usize = 5;

/// What HEAD was before references moved.
#[derive(Debug, Clone)]
pub(super) enum HeadBefore {
    Commit(Option<String>),
    /// A killed apply may have moved it already.
    Unknown,
}

impl Bringing<'_> {
    /// The real git directory that an index belongs to.
    fn plumbing(&self, base: &Path) -> Plumbing {
        let real = self.change.layers()[self.layer].real.join(self.git);
        Plumbing::of(&real.join(base))
    }

    pub(super) fn head_before(&self, base: &Path) -> HeadBefore {
        match self.plumbing(base).head() {
            Ok(head) => HeadBefore::Commit(head),
            // Said when the index is looked at, by the same question.
            Err(_) => HeadBefore::Unknown,
        }
    }

    pub(super) fn index(
        &mut self,
        (base, path): (&Path, &Path),
        entry: &Entry,
        before: &HeadBefore,
    ) -> io::Result<Done> {
        if is_directory(entry) {
            return Ok(Done::Held("not a regular file".into()));
        }
        let plumbing = self.plumbing(base);
        let format = plumbing.object_format()?;
        let mut agents = match &entry.after {
            Some(node) if node.kind == Kind::File => {
                let file = self.view.open_upper(path)?;
                let Some(bytes) = content::read_bounded(&file, LARGEST)? else {
                    return Ok(Done::Held("it is too large".into()));
                };
                Index::read(&bytes, format).map_err(io::Error::other)?
            }
            Some(_) => return Ok(Done::Held("not a regular file".into())),
            None => Index::default(),
        };
        let (mut users, users_written) = self.users_index(path, format)?;
        let head = self.committed(&plumbing, plumbing.head()?.as_deref())?;
        let before = match before {
            HeadBefore::Commit(commit) => Some(self.committed(&plumbing, commit.as_deref())?),
            HeadBefore::Unknown => None,
        };
        let trees: Vec<&CommittedTree> = [Some(&head), before.as_ref()]
            .into_iter()
            .flatten()
            .collect();
        let users_unknown = staged::expand(&mut users, &trees);
        for (directory, object) in &users_unknown {
            let tree = plumbing.tree(&hexadecimal(object))?;
            let prefix = [&**directory, b"/"].concat();
            staged::insert(&mut users, &tree, b"", &prefix);
        }
        let agents_unknown = staged::expand(&mut agents, &trees);
        let mut unknown = BTreeSet::new();
        for (directory, object) in agents_unknown {
            let prefix = [&*directory, b"/"].concat();
            match users_unknown.get(&directory) == Some(&object) {
                true => {
                    let below = users.paths.range(prefix.clone()..);
                    let below = below.take_while(|(path, _)| path.starts_with(&prefix));
                    agents
                        .paths
                        .extend(below.map(|(path, versions)| (path.clone(), versions.clone())));
                }
                false => drop(unknown.insert(directory)),
            }
        }
        let files = match self.work_tree(base)? {
            Some(path) => Some(WorkTree::open(&path, format)?),
            None => None,
        };
        let rebuilt = rebuild(&Sources {
            before: before.as_ref(),
            head: &head,
            users: &users,
            users_written,
            agents: &agents,
            unknown: &unknown,
            files: files.as_ref(),
            touched: self.touched,
            began: self.change.began(),
        });
        let is_there = self.view.real_node(path)?.is_some();
        let differs = !staged::same(&rebuilt.index, &users);
        if !differs && (is_there || rebuilt.index.paths.is_empty()) {
            self.tell_unstaged(path, &rebuilt.unstaged);
            return Ok(Done::Same);
        }
        if self.moved_on(path)? {
            return Ok(Done::Held(MOVED_ON.into()));
        }
        let bytes = rebuilt.index.write(format).map_err(io::Error::other)?;
        let lock = self.locks.take(self.view.real.as_fd(), path)?;
        if self.moved_on(path)? {
            lock.release();
            return Ok(Done::Held(MOVED_ON.into()));
        }
        lock.replace(&bytes)?;
        self.tell_unstaged(path, &rebuilt.unstaged);
        Ok(Done::Brought)
    }

    /// The user's own index, and when it was written.
    fn users_index(&self, path: &Path, format: ObjectFormat) -> io::Result<(Index, (u32, u32))> {
        let Some(node) = self.view.real_node(path)? else {
            return Ok((Index::default(), (0, 0)));
        };
        let bytes = content::read_bounded(&self.view.open_real(path)?, LARGEST)?;
        let bytes = bytes.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let Moment {
            seconds,
            nanoseconds,
        } = node.modified;
        // As git keeps times: in 32 bits.
        let written = (
            u32::try_from(seconds & i64::from(u32::MAX)).unwrap_or(0),
            u32::try_from(nanoseconds).unwrap_or(0),
        );
        Ok((
            Index::read(&bytes, format).map_err(io::Error::other)?,
            written,
        ))
    }

    fn committed(&self, plumbing: &Plumbing, commit: Option<&str>) -> io::Result<CommittedTree> {
        Ok(match commit {
            Some(commit) => plumbing.tree(commit)?,
            None => CommittedTree::default(),
        })
    }

    /// The directory whose files an index is about.
    fn work_tree(&self, base: &Path) -> io::Result<Option<PathBuf>> {
        let layer = &self.change.layers()[self.layer];
        if self.own.as_deref() == Some(base) {
            return Ok(Some(self.change.workspace().to_owned()));
        }
        let git = layer.real.join(self.git).join(base);
        let settings =
            config::parse(&self.view.real_text(&base.join("config"))?).unwrap_or_default();
        let core = |key: &str| {
            let mut all = settings.iter().rev();
            all.find(|setting| {
                setting.section == "core" && setting.subsection.is_none() && setting.key == key
            })
        };
        if let Some(place) = core("worktree").and_then(|setting| setting.value.as_deref()) {
            return match std::fs::canonicalize(git.join(place)) {
                Ok(place) => Ok(Some(place)),
                // A submodule that is not checked out.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
        }
        if core("bare").and_then(|setting| setting.value.as_deref()) == Some("true") {
            return Ok(None);
        }
        if git.file_name() == Some(OsStr::new(".git")) {
            return Ok(git.parent().map(Path::to_owned));
        }
        let is_workspaces = layer.role == LayerRole::Git
            && ignored::git_directory(self.change.workspace())
                .and_then(|own| std::fs::canonicalize(own).ok())
                .is_some_and(|own| own == git);
        Ok(is_workspaces.then(|| self.change.workspace().to_owned()))
    }

    /// Tells what the agent had staged otherwise than the tree has it.
    fn tell_unstaged(&mut self, path: &Path, unstaged: &[Vec<u8>]) {
        if unstaged.is_empty() {
            return;
        }
        let named = unstaged.iter().take(MOST_NAMED);
        let named: Vec<String> = named
            .map(|path| quoted("", Path::new(OsStr::from_bytes(path))))
            .collect();
        let more = match unstaged.len().checked_sub(MOST_NAMED) {
            Some(more) if more > 0 => format!(" and {more} more"),
            _ => String::new(),
        };
        self.applied.flagged.insert(ReportedPath {
            path: self.change.shown(self.layer, &self.git.join(path)),
            why: format!(
                "not staged any more, because the change did not show what the agent had staged: {}{more}",
                named.join(", ")
            ),
        });
    }
}
