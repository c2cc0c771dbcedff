//! Relays a stream between the caller and the cage: binary-safe, unbuffered, with
//! back-pressure, never blocking the supervisor.
//!
//! The cage never gets a descriptor of the caller's: through one it could reopen the file
//! with other rights, or act on the caller's terminal.

use crate::chord::Chord;
use crate::filter::Filter;
use crate::keys::Keys;
use crate::prompt::Before;
use ironcage_sys::rustix::buffer::spare_capacity;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::fs::{FileType, Mode, OFlags, fstat, open};
use ironcage_sys::rustix::io::{Errno, ioctl_fionbio, ioctl_fionread, read, write};
use ironcage_sys::rustix::net::{SendFlags, send};
use ironcage_sys::rustix::termios::{SpecialCodeIndex, isatty, tcgetattr};
use ironcage_sys::spent::close_later;
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// More than a pseudo-terminal keeps of what nobody has read: 64 KiB and a line.
const TERMINAL_BUFFER: usize = 128 * 1024;
const TERMINAL_MOMENT: Duration = Duration::from_secs(1);
/// Bytes that are under way at once.
const BUFFER: usize = 64 * 1024;

/// One end of a relay.
#[derive(Debug)]
pub enum End<'a> {
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
pub fn own(fd: OwnedFd) -> Result<End<'static>, Errno> {
    ioctl_fionbio(&fd, true)?;
    Ok(End::Own(fd))
}

/// The caller's stream to write to. A pipe or terminal is opened anew where that is allowed,
/// because "do not block" belongs to the open file, which others share.
pub fn callers_sink(fd: BorrowedFd<'_>) -> End<'_> {
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
pub struct Relay<'a> {
    source: Option<End<'a>>,
    sink: Option<End<'a>>,
    buffer: Vec<u8>,
    filled: usize,
    written: usize,
    sieve: Option<Sieve>,
    /// Whether the sink is a terminal at which the bytes are typed.
    typed: bool,
    /// Whether nothing is read: only what is to be written goes out.
    held: bool,
    /// How many bytes are still taken, once nobody is left who may write.
    last: Option<usize>,
    /// Until when a terminal is given time to bring them forth.
    dry: Option<Instant>,
    turn: Option<Turn>,
}

/// Whose turn it is to write to a terminal that has several streams: what one has begun to write may
/// be half a sequence, which plain text of another would complete.
#[derive(Debug)]
struct Turn {
    is_taken: Rc<Cell<bool>>,
    mine: bool,
}

/// What does not pass.
#[derive(Debug)]
enum Sieve {
    /// What acts on a terminal.
    Screen(Filter),
    /// Nothing; but it is known how the screen stands.
    Watched(Filter),
    /// The key by which a person calls the supervisor.
    Call(Chord),
    /// The chord by which a person leaves.
    Keys(Keys),
}

/// What a relay waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Bytes to read.
    Source,
    /// Room to write.
    Sink,
}

impl<'a> Relay<'a> {
    /// Joins two ends.
    pub fn new(source: End<'a>, sink: End<'a>) -> Self {
        Relay {
            source: Some(source),
            sink: Some(sink),
            buffer: Vec::new(),
            filled: 0,
            written: 0,
            sieve: None,
            typed: false,
            held: false,
            last: None,
            dry: None,
            turn: None,
        }
    }

    /// Joins an end with a stream of the caller's. What acts on a terminal is taken out where that
    /// is one, whatever the caller's other streams are.
    pub fn shown(source: End<'a>, to: BorrowedFd<'a>, raw_terminal: bool) -> Self {
        let relay = Relay::new(source, callers_sink(to));
        match isatty(to) && !raw_terminal {
            true => relay.filtered(),
            false => relay,
        }
    }

    /// Two streams that are shown. Where both are filtered, they may be on one terminal.
    pub fn shown_together(mut first: Self, mut second: Self) -> Vec<Self> {
        if first.sieve.is_some() && second.sieve.is_some() {
            let is_taken = Rc::new(Cell::new(false));
            for relay in [&mut first, &mut second] {
                relay.turn = Some(Turn {
                    is_taken: Rc::clone(&is_taken),
                    mine: false,
                });
            }
        }
        vec![first, second]
    }

    /// Whether another stream is in the middle of what it writes to the same terminal.
    fn is_anothers_turn(&self) -> bool {
        let turn = self.turn.as_ref();
        turn.is_some_and(|turn| turn.is_taken.get() && !turn.mine)
    }

    fn note_turn(&mut self) {
        let unwritten = self.written < self.filled;
        if let Some(turn) = &mut self.turn
            && (unwritten || turn.mine)
        {
            turn.mine = unwritten;
            turn.is_taken.set(unwritten);
        }
    }

    /// The same, typed at a terminal of the cage's.
    pub fn typed(mut self) -> Self {
        self.typed = true;
        self
    }

    /// The same, with what acts on a terminal taken out.
    pub fn filtered(mut self) -> Self {
        self.sieve = Some(Sieve::Screen(Filter::default()));
        self
    }

    /// The same as it is, with an eye on how the screen stands.
    pub fn watched(mut self) -> Self {
        self.sieve = Some(Sieve::Watched(Filter::default()));
        self
    }

    /// The same, with the key taken out by which a person calls the supervisor.
    pub fn with_call(mut self, chord: Chord) -> Self {
        self.sieve = Some(Sieve::Call(chord));
        self
    }

    /// The key, where there is one.
    pub fn call(&mut self) -> Option<&mut Chord> {
        match &mut self.sieve {
            Some(Sieve::Call(chord)) => Some(chord),
            _ => None,
        }
    }

    /// How the screen stands that is written to.
    pub fn screen(&self) -> Before {
        match &self.sieve {
            Some(Sieve::Screen(filter) | Sieve::Watched(filter)) => filter.screen(),
            _ => Before::default(),
        }
    }

    /// Reads nothing more, or goes on. What was read is written first.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Writes something else behind what was read so far.
    /// Whether it will be written: nothing is any more when the stream has come to its end.
    pub fn inject(&mut self, bytes: &[u8]) -> bool {
        if self.sink.is_none() {
            return false;
        }
        self.buffer.truncate(self.filled);
        self.buffer.extend_from_slice(bytes);
        self.filled = self.buffer.len();
        true
    }

    /// The same, with the chord taken out by which a person leaves.
    pub fn with_chord(mut self) -> Self {
        self.sieve = Some(Sieve::Keys(Keys::default()));
        self
    }

    /// Whether the chord was typed.
    pub fn has_left(&self) -> bool {
        matches!(&self.sieve, Some(Sieve::Keys(keys)) if keys.have_left())
    }

    /// The source, where somebody else can still write to it.
    pub fn leave(self) -> Option<OwnedFd> {
        let Some(End::Own(source)) = self.source else {
            return None;
        };
        let mut fds = [PollFd::new(&source, PollFlags::IN)];
        let asked = poll(&mut fds, Some(&Timespec::default()));
        let closed = fds[0].revents().contains(PollFlags::HUP);
        (asked.is_ok() && !closed).then_some(source)
    }

    /// Every process of the cage is gone: what it wrote is there, and no more is waited for.
    /// Somebody else may have the other end, handed over by the cage; what he writes, or that he
    /// does not close it, is no longer part of the run.
    pub fn take_only_what_is_there(&mut self, now: Instant) {
        self.last = Some(match &self.source {
            None => 0,
            // A terminal works through what was written at its leisure, and cannot say how much
            // is to come: it gets a moment.
            Some(End::Own(fd)) if isatty(fd) => {
                self.dry = Some(now + TERMINAL_MOMENT);
                TERMINAL_BUFFER
            }
            Some(source) => ioctl_fionread(source.fd())
                .ok()
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(0),
        });
    }

    /// When nothing more is expected of a terminal that nobody is left at.
    pub fn runs_dry(&self) -> Option<Instant> {
        self.dry.filter(|_| self.written == self.filled)
    }

    /// Whether that moment has come, with everything passed on.
    pub fn has_run_dry(&self, now: Instant) -> bool {
        self.runs_dry().is_some_and(|at| now >= at)
    }

    /// Whether everything that will come has gone through.
    pub fn is_done(&self) -> bool {
        (self.source.is_none() || self.last == Some(0)) && self.written == self.filled
    }

    /// What to poll for, or `None` when done.
    pub fn interest(&self) -> Option<(Waits, BorrowedFd<'_>, PollFlags)> {
        if self.is_anothers_turn() {
            return None;
        }
        if self.written < self.filled {
            let sink = self.sink.as_ref()?;
            return Some((Waits::Sink, sink.fd(), PollFlags::OUT));
        }
        if self.last == Some(0) || self.held {
            return None;
        }
        let source = self.source.as_ref()?;
        Some((Waits::Source, source.fd(), PollFlags::IN))
    }

    /// The sink, to notice that nobody reads any more even while there is nothing to write.
    pub fn watched_sink(&self) -> Option<BorrowedFd<'_>> {
        self.sink.as_ref().map(End::fd)
    }

    /// Nobody reads any more: so the writer is to notice.
    pub fn break_off(&mut self) {
        self.source = None;
        self.sink = None;
        self.filled = 0;
        self.written = 0;
        self.note_turn();
    }

    /// Moves what can be moved without waiting. Whether anything moved.
    pub fn advance(&mut self) -> bool {
        let mut moved = false;
        if self.is_anothers_turn() {
            return moved;
        }
        if self.written == self.filled {
            moved |= self.fill();
        }
        if self.written < self.filled {
            moved |= self.drain();
        }
        self.note_turn();
        if moved {
            // However slow the reader is: the moment begins when he has it.
            self.dry = self.dry.map(|_| Instant::now() + TERMINAL_MOMENT);
        }
        moved
    }

    fn fill(&mut self) -> bool {
        let Some(source) = self.source.as_ref().filter(|_| !self.held) else {
            return false;
        };
        let most = self.last.map_or(BUFFER, |last| last.min(BUFFER));
        if most == 0 {
            self.finish();
            return false;
        }
        self.buffer.clear();
        let result = match self.last {
            // Room that is not touched before there is something to put in it: the kernel would
            // have to bring a page for each part of it, also for streams that nobody uses.
            None => {
                self.buffer.reserve_exact(BUFFER);
                read(source.fd(), spare_capacity(&mut self.buffer))
            }
            Some(_) => {
                self.buffer.resize(most, 0);
                read(source.fd(), self.buffer.as_mut_slice())
            }
        };
        match result {
            Ok(0) => self.end(),
            Ok(count) => {
                self.last = self.last.map(|last| last.saturating_sub(count));
                self.written = 0;
                self.filled = count;
                if let Some(sieve) = &mut self.sieve {
                    let mut passed = Vec::with_capacity(count);
                    let bytes = self.buffer.get(..count).unwrap_or_default();
                    match sieve {
                        Sieve::Screen(filter) => filter.feed(bytes, &mut passed),
                        Sieve::Keys(keys) => keys.feed(bytes, &mut passed),
                        Sieve::Call(chord) => chord.feed(bytes, &mut passed),
                        Sieve::Watched(filter) => {
                            filter.feed(bytes, &mut Vec::new());
                            passed.extend_from_slice(bytes);
                        }
                    }
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

    /// The source is at its end. A terminal cannot be closed for those who read from it: they are
    /// told by the key that stands for the end, typed a second time for a line that was begun.
    fn end(&mut self) {
        let terminal = self.sink.as_ref().filter(|_| self.typed);
        let Some(modes) = terminal.and_then(|sink| tcgetattr(sink.fd()).ok()) else {
            return self.finish();
        };
        self.leave_source();
        self.filled = 0;
        self.written = 0;
        self.inject(&[modes.special_codes[SpecialCodeIndex::VEOF]; 2]);
    }

    /// Nothing more comes from the source: nobody notices when it is closed.
    fn leave_source(&mut self) {
        if let Some(End::Own(source)) = self.source.take() {
            close_later(source);
        }
    }

    fn finish(&mut self) {
        self.leave_source();
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

#[cfg(test)]
mod tests {
    use super::*;
    use ironcage_sys::rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    #[test]
    fn two_streams_on_a_terminal_do_not_write_into_each_others_sequences() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((first, into_first), (second, into_second), (result, sink)) = (pipe(), pipe(), pipe());
        fcntl_setpipe_size(&sink, 4096).unwrap();
        let another = sink.try_clone().unwrap();
        let relay = |source, sink| Relay::new(own(source).unwrap(), own(sink).unwrap()).filtered();
        let mut relays = Relay::shown_together(relay(first, sink), relay(second, another));
        // More than the terminal takes at once, and text for the middle of it.
        let long: Vec<u8> = b"\x1b]0;title\x07".repeat(5000);
        write(&into_first, &long).unwrap();
        let [one, other] = relays.as_mut_slice() else {
            panic!("two relays")
        };
        while one.advance() {}
        assert!(!one.is_done() && one.interest().is_some());
        write(&into_second, b"52;c;QQ==").unwrap();
        assert!(!other.advance() && other.interest().is_none());
        let mut seen = vec![0; 2 * long.len()];
        let mut count = 0;
        while one.written < one.filled {
            count += read(&result, &mut seen[count..]).unwrap();
            one.advance();
        }
        assert!(other.interest().is_some() && other.advance());
        // A stream that broke off in the middle keeps nobody waiting.
        write(&into_first, &long).unwrap();
        while one.advance() {}
        assert!(other.interest().is_none());
        one.break_off();
        assert!(other.interest().is_some());
        let text = String::from_utf8_lossy(&seen[..count]).into_owned();
        assert!(!text.contains("52;c"), "nothing in the middle");
    }

    #[test]
    fn what_is_in_the_pipe_at_the_end_goes_through_and_what_another_holder_adds_does_not() {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
        let ((source, held_by_another), (result, sink)) = (pipe(), pipe());
        let mut relay = Relay::new(own(source).unwrap(), own(sink).unwrap());
        write(&held_by_another, b"the cage's last words").unwrap();
        // Without the end, it waits for more.
        assert!(relay.interest().is_some() && !relay.is_done());
        relay.take_only_what_is_there(Instant::now());
        assert!(!relay.is_done());
        write(&held_by_another, b", and a stranger's").unwrap();
        while relay.interest().is_some() {
            assert!(relay.advance());
        }
        assert!(relay.is_done());
        let mut buffer = [0; 100];
        let count = read(&result, &mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"the cage's last words");
    }
}
