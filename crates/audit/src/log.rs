//! Writing a log: one line for each event, then its head.
//!
//! This is on the way of every start, so it is one `write` for the line and one `pwrite` for
//! the head, with one buffer for all lines. Nothing is synced to the disk unless the caller
//! asks: after a power loss the tail may be missing, and `verify` then says so.

use crate::chain::{self, Digest};
use crate::error::Error;
use crate::head;
use crate::place::{head_path, heads_dir, log_path};
use ironcage_model::{CageId, Event};
use ironcage_sys::rustix;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Room for a start record with all its layers.
const USUAL_LINE: usize = 4096;

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
}
