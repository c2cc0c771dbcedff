//! Files of a git directory that are replaced as a whole, the index, logs and messages, and the
//! settings, of which a part comes over.

use super::{Bringing, Done, LARGEST, MOVED_ON, NO_SETTINGS, is_directory, withheld_settings};
use crate::content;
use crate::git::{config, index, refs};
use crate::reading::Entry;
use crate::summary::Told;
use crate::tree::{self, Kind};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

impl Bringing<'_> {
    pub(super) fn index(&mut self, path: &Path, entry: &Entry) -> io::Result<Done> {
        let why = "it is no index that git should read";
        self.replace(path, entry, |bytes| match index::is_sound(bytes) {
            true => Ok(()),
            false => Err(why),
        })
    }

    pub(super) fn text(&mut self, path: &Path, entry: &Entry) -> io::Result<Done> {
        self.replace(path, entry, |_| Ok(()))
    }

    /// A file that is replaced as a whole: the index, a log, a message. What is in it is read
    /// once, and checked as it was read.
    fn replace(
        &mut self,
        path: &Path,
        entry: &Entry,
        check: impl FnOnce(&[u8]) -> Result<(), &'static str>,
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
                if let Err(why) = check(&bytes) {
                    return Ok(Done::Held(why.into()));
                }
                Some(bytes)
            }
            Some(_) => return Ok(Done::Held("it is no regular file".into())),
            None => None,
        };
        let real = match self.view.real_node(path)? {
            Some(node) if node.kind == Kind::File => {
                content::read_bounded(&self.view.open_real(path)?, LARGEST)?
            }
            Some(_) => return Ok(Done::Nothing),
            None => None,
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
            let told = told.map(|why| Told { path, why });
            self.applied.flagged.extend(told);
        }
        Ok(match change.withheld.is_empty() {
            true => Done::Nothing,
            false => Done::Held(withheld_settings(&change.withheld)),
        })
    }
}
