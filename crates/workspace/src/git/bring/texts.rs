//! Files of a git directory that are replaced as a whole, logs and messages, and the settings, of
//! which a part comes over.

use super::{Bringing, Done, LARGEST, MOVED_ON, NO_SETTINGS, is_directory, withheld_settings};
use crate::content;
use crate::git::{config, part, refs};
use crate::reading::Entry;
use crate::summary::ReportedPath;
use crate::tree::{self, Kind, Node};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

/// How much of an object's name is shown.
const SHORT: usize = 12;
/// More stashes are counted, not named.
const MOST_NAMED: usize = 10;

impl Bringing<'_> {
    pub(super) fn text(&mut self, path: &Path, entry: &Entry) -> io::Result<Done> {
        self.replace(path, entry, |_, wanted| Ok(wanted))
    }

    /// One or more names of objects, a line each.
    pub(super) fn pseudo_reference(&mut self, path: &Path, entry: &Entry) -> io::Result<Done> {
        self.replace(path, entry, |_, wanted| match &wanted {
            Some(bytes) if !are_object_names(bytes) => Err("it does not name objects"),
            _ => Ok(wanted),
        })
    }

    /// What the next commit takes something from: it is told.
    pub(super) fn unfinished(&mut self, path: &Path, entry: &Entry) -> io::Result<Done> {
        let names_objects = path.to_string_lossy().ends_with("_HEAD");
        let done = match names_objects {
            true => self.pseudo_reference(path, entry)?,
            false => self.text(path, entry)?,
        };
        if matches!(done, Done::Brought) {
            self.applied.flagged.insert(ReportedPath {
                path: self.change.shown(self.layer, &self.git.join(path)),
                why: part::UNFINISHED.to_owned(),
            });
        }
        Ok(done)
    }

    /// The log of a reference: what the user's has stays, and what the agent's has more comes
    /// after it. It goes when its reference has gone. That of the stash is what the stash holds.
    pub(super) fn log(&mut self, base: &Path, path: &Path, entry: &Entry) -> io::Result<Done> {
        let was_directory = |node: &Node| node.kind == Kind::Directory;
        if is_directory(entry) || entry.before.as_ref().is_some_and(was_directory) {
            return Ok(Done::Nothing);
        }
        let below = path.strip_prefix(base).unwrap_or(path);
        let name = below
            .strip_prefix("logs")
            .unwrap_or(below)
            .to_string_lossy()
            .into_owned();
        if name != "HEAD" && !refs::is_name(&name) {
            return Ok(Done::Held("git takes no such name".into()));
        }
        // A worktree's references are its repository's.
        let common = if self.own.as_deref() == Some(base) {
            Path::new("")
        } else {
            base
        };
        let is_gone = name != "HEAD" && self.view.outside(common, &name)?.is_none();
        let mut stashes = None;
        let done = self.replace(path, entry, |real, wanted| match (real, wanted) {
            (Some(real), None) if is_gone => {
                stashes = stash_changes(real, b"");
                Ok(None)
            }
            (real, Some(wanted)) if real.is_none() || name == "refs/stash" => match is_log(&wanted)
            {
                true => {
                    stashes = stash_changes(real.unwrap_or_default(), &wanted);
                    Ok(Some(wanted))
                }
                false => Err("it is not the log of a reference"),
            },
            (Some(real), Some(wanted)) => match log_additions(real, &wanted) {
                Some(added) if is_log(added) => Ok(Some([real, added].concat())),
                Some(_) => Err("it is not the log of a reference"),
                // The agent took lines out: the user's own stays as it is.
                None => Ok(Some(real.to_vec())),
            },
            (real, None) => Ok(real.map(<[u8]>::to_vec)),
            (None, Some(wanted)) => Ok(Some(wanted)),
        })?;
        if let (Done::Brought, "refs/stash", Some(why)) = (&done, &*name, stashes) {
            self.applied.flagged.insert(ReportedPath {
                path: self.change.shown(self.layer, &self.git.join(path)),
                why,
            });
        }
        Ok(done)
    }

    /// A file that is replaced as a whole: a log, a message. What is in it is read once, and
    /// what takes its place is decided by what was read.
    fn replace(
        &mut self,
        path: &Path,
        entry: &Entry,
        decide: impl FnOnce(Option<&[u8]>, Option<Vec<u8>>) -> Result<Option<Vec<u8>>, &'static str>,
    ) -> io::Result<Done> {
        if is_directory(entry) {
            return Ok(Done::Nothing);
        }
        let wanted = match &entry.after {
            Some(node) if node.kind == Kind::File => {
                let file = self.view.open_upper(path)?;
                let Some(bytes) = content::read_bounded(&file, LARGEST)? else {
                    return Ok(Done::Held("it is too large".into()));
                };
                Some(bytes)
            }
            Some(_) => return Ok(Done::Held("it is not a regular file".into())),
            None => None,
        };
        let real = match self.view.real_node(path)? {
            Some(node) if node.kind == Kind::File => {
                content::read_bounded(&self.view.open_real(path)?, LARGEST)?
            }
            Some(_) => return Ok(Done::Nothing),
            None => None,
        };
        let wanted = match decide(real.as_deref(), wanted) {
            Ok(wanted) => wanted,
            Err(why) => return Ok(Done::Held(why.into())),
        };
        if real == wanted {
            return Ok(Done::Same);
        }
        if self.moved_on(path)? {
            return Ok(Done::Held(MOVED_ON.into()));
        }
        let lock = self.locks.take(self.view.real.as_fd(), path)?;
        if self.moved_on(path)? {
            lock.release();
            return Ok(Done::Held(MOVED_ON.into()));
        }
        match wanted {
            Some(bytes) => lock.replace(&bytes)?,
            None => lock.remove()?,
        }
        Ok(Done::Brought)
    }

    pub(super) fn config(&mut self, path: &Path, entry: &Entry) -> io::Result<Done> {
        if entry.after.is_none() {
            return Ok(Done::Held("would remove the settings".into()));
        }
        let lock = self.locks.take(self.view.real.as_fd(), path)?;
        let read = || -> io::Result<_> {
            let above = path.parent().unwrap_or(Path::new(""));
            let git = tree::open_below(self.view.real.as_fd(), above)?;
            Ok((git, self.view.real_text(path)?, self.view.upper_text(path)?))
        };
        let (git, real, agents) = match read() {
            Ok(texts) => texts,
            Err(error) => {
                lock.release();
                return Err(error);
            }
        };
        let is_branch = |name: &str| refs::is_branch(&git, name);
        let Some(change) = config::compare(&real, &agents, &is_branch) else {
            lock.release();
            return Ok(Done::Held(NO_SETTINGS.into()));
        };
        let told = config::told(&change.taken);
        if change.taken.is_empty() {
            lock.release();
        } else {
            let end = if real.ends_with('\n') || real.is_empty() {
                ""
            } else {
                "\n"
            };
            let text = format!("{real}{end}{}", config::addition(&change.taken));
            lock.replace(text.as_bytes())?;
            self.applied.of_git += 1;
            let path = self.change.shown(self.layer, &self.git.join(path));
            let told = told.map(|why| ReportedPath { path, why });
            self.applied.flagged.extend(told);
        }
        Ok(match change.withheld.is_empty() {
            true => Done::Nothing,
            false => Done::Held(withheld_settings(&change.withheld)),
        })
    }
}

fn are_object_names(bytes: &[u8]) -> bool {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    !text.is_empty() && text.lines().all(refs::is_object_name)
}

/// Whether every line is one of the log of a reference: two objects, who, when and why.
fn is_log(bytes: &[u8]) -> bool {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.all(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let mut is_object = || {
            let word = words.next().and_then(|word| std::str::from_utf8(word).ok());
            word.is_some_and(refs::is_object_name)
        };
        is_object() && is_object() && line.ends_with(b"\n") && !line.contains(&0)
    })
}

/// What has become of the stashes that one log lists, in another: the reference names only the
/// last of them.
fn stash_changes(real: &[u8], agents: &[u8]) -> Option<String> {
    // The commit: git writes the one before it anew when another is dropped.
    let commits = |log: &[u8]| -> Vec<Vec<u8>> {
        let lines = log.split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| Some(line.split(|byte| *byte == b' ').nth(1)?.to_vec()))
            .collect()
    };
    let (real, agents) = (commits(real), commits(agents));
    let missing = |from: &[Vec<u8>], of: &[Vec<u8>], what: &str| {
        let missing: Vec<String> = of
            .iter()
            .filter(|commit| !from.contains(commit))
            .map(|commit| String::from_utf8_lossy(&commit[..commit.len().min(SHORT)]).into_owned())
            .collect();
        let named = missing[..missing.len().min(MOST_NAMED)].join(", ");
        (!missing.is_empty()).then(|| format!("{} stashes {what}: {named}", missing.len()))
    };
    let gone = missing(&agents, &real, "DELETED");
    let new = missing(&real, &agents, "new");
    let told: Vec<String> = gone.into_iter().chain(new).collect();
    match told.is_empty() {
        true => (real != agents).then(|| "the order of the stashes changed".to_owned()),
        false => Some(told.join("; ")),
    }
}

/// What a log has after the last line of another one.
fn log_additions<'a>(real: &[u8], agents: &'a [u8]) -> Option<&'a [u8]> {
    if let Some(added) = agents.strip_prefix(real) {
        return Some(added);
    }
    let last = real.split_inclusive(|byte| *byte == b'\n').next_back()?;
    let mut end = 0;
    for line in agents.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        if line == last {
            return Some(&agents[end..]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stashes_that_are_gone_or_new_are_told() {
        let log = |objects: &str| -> Vec<u8> {
            let line = |object: char| format!("x {} n\n", object.to_string().repeat(40));
            objects.chars().map(line).collect::<String>().into_bytes()
        };
        let told = |real: &str, agents: &str| stash_changes(&log(real), &log(agents));
        assert_eq!(told("12", "12"), None);
        let gone = "1 stashes DELETED: 111111111111";
        assert_eq!(told("12", "2").as_deref(), Some(gone));
        assert_eq!(
            told("12", "324"),
            Some(format!("{gone}; 2 stashes new: 333333333333, 444444444444"))
        );
        assert!(told("12", "").is_some_and(|told| told.starts_with("2 stashes DELETED")));
        assert!(told("12", "21").is_some_and(|told| told.contains("order")));
    }

    #[test]
    fn a_log_grows_and_loses_nothing() {
        let line = |object: char, text: &str| {
            let object = object.to_string().repeat(40);
            format!("{object} {object} n <e> 1 +0000\t{text}\n").into_bytes()
        };
        let (one, two, three) = (line('1', "a"), line('2', "b"), line('3', "c"));
        let real = [&*one, &two].concat();
        let added = |agents: &[&[u8]]| log_additions(&real, &agents.concat()).map(<[u8]>::to_vec);
        assert_eq!(added(&[&one, &two, &three]), Some(three.clone()));
        // What has expired in the agent's stays in the user's.
        assert_eq!(added(&[&two, &three]), Some(three.clone()));
        assert_eq!(added(&[&one]), None);
        assert_eq!(added(&[&three]), None);
        assert!(is_log(&real) && is_log(b""));
        assert!(!is_log(b"x") && !is_log(&real[..real.len() - 1]));
        assert!(are_object_names(
            &[b"a".repeat(40), b"\n".to_vec()].concat()
        ));
        assert!(!are_object_names(b"ref: refs/heads/x\n") && !are_object_names(b""));
    }
}
