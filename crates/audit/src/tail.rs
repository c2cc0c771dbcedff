//! Following a log that is still written: what is whole of it, from where the last look ended.

use crate::error::{Error, Fault, Finding};
use crate::reader::{Lines, LogEntry, open_to_read, parse};
use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A place between two lines of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPlace {
    offset: u64,
    line: u64,
}

impl LogPlace {
    /// How many lines are before it.
    pub const fn lines(self) -> u64 {
        self.line
    }
}

/// A log that is read on. A line that is not whole yet is read once it is.
#[derive(Debug)]
pub struct Tail {
    file: File,
    path: PathBuf,
    offset: u64,
    line: u64,
}

impl Tail {
    /// Begins at the first line of the log at a path, which must be a regular file and not a link.
    pub fn open(path: &Path) -> Result<Tail, Error> {
        Tail::open_at(path, LogPlace::default())
    }

    /// Begins at a place of the same log.
    pub fn open_at(path: &Path, place: LogPlace) -> Result<Tail, Error> {
        let file = open_to_read(path)?.ok_or_else(|| Error::Read {
            path: path.to_owned(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        Ok(Tail {
            file,
            path: path.to_owned(),
            offset: place.offset,
            line: place.line,
        })
    }

    /// Where the next line is read.
    pub const fn place(&self) -> LogPlace {
        LogPlace {
            offset: self.offset,
            line: self.line,
        }
    }

    /// Whether something was written since the last look. It may be a part of a line.
    pub fn has_more(&self) -> Result<bool, Error> {
        let metadata = self.file.metadata().map_err(|error| self.failed(error))?;
        Ok(metadata.len() > self.offset)
    }

    /// The next lines that are whole, at most so many. A line that is no record comes as
    /// [`Error::Damaged`].
    pub fn next_lines(&mut self, most: usize) -> Result<Vec<Result<LogEntry, Error>>, Error> {
        let mut found = Vec::new();
        let sought = (&self.file).seek(SeekFrom::Start(self.offset));
        sought.map_err(|error| self.failed(error))?;
        let mut lines = Lines::new(BufReader::new(&self.file));
        while found.len() < most {
            let parsed = match lines.next_line().map_err(|error| self.failed(error))? {
                None | Some(Err(Finding::Partial)) => break,
                Some(line) => line.and_then(parse),
            };
            self.line += 1;
            self.offset += lines.length;
            found.push(parsed.map_err(|what| Error::Damaged {
                path: self.path.clone(),
                fault: Fault {
                    line: self.line,
                    what,
                },
            }));
        }
        Ok(found)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Read {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_is_read_once_and_only_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = File::create(&path).unwrap();
        let mut tail = Tail::open(&path).unwrap();
        assert!(!tail.has_more().unwrap());
        log.write_all(b"one\ntwo\nthr").unwrap();
        let line = |found: &Result<LogEntry, Error>| match found {
            Err(Error::Damaged { fault, .. }) => fault.line,
            other => panic!("{other:?}"),
        };
        let mut lines = |most: usize| -> Vec<u64> {
            let found = tail.next_lines(most).unwrap();
            found.iter().map(line).collect()
        };
        assert_eq!(lines(1), [1]);
        assert_eq!(lines(10), [2]);
        assert_eq!(lines(10), [0_u64; 0]);
        log.write_all(b"ee\nfour\n").unwrap();
        assert_eq!(lines(10), [3, 4]);
        assert!(!tail.has_more().unwrap());
        let place = tail.place();
        assert_eq!(place.lines(), 4);
        let mut later = Tail::open_at(&path, place).unwrap();
        assert!(!later.has_more().unwrap());
        log.write_all(b"five\n").unwrap();
        let found = later.next_lines(10).unwrap();
        assert_eq!(found.iter().map(line).collect::<Vec<_>>(), [5]);
        assert!(Tail::open(directory.path()).is_err());
    }
}
