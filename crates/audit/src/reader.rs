//! Reading a log, whatever it holds: garbage, lines without end, a line cut off by a crash.
//!
//! Nothing here checks the chain; that is `verify`'s. A line that cannot be read is
//! reported and the reader continues with the next, in bounded memory.

use crate::chain::{self, Digest, MAX_LINE};
use crate::error::{Error, Fault, Finding};
use ironcage_model::Event;
use ironcage_sys::rustix;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// One line of a log. Written as JSON it has the fields of the line, in the same order.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LogEntry {
    /// Its number, from 1, as the line itself says.
    pub seq: u64,
    /// The hash of the line before, as the line itself says.
    pub prev: Digest,
    #[serde(flatten)]
    pub event: Event,
    /// Its own hash, as the line itself says.
    pub hash: Digest,
}

/// Reads the records of a log one by one.
///
/// A line that is no record comes as [`Error::Damaged`], and the next call goes on after
/// it. Any other error is the last item.
#[derive(Debug)]
pub struct Reader<R> {
    lines: Lines<R>,
    path: PathBuf,
    done: bool,
}

impl Reader<BufReader<File>> {
    /// Opens the log at a path, which must be a regular file and not a link.
    pub fn open(path: &Path) -> Result<Self, Error> {
        match open_to_read(path)? {
            Some(file) => Ok(Reader::new(BufReader::new(file), path)),
            None => Err(Error::Read {
                path: path.to_owned(),
                source: io::ErrorKind::NotFound.into(),
            }),
        }
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads from any source; errors name it by `path`.
    pub fn new(source: R, path: &Path) -> Self {
        Reader {
            lines: Lines::new(source),
            path: path.to_owned(),
            done: false,
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<LogEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let parsed = match self.lines.next_line() {
            Ok(None) => {
                self.done = true;
                return None;
            }
            Ok(Some(line)) => line.and_then(parse),
            Err(source) => {
                self.done = true;
                let path = self.path.clone();
                return Some(Err(Error::Read { path, source }));
            }
        };
        Some(parsed.map_err(|what| Error::Damaged {
            path: self.path.clone(),
            fault: Fault {
                line: self.lines.number,
                what,
            },
        }))
    }
}

/// Reads a whole log; the first line that is no record is an error.
pub fn read(path: &Path) -> Result<Vec<LogEntry>, Error> {
    Reader::open(path)?.collect()
}

pub(crate) fn parse(line: &[u8]) -> Result<LogEntry, Finding> {
    let link = chain::decode(line)?;
    let event =
        serde_json::from_slice(line).map_err(|error| Finding::UnknownEvent(error.to_string()))?;
    Ok(LogEntry {
        seq: link.seq,
        prev: link.prev,
        event,
        hash: link.hash,
    })
}

/// The lines of a source, none of them longer than [`MAX_LINE`].
#[derive(Debug)]
pub(crate) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    /// Number of the line read last, from 1.
    pub(crate) number: u64,
    /// Its bytes, newline included.
    pub(crate) length: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(source: R) -> Self {
        Lines {
            source,
            line: Vec::new(),
            number: 0,
            length: 0,
        }
    }

    /// The next line without its newline; `None` at the end. A line that is too long is
    /// passed over to its end.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<Result<&[u8], Finding>>> {
        self.line.clear();
        let mut length = 0usize;
        loop {
            let chunk = match self.source.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                if length == 0 {
                    return Ok(None);
                }
                self.number += 1;
                return Ok(Some(Err(Finding::Partial)));
            }
            let newline = chunk.iter().position(|&byte| byte == b'\n');
            let taken = newline.map_or(chunk.len(), |at| at + 1);
            length = length.saturating_add(taken);
            if length <= MAX_LINE {
                self.line.extend_from_slice(&chunk[..taken]);
            }
            self.source.consume(taken);
            if newline.is_some() {
                self.number += 1;
                self.length = length as u64;
                if length > MAX_LINE {
                    return Ok(Some(Err(Finding::TooLong)));
                }
                self.line.pop();
                return Ok(Some(Ok(&self.line)));
            }
        }
    }
}

/// Opens a file of the record; `None` if there is none. Neither a link nor a pipe that
/// someone put in its place is followed or waited for.
pub(crate) fn open_to_read(path: &Path) -> Result<Option<File>, Error> {
    let failed = |errno: Errno| Error::Read {
        path: path.to_owned(),
        source: errno.into(),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => {
            return Err(Error::NotAFile {
                path: path.to_owned(),
            });
        }
        Err(errno) => return Err(failed(errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn faults(text: &[u8]) -> Vec<Fault> {
        Reader::new(text, Path::new("log"))
            .filter_map(|item| match item {
                Err(Error::Damaged { fault, .. }) => Some(fault),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn garbage_is_reported_line_by_line() {
        let found = faults(b"\n{}\nnot json\n\xff\xfe");
        let lines: Vec<_> = found.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [1, 2, 3, 4]);
        assert_eq!(found[3].what, Finding::Partial);
    }

    #[test]
    fn a_line_without_end_is_passed_over_in_bounded_memory() {
        let mut text = vec![b'x'; 3 * MAX_LINE];
        text.extend_from_slice(b"\nshort\n");
        let mut lines = Lines::new(&text[..]);
        assert_eq!(lines.next_line().unwrap(), Some(Err(Finding::TooLong)));
        assert!(lines.line.capacity() <= 2 * MAX_LINE);
        assert_eq!(lines.next_line().unwrap(), Some(Ok(&b"short"[..])));
        assert_eq!(lines.next_line().unwrap(), None);
    }

    #[test]
    fn the_longest_line_is_read_and_one_byte_more_is_not() {
        let mut text = vec![b'x'; MAX_LINE - 1];
        text.push(b'\n');
        let mut lines = Lines::new(&text[..]);
        assert!(matches!(lines.next_line().unwrap(), Some(Ok(_))));
        text.insert(0, b'x');
        let mut lines = Lines::new(&text[..]);
        assert_eq!(lines.next_line().unwrap(), Some(Err(Finding::TooLong)));
    }

    #[test]
    fn neither_links_nor_pipes_nor_directories_are_logs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(read(&file).unwrap().is_empty());

        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        assert!(matches!(read(&link), Err(Error::NotAFile { .. })));
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(matches!(read(&pipe), Err(Error::NotAFile { .. })));
        assert!(matches!(read(dir.path()), Err(Error::NotAFile { .. })));
    }
}
