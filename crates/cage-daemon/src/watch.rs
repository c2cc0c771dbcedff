//! Changes of a directory, as the kernel reports them.

use crate::connection::{RequestError, Stream, from_errno};
use crate::files::staged;
use crate::protocol::{Change, ChangeKind, FailureCode, Reply};
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use ironcage_sys::rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories of one watch.
const MOST_DIRECTORIES: usize = 4096;

struct Watch {
    inotify: OwnedFd,
    top: PathBuf,
    recursive: bool,
    /// Relative to the top, by the number that the kernel gave.
    directories: HashMap<i32, PathBuf>,
    /// Files of this daemon that are on their way to their names, by the number that the kernel gave
    /// both halves of the move, and whether each replaces another.
    arriving: HashMap<u32, bool>,
}

/// Reports changes until the other side is gone.
pub(crate) fn watch(top: &Path, recursive: bool, stream: &mut Stream) -> Result<(), RequestError> {
    if !top.is_dir() {
        std::fs::metadata(top).map_err(RequestError::io(format!("watch {}", top.display())))?;
        return Err(RequestError::new(
            FailureCode::NotADirectory,
            format!("cannot watch {}: not a directory", top.display()),
        ));
    }
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|error| from_errno(error, "watch a directory"))?;
    let mut watch = Watch {
        inotify,
        top: top.to_owned(),
        recursive,
        directories: HashMap::new(),
        arriving: HashMap::new(),
    };
    watch.add(Path::new(""), &mut Vec::new())?;
    stream.reply(&Reply::Watching)?;
    loop {
        let ready = {
            let mut fds = [
                PollFd::new(&watch.inotify, PollFlags::IN),
                PollFd::new(stream.socket(), PollFlags::RDHUP),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(from_errno(error, "wait for changes")),
            }
            let [changes, peer] = &fds;
            if !peer.revents().is_empty() {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            !changes.revents().is_empty()
        };
        if ready {
            for change in watch.changes()? {
                stream.reply(&Reply::Changed { change })?;
            }
        }
    }
}

impl Watch {
    /// Watches a directory, and all below it where that is wanted. What is in a new one already is
    /// reported, as it may have come before it was watched.
    fn add(&mut self, relative: &Path, found: &mut Vec<Change>) -> Result<(), RequestError> {
        let mut waiting = vec![relative.to_owned()];
        while let Some(relative) = waiting.pop() {
            if self.directories.len() >= MOST_DIRECTORIES {
                return Err(RequestError::new(
                    FailureCode::TooMany,
                    format!(
                        "cannot watch {}: more than {MOST_DIRECTORIES} directories",
                        self.top.display()
                    ),
                ));
            }
            let flags = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::ATTRIB
                | WatchFlags::ONLYDIR
                | WatchFlags::DONT_FOLLOW;
            let path = self.top.join(&relative);
            // The one that is watched may be named by a link.
            let flags = match relative.as_os_str().is_empty() {
                true => flags - WatchFlags::DONT_FOLLOW,
                false => flags,
            };
            let number = match inotify::add_watch(&self.inotify, &path, flags) {
                Ok(number) => number,
                Err(_) if !relative.as_os_str().is_empty() => continue,
                Err(error) => return Err(from_errno(error, &format!("watch {}", path.display()))),
            };
            self.directories.insert(number, relative.clone());
            if !self.recursive {
                continue;
            }
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if staged(name.as_bytes()).is_some() {
                    continue;
                }
                let below = relative.join(name);
                found.push(change(&below, ChangeKind::Create));
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }

    fn changes(&mut self) -> Result<Vec<Change>, RequestError> {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut events: Vec<(i32, ReadFlags, u32, Vec<u8>)> = Vec::new();
        {
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) => {
                        let name = event
                            .file_name()
                            .map_or_else(Vec::new, |name| name.to_bytes().to_vec());
                        events.push((event.wd(), event.events(), event.cookie(), name));
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(from_errno(error, "read changes")),
                }
                if reader.is_buffer_empty() && events.len() >= 1024 {
                    break;
                }
            }
        }
        let mut changes = Vec::new();
        for (number, what, cookie, name) in events {
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(change(Path::new(""), ChangeKind::Overflow));
                continue;
            }
            if what.contains(ReadFlags::IGNORED) {
                self.directories.remove(&number);
                continue;
            }
            let Some(directory) = self.directories.get(&number) else {
                continue;
            };
            if name.is_empty() {
                continue;
            }
            let path = directory.join(OsStr::from_bytes(&name));
            // A file is written beside its name, which is nobody's business: what is seen is the same
            // as if it were written in its place.
            if let Some(replaces) = staged(&name) {
                if what.contains(ReadFlags::MOVED_FROM) {
                    self.arriving.insert(cookie, replaces);
                }
                continue;
            }
            if what.contains(ReadFlags::MOVED_TO)
                && let Some(replaces) = self.arriving.remove(&cookie)
            {
                if !replaces {
                    changes.push(change(&path, ChangeKind::Create));
                }
                changes.push(change(&path, ChangeKind::Write));
                continue;
            }
            let kinds = [
                (ReadFlags::CREATE, ChangeKind::Create),
                (ReadFlags::MOVED_TO, ChangeKind::Create),
                (ReadFlags::MODIFY, ChangeKind::Write),
                (ReadFlags::ATTRIB, ChangeKind::Chmod),
                (ReadFlags::MOVED_FROM, ChangeKind::Rename),
                (ReadFlags::DELETE, ChangeKind::Remove),
            ];
            for (flag, kind) in &kinds {
                if what.contains(*flag) {
                    changes.push(change(&path, *kind));
                }
            }
            let arrived = what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            if self.recursive && arrived && what.contains(ReadFlags::ISDIR) {
                // A tree that is too large is watched in part; what is missing is said.
                if self.add(&path, &mut changes).is_err() {
                    changes.push(change(Path::new(""), ChangeKind::Overflow));
                }
            }
        }
        Ok(changes)
    }
}

fn change(name: &Path, kind: ChangeKind) -> Change {
    Change {
        name: name.to_string_lossy().into_owned(),
        kind,
    }
}
