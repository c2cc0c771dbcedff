//! Messages between the service and the daemon, and how they are framed.
//!
//! ```text
//! bytes  0..4   length of the payload, little-endian
//!        4      kind
//!        5..    the payload
//! ```
//!
//! A connection carries one request at a time. Each ends with [`Reply::Done`] or [`Reply::Failed`];
//! then the next may follow. Closing the connection ends what it follows, not the process.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};

/// Bytes before a payload.
pub const HEADER: usize = 5;
/// Longest payload. Longer data takes several frames.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Bytes of data that are put into one frame.
pub const CHUNK: usize = 64 * 1024;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A [`Request`] or a [`Reply`].
    Json,
    /// Bytes of a file, or input of a process.
    Data,
    /// The end of the data of a request.
    End,
    Stdout,
    Stderr,
    /// Output of a terminal.
    Terminal,
}

impl Kind {
    pub const fn byte(self) -> u8 {
        match self {
            Kind::Json => 0,
            Kind::Data => 1,
            Kind::End => 2,
            Kind::Stdout => 3,
            Kind::Stderr => 4,
            Kind::Terminal => 5,
        }
    }

    pub const fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            0 => Kind::Json,
            1 => Kind::Data,
            2 => Kind::End,
            3 => Kind::Stdout,
            4 => Kind::Stderr,
            5 => Kind::Terminal,
            _ => return None,
        })
    }
}

/// The first bytes of a frame, taken apart: its kind, and the length of its payload.
pub fn header(bytes: [u8; HEADER]) -> io::Result<(Kind, usize)> {
    let [a, b, c, d, kind] = bytes;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    if length > MAX_PAYLOAD {
        return Err(invalid("a frame is longer than frames may be"));
    }
    let kind = Kind::from_byte(kind).ok_or_else(|| invalid("a frame has an unknown kind"))?;
    Ok((kind, length))
}

/// A frame as bytes.
pub fn frame(kind: Kind, payload: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok();
    let length = length.filter(|_| payload.len() <= MAX_PAYLOAD);
    let length = length.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "the message is longer than a frame may be",
        )
    })?;
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind.byte());
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// Writes a frame.
pub fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    to.write_all(&frame(kind, payload)?)
}

/// Reads a frame; `None` at the end of the stream between two frames.
pub fn read(from: &mut impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut start = [0; HEADER];
    if !fill_or_end(from, &mut start)? {
        return Ok(None);
    }
    let (kind, length) = header(start)?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok(Some((kind, payload)))
}

/// Fills the buffer; `false` where the stream ended before the first byte.
fn fill_or_end(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// What the service asks. Paths are absolute, below the home directory with `~/`, or else below the
/// directory in which the cage started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Answered by [`Reply::Info`].
    Info,
    /// Starts a process. Answered by [`Reply::Process`], and then as [`Request::Follow`] from the
    /// start where `follow` is set.
    Start {
        start: StartProcess,
        follow: bool,
    },
    /// Output of a process from a byte on, or from now on; ends with [`Reply::Exited`].
    Follow {
        pid: u32,
        from: Option<u64>,
    },
    /// Answered by [`Reply::Processes`].
    Processes,
    /// Answered by [`Reply::Process`].
    Process {
        pid: u32,
    },
    /// Data frames for a process's input follow, up to [`Kind::End`].
    Input {
        pid: u32,
        close: bool,
    },
    /// Sends a signal to the process's group.
    Signal {
        pid: u32,
        signal: i32,
    },
    Resize {
        pid: u32,
        size: TerminalSize,
    },
    /// Answered by [`Reply::Entry`].
    Stat {
        path: String,
    },
    /// Answered by any number of [`Reply::Entries`].
    List {
        path: String,
        depth: u32,
    },
    /// Makes a directory and its parents. Answered by [`Reply::Entry`].
    MakeDirectory {
        path: String,
    },
    /// Answered by [`Reply::Entry`].
    Move {
        from: String,
        to: String,
    },
    Remove {
        path: String,
        recursive: bool,
    },
    /// Answered by [`Reply::Reading`], then data.
    Read {
        path: String,
        offset: u64,
        length: Option<u64>,
    },
    /// Data frames follow, up to [`Kind::End`]. Makes the parents, and replaces the file at once
    /// when all data is there. Answered by [`Reply::Entry`].
    Write {
        path: String,
        mode: Option<u32>,
        /// Kept beside the file, in user attributes.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        metadata: BTreeMap<String, String>,
    },
    /// Answered by [`Reply::Watching`], then by a [`Reply::Changed`] for each change.
    Watch {
        path: String,
        recursive: bool,
    },
    /// Connects to a port of the cage's loopback. Answered by [`Reply::Connected`]; then data goes both
    /// ways, each up to [`Kind::End`], and the connection with it.
    Connect {
        port: u16,
    },
    /// An archive of directories, as far as they are on the file system of each: answered by data.
    Pack {
        paths: Vec<String>,
        /// Directories that are left out.
        #[serde(default)]
        except: Vec<String>,
    },
    /// Data frames with such an archive follow, up to [`Kind::End`]. What is below `clear` is removed first.
    Unpack {
        clear: Vec<String>,
        /// The directory that its names are below; the root where none is named.
        #[serde(default)]
        into: Option<String>,
    },
}

/// A process to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartProcess {
    pub argv: Vec<String>,
    /// On top of the cage's own environment.
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    /// Whether it has an input that stays open.
    pub input: bool,
    pub terminal: Option<TerminalSize>,
    pub tag: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The request is carried out.
    Done,
    /// It failed.
    Failed(Failure),
    Info {
        home: String,
        cwd: String,
    },
    Process {
        process: ProcessState,
    },
    Processes {
        processes: Vec<ProcessState>,
    },
    /// Output follows, the first byte of it at `from`.
    Following {
        from: u64,
    },
    Exited {
        exit: Exit,
    },
    Entry {
        entry: Entry,
    },
    Entries {
        entries: Vec<Entry>,
    },
    Reading {
        entry: Entry,
    },
    Watching,
    Connected,
    Changed {
        change: Change,
    },
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    NotFound,
    AlreadyExists,
    PermissionDenied,
    NotADirectory,
    IsADirectory,
    NotEmpty,
    InvalidArgument,
    NoSpace,
    NotExecuted,
    TooMany,
    Io,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    pub pid: u32,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub tag: Option<String>,
    pub terminal: bool,
    /// Microseconds since the epoch.
    pub started: u64,
    /// Bytes of output so far.
    pub output: u64,
    /// The first byte of output that can still be read.
    pub output_from: u64,
    pub exit: Option<Exit>,
}

/// How a process ended: one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub owner: String,
    pub group: String,
    /// Microseconds since the epoch.
    pub modified: i64,
    pub target: Option<String>,
    /// What was written with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// A change of a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Relative to the directory.
    pub name: String,
    pub kind: ChangeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
    /// Changes were lost: more happened than the kernel queues.
    Overflow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_written() {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Stdout, b"text").unwrap();
        write(&mut bytes, Kind::End, b"").unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(
            read(&mut from).unwrap(),
            Some((Kind::Stdout, b"text".to_vec()))
        );
        assert_eq!(read(&mut from).unwrap(), Some((Kind::End, Vec::new())));
        assert_eq!(read(&mut from).unwrap(), None);
    }

    #[test]
    fn a_frame_that_is_cut_too_long_or_of_an_unknown_kind_is_an_error() {
        assert!(read(&mut [1, 0].as_slice()).is_err());
        assert!(read(&mut [1, 0, 0, 0, 1].as_slice()).is_err());
        assert!(read(&mut [0, 0, 0, 0, 99].as_slice()).is_err());
        assert!(read(&mut [0xff, 0xff, 0xff, 0xff, 0].as_slice()).is_err());
        assert!(frame(Kind::Data, &vec![0; MAX_PAYLOAD + 1]).is_err());
        assert!(frame(Kind::Data, &vec![0; MAX_PAYLOAD]).is_ok());
    }
}
