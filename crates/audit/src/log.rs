//! Writing a log: one line for each event, then its head.
//!
//! This is on the way of every start, so it is one `write` for the line and one `pwrite` for
//! the head, with one buffer for all lines. Nothing is synced to the disk unless the caller
//! asks: after a power loss the tail may be missing, and `verify` then says so.

use crate::chain::{self, Digest, MAX_LINE};
use crate::error::{Error, Fault, Finding};
use crate::head::{self, Head};
use crate::place::{head_path, heads_dir, log_path};
use ironcage_model::{CageId, Event};
use ironcage_sys::rustix;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

/// Room for a start record with all its layers.
const USUAL_LINE: usize = 4096;

/// What a log that is opened again needs to know of its last event.
#[derive(Deserialize)]
struct Kind {
    event: String,
}

/// The log of one cage, open for appending. While it is open it holds a lock by which
/// readers know that the cage is still being recorded.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    head: File,
    lines: u64,
    last: Digest,
    length: u64,
    spoiled: bool,
    line: Vec<u8>,
}

impl Log {
    /// Creates the log of a cage in a directory of logs, and its head beside that directory.
    /// Directories are made, for this user alone, if they are missing. A log that exists
    /// is never opened again, and no symbolic link is followed at the file's name.
    pub fn create(dir: &Path, id: &CageId) -> Result<Log, Error> {
        let path = log_path(dir, id);
        let file = create_file(&path, OFlags::APPEND, dir)?;
        let head = create_file(&head_path(dir, id), OFlags::empty(), &heads_dir(dir))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|errno| Error::Create {
            path: path.clone(),
            source: errno.into(),
        })?;
        Ok(Log {
            path,
            file,
            head,
            lines: 0,
            last: Digest::genesis(id),
            length: 0,
            spoiled: false,
            line: Vec::with_capacity(USUAL_LINE),
        })
    }

    /// Opens the log of a container again, which no process holds between two events. `None` once
    /// its exit is logged: nothing follows that.
    ///
    /// Events of a writer that was killed are completed or taken back; a log that was changed is
    /// refused and stays as it is.
    pub fn reopen(dir: &Path, id: &CageId) -> Result<Option<Log>, Error> {
        let path = log_path(dir, id);
        let file = open_again(&path, OFlags::APPEND)?;
        let head = open_again(&head_path(dir, id), OFlags::empty())?;
        let read = |source: io::Error| Error::Read {
            path: path.clone(),
            source,
        };
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|errno| read(errno.into()))?;
        let whole = file.metadata().map_err(read)?.len();
        let begin = whole.saturating_sub(2 * MAX_LINE as u64);
        let mut tail = vec![0; usize::try_from(whole - begin).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut tail, begin).map_err(read)?;
        // What a killed writer left after the last newline is no line.
        let end = tail.iter().rposition(|byte| *byte == b'\n');
        let kept = end.map_or(0, |end| end + 1);
        let mut log = Log {
            lines: 0,
            last: Digest::genesis(id),
            length: begin + kept as u64,
            spoiled: false,
            line: Vec::with_capacity(USUAL_LINE),
            path: path.clone(),
            file,
            head,
        };
        let partial = kept < tail.len();
        let damaged = |line, what| {
            let fault = Fault { line, what };
            Err(Error::Damaged { path, fault })
        };
        let (lines, hash) = match head::read(dir, id)? {
            Some(Head::Empty) => (0, log.last),
            Some(Head::At { lines, hash }) => (lines, hash),
            Some(Head::Unreadable) | None => return damaged(1, Finding::BadHead),
        };
        let text = &tail[..end.unwrap_or(0)];
        let last = text.rsplit(|byte| *byte == b'\n').next();
        let Some(last) = last.filter(|_| end.is_some()) else {
            return match lines {
                0 if begin == 0 => {
                    log.drop_partial(partial)?;
                    Ok(Some(log))
                }
                head_lines => damaged(1, Finding::Cut { head_lines }),
            };
        };
        let link = match chain::decode(last) {
            Ok(link) if link.sound => link,
            Ok(link) => return damaged(link.seq, Finding::Changed),
            Err(what) => return damaged(lines, what),
        };
        (log.lines, log.last) = (link.seq, link.hash);
        if (link.seq, link.hash) != (lines, hash) {
            // Killed between the line and its head, and nothing else: the head is written before
            // the next line begins.
            if partial || (link.seq, link.prev) != (lines + 1, hash) {
                return damaged(link.seq, Finding::NotTheHead);
            }
            head::write(&log.head, link.seq, link.hash).map_err(|errno| log.cannot_write(errno))?;
        }
        log.drop_partial(partial)?;
        let kind: Kind = serde_json::from_slice(last).map_err(|error| Error::Damaged {
            path: log.path.clone(),
            fault: Fault {
                line: link.seq,
                what: Finding::UnknownEvent(error.to_string()),
            },
        })?;
        Ok((kind.event != "exit").then_some(log))
    }

    /// Its descriptors, to be closed with others. The first of them holds the lock.
    pub fn into_descriptors(self) -> [OwnedFd; 2] {
        [self.file.into(), self.head.into()]
    }

    /// Appends an event. If this fails for the lack of space, the line is taken back and
    /// a later event can still be appended.
    pub fn append(&mut self, event: &Event) -> Result<(), Error> {
        if self.spoiled {
            return Err(Error::Spoiled {
                path: self.path.clone(),
            });
        }
        let seq = self.lines + 1;
        let hash = chain::encode(&mut self.line, seq, self.last, event)?;
        if let Err(errno) = write_all(&self.file, &self.line) {
            self.take_back();
            return Err(self.cannot_write(errno));
        }
        self.lines = seq;
        self.last = hash;
        self.length += self.line.len() as u64;
        // The line first: a crash between the two leaves a line that the head does not know,
        // which is reported as such. The other way round it would look like a cut tail.
        head::write(&self.head, seq, hash).map_err(|errno| self.cannot_write(errno))
    }

    /// Waits until the log and its head are on the disk. This takes milliseconds where the
    /// rest takes microseconds.
    pub fn sync(&self) -> Result<(), Error> {
        for file in [&self.file, &self.head] {
            rustix::fs::fdatasync(file).map_err(|errno| self.cannot_write(errno))?;
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what a killed writer left of a line, once the head has proven that no whole line goes
    /// with it.
    fn drop_partial(&self, partial: bool) -> Result<(), Error> {
        match partial {
            true => rustix::fs::ftruncate(&self.file, self.length)
                .map_err(|errno| self.cannot_write(errno)),
            false => Ok(()),
        }
    }

    /// Removes a line that was written in part, so that the next one begins at its own start.
    fn take_back(&mut self) {
        self.spoiled = rustix::fs::ftruncate(&self.file, self.length).is_err();
    }

    fn cannot_write(&self, errno: Errno) -> Error {
        Error::Write {
            path: self.path.clone(),
            source: errno.into(),
        }
    }
}

fn write_all(file: &File, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn create_file(path: &Path, extra: OFlags, dir: &Path) -> Result<File, Error> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | extra;
    let open = || rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let opened = match open() {
        // Directories are looked for only when they prove to be missing: they nearly always exist.
        Err(Errno::NOENT) => {
            make_dir(dir)?;
            open()
        }
        other => other,
    };
    opened.map(File::from).map_err(|errno| Error::Create {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn open_again(path: &Path, extra: OFlags) -> Result<File, Error> {
    // Whatever lies there, opening it does not block.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | extra;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map(File::from);
    let opened = opened.map_err(io::Error::from);
    let file = opened.and_then(|file| Ok((file.metadata()?.is_file(), file)));
    match file {
        Ok((true, file)) => Ok(file),
        Ok((false, _)) => Err(Error::NotAFile {
            path: path.to_owned(),
        }),
        Err(source) => Err(Error::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn make_dir(dir: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source: io::Error| Error::MakeDir {
        path: dir.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Unproven, Verdict, verify};
    use ironcage_model::{Ending, EventKind};
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn id() -> CageId {
        "c0123456789ab".parse().unwrap()
    }

    fn exit() -> Event {
        Event {
            time: 2,
            cage: id(),
            kind: EventKind::Exit {
                ending: Ending::Exited { code: 0 },
                milliseconds: 1,
                usage: None,
            },
        }
    }

    #[test]
    fn files_and_directories_are_for_their_owner_alone() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("deep/audit");
        let _log = Log::create(&dir, &id()).unwrap();
        let mode = |path: PathBuf| path.symlink_metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(dir.clone()), 0o700);
        assert_eq!(mode(heads_dir(&dir)), 0o700);
        assert_eq!(mode(log_path(&dir, &id())), 0o600);
        assert_eq!(mode(head_path(&dir, &id())), 0o600);
    }

    #[test]
    fn a_log_that_exists_is_not_opened_again() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        Log::create(&dir, &id()).unwrap();
        assert!(matches!(
            Log::create(&dir, &id()),
            Err(Error::Create { .. })
        ));
        let other = "c0123456789ac".parse().unwrap();
        Log::create(&dir, &other).unwrap();
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        std::fs::create_dir(&dir).unwrap();
        let victim = state.path().join("victim");
        symlink(&victim, log_path(&dir, &id())).unwrap();
        assert!(matches!(
            Log::create(&dir, &id()),
            Err(Error::Create { .. })
        ));
        assert!(!victim.exists());
        std::fs::remove_file(log_path(&dir, &id())).unwrap();
        Log::create(&dir, &id()).unwrap();
    }

    #[test]
    fn descriptors_do_not_survive_exec_and_writes_append() {
        let state = tempfile::tempdir().unwrap();
        let log = Log::create(&state.path().join("audit"), &id()).unwrap();
        for file in [&log.file, &log.head] {
            let flags = rustix::io::fcntl_getfd(file).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let flags = rustix::fs::fcntl_getfl(&log.file).unwrap();
        assert!(flags.contains(OFlags::APPEND));
    }

    #[test]
    fn a_line_without_space_is_taken_back_and_the_log_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let mut log = Log::create(&dir, &id()).unwrap();
        let mut first = exit();
        first.kind = EventKind::Limit(ironcage_model::LimitHit {
            limit: ironcage_model::LimitKind::Pids,
            value: "100".into(),
            ended: false,
            used: None,
        });
        log.append(&first).unwrap();
        // What a full disk leaves behind: the beginning of a line.
        write_all(&log.file, b"{\"seq\":2,").unwrap();
        log.take_back();
        log.append(&exit()).unwrap();
        drop(log);
        assert_eq!(
            verify(&dir, &id()).unwrap(),
            Verdict::Intact {
                lines: 2,
                running: false
            }
        );
    }

    #[test]
    fn an_open_log_is_running_and_an_abandoned_one_is_unproven() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let mut log = Log::create(&dir, &id()).unwrap();
        assert_eq!(
            verify(&dir, &id()).unwrap(),
            Verdict::Intact {
                lines: 0,
                running: true
            }
        );
        let mut denied = exit();
        denied.kind = EventKind::Denied(ironcage_model::Denial {
            syscall: "mount".into(),
            program: "sh".into(),
            count: 1,
        });
        log.append(&denied).unwrap();
        assert_eq!(
            verify(&dir, &id()).unwrap(),
            Verdict::Intact {
                lines: 1,
                running: true
            }
        );
        drop(log);
        assert_eq!(
            verify(&dir, &id()).unwrap(),
            Verdict::TailUnproven(Unproven::NoExit)
        );
    }

    #[test]
    fn a_container_s_log_is_opened_again_until_its_exit() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let event = |kind| Event {
            time: 2,
            cage: id(),
            kind,
        };
        drop(Log::create(&dir, &id()).unwrap());
        // Empty, then after a line, after what a killed writer left, and without the head's line.
        let mut log = Log::reopen(&dir, &id()).unwrap().unwrap();
        log.append(&event(EventKind::Paused)).unwrap();
        drop(log);
        let log = Log::reopen(&dir, &id()).unwrap().unwrap();
        write_all(&log.file, b"{\"seq\":2,").unwrap();
        let head = std::fs::read(head_path(&dir, &id())).unwrap();
        drop(log);
        let mut log = Log::reopen(&dir, &id()).unwrap().unwrap();
        log.append(&event(EventKind::Unpaused)).unwrap();
        drop(log);
        std::fs::write(head_path(&dir, &id()), head).unwrap();
        let mut log = Log::reopen(&dir, &id()).unwrap().unwrap();
        log.append(&exit()).unwrap();
        drop(log);
        let intact = Verdict::Intact {
            lines: 3,
            running: false,
        };
        assert_eq!(verify(&dir, &id()).unwrap(), intact);
        assert!(Log::reopen(&dir, &id()).unwrap().is_none());
    }

    #[test]
    fn a_changed_log_is_not_opened_again() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("audit");
        let event = |kind| Event {
            time: 2,
            cage: id(),
            kind,
        };
        let mut log = Log::create(&dir, &id()).unwrap();
        for _ in 0..3 {
            log.append(&event(EventKind::Paused)).unwrap();
        }
        drop(log);
        let path = log_path(&dir, &id());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let shorter = lines[..2].concat();
        let changed = text.replace("paused", "resumed");
        // Without its last newline a line is no beginning of one; without any, nothing is known.
        let joined = format!("{}x", text.trim_end());
        let behind = format!("{shorter}{{\"seq\":3,");
        let endless = "x".repeat(2 * MAX_LINE + 1);
        for wrong in [
            shorter.as_str(),
            &changed,
            "",
            "text\n",
            &joined,
            &behind,
            &endless,
        ] {
            std::fs::write(&path, wrong).unwrap();
            let error = Log::reopen(&dir, &id()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{wrong:?}: {error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), wrong, "changed");
        }
        std::fs::write(&path, &text).unwrap();
        assert!(Log::reopen(&dir, &id()).unwrap().is_some());
        std::fs::remove_file(head_path(&dir, &id())).unwrap();
        assert!(Log::reopen(&dir, &id()).is_err());
    }
}
