//! Relays a stream between the caller and the cage: binary-safe, unbuffered, with
//! back-pressure, never blocking the supervisor.
//!
//! The cage never gets a descriptor of the caller's: through one it could reopen the file
//! with other rights, or act on the caller's terminal.

use crate::terminal::filter::Filter;
use ironcage_sys::rustix::event::PollFlags;
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::net::{SendFlags, send};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes that are under way at once.
const BUFFER: usize = 64 * 1024;

/// One end of a relay.
#[derive(Debug)]
pub(crate) enum End<'a> {
    /// Our end of a pipe into the cage; not blocking.
    Own(OwnedFd),
    /// The caller's descriptor; may block, and its flags are not ours to change.
    Callers(BorrowedFd<'a>),
    /// A socket of the caller's.
    Socket(BorrowedFd<'a>),
}

impl End<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            End::Own(fd) => fd.as_fd(),
            End::Callers(fd) | End::Socket(fd) => *fd,
        }
    }
}

/// Our end of a pipe, made non-blocking.
pub(crate) fn own(fd: OwnedFd) -> Result<End<'static>, Errno> {
    let flags = fcntl_getfl(&fd)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(End::Own(fd))
}

/// The caller's stream to write to. A pipe or terminal is opened anew where that is allowed,
/// because "do not block" belongs to the open file, which others share.
pub(crate) fn callers_sink(fd: BorrowedFd<'_>) -> End<'_> {
    let kind = fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match kind {
        Ok(FileType::Fifo | FileType::CharacterDevice) => {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match open(path, flags, Mode::empty()) {
                Ok(fresh) => End::Own(fresh),
                Err(_) => End::Callers(fd),
            }
        }
        Ok(FileType::Socket) => End::Socket(fd),
        _ => End::Callers(fd),
    }
}

/// A stream from one end to the other.
#[derive(Debug)]
pub(crate) struct Relay<'a> {
    source: Option<End<'a>>,
    sink: Option<End<'a>>,
    buffer: Vec<u8>,
    filled: usize,
    written: usize,
    filter: Option<Filter>,
}

/// What a relay waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Bytes to read.
    Source,
    /// Room to write.
    Sink,
}

impl<'a> Relay<'a> {
    /// Joins two ends.
    pub(crate) fn new(source: End<'a>, sink: End<'a>) -> Self {
        Relay {
            source: Some(source),
            sink: Some(sink),
            buffer: Vec::new(),
            filled: 0,
            written: 0,
            filter: None,
        }
    }

    /// The same, with what acts on a terminal taken out.
    pub(crate) fn filtered(mut self) -> Self {
        self.filter = Some(Filter::default());
        self
    }

    /// Whether everything that will come has gone through.
    pub(crate) fn is_done(&self) -> bool {
        self.source.is_none() && self.written == self.filled
    }

    /// What to poll for, or `None` when done.
    pub(crate) fn interest(&self) -> Option<(Waits, BorrowedFd<'_>, PollFlags)> {
        if self.written < self.filled {
            let sink = self.sink.as_ref()?;
            return Some((Waits::Sink, sink.fd(), PollFlags::OUT));
        }
        let source = self.source.as_ref()?;
        Some((Waits::Source, source.fd(), PollFlags::IN))
    }

    /// The sink, to notice that nobody reads any more even while there is nothing to write.
    pub(crate) fn watched_sink(&self) -> Option<BorrowedFd<'_>> {
        self.sink.as_ref().map(End::fd)
    }

    /// Nobody reads any more: so the writer is to notice.
    pub(crate) fn break_off(&mut self) {
        self.source = None;
        self.sink = None;
        self.filled = 0;
        self.written = 0;
    }

    /// Moves what can be moved without waiting. Whether anything moved.
    pub(crate) fn advance(&mut self) -> bool {
        let mut moved = false;
        if self.written == self.filled {
            moved |= self.fill();
        }
        if self.written < self.filled {
            moved |= self.drain();
        }
        moved
    }

    fn fill(&mut self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        self.buffer.resize(BUFFER, 0);
        match read(source.fd(), self.buffer.as_mut_slice()) {
            Ok(0) => self.finish(),
            Ok(count) => {
                self.written = 0;
                self.filled = count;
                if let Some(filter) = &mut self.filter {
                    let mut passed = Vec::with_capacity(count);
                    filter.feed(self.buffer.get(..count).unwrap_or_default(), &mut passed);
                    self.filled = passed.len();
                    self.buffer = passed;
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => return false,
            // A terminal that is gone, or a stream that was never open, is at its end.
            Err(_) => self.finish(),
        }
        true
    }

    fn finish(&mut self) {
        self.source = None;
        self.filled = 0;
        self.written = 0;
        // Closing our end is how the reader learns that nothing more comes.
        self.sink = None;
    }

    fn drain(&mut self) -> bool {
        let Some(sink) = &self.sink else {
            self.break_off();
            return false;
        };
        let pending = self
            .buffer
            .get(self.written..self.filled)
            .unwrap_or_default();
        let result = match sink {
            End::Own(fd) => write(fd, pending),
            // A pipe that polls writable takes a page without blocking.
            End::Callers(fd) => write(fd, pending.get(..4096).unwrap_or(pending)),
            End::Socket(fd) => send(fd, pending, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
        match result {
            Ok(count) => self.written += count,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => self.break_off(),
        }
        true
    }
}
