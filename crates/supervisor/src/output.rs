//! Where output goes that nobody relays: the log of a background cage, and those who are attached
//! to it.
//!
//! The supervisor copies bytes and looks at none of them. A client that is attached and does not
//! read holds the cage up for a while and is then cut off; the log has everything.

use crate::control::pipe;
use crate::log::OutputLog;
use ironcage_model::SupervisorReason;
use ironcage_sys::rustix::event::PollFlags;
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::pipe::fcntl_setpipe_size;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes that are under way at once.
const BUFFER: usize = 64 * 1024;
/// Streams that are read at once: the command's, and what execs have left.
const MAX_SOURCES: usize = 64;
const MAX_ATTACHED: usize = 16;
/// What lies between the supervisor and who is attached.
const ATTACHED_PIPE: usize = 256 * 1024;
/// How long somebody attached may hold the cage's output up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Output that the supervisor takes itself.
#[derive(Debug, Default)]
pub(crate) struct Output {
    log: Option<OutputLog>,
    sources: Vec<CapturedStream>,
    attached: Vec<AttachedClient>,
    /// Where the command's input is written; whoever is attached gets a copy.
    input: Option<OwnedFd>,
    next_key: u64,
}

#[derive(Debug)]
struct CapturedStream {
    key: u64,
    end: OwnedFd,
    /// Whether it is the command's own.
    own: bool,
}

#[derive(Debug)]
struct AttachedClient {
    client: u64,
    end: OwnedFd,
    pending: Vec<u8>,
    since: Instant,
}

/// What of the output is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputReady {
    /// There is something to read.
    Source(u64),
    /// There is room to write, or nobody reads any more.
    Attached(u64),
}

impl Output {
    /// Output that goes to a log.
    pub(crate) fn to_log(log: OutputLog, input: Option<OwnedFd>) -> Self {
        Output {
            log: Some(log),
            input,
            ..Output::default()
        }
    }

    /// Whether it goes to a log, and not to whoever started the cage.
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// A pipe to which the command's own output is relayed: its writing end.
    pub(crate) fn own(&mut self) -> Result<OwnedFd, Errno> {
        let (source, sink) = pipe()?;
        self.add(source, true);
        Ok(sink)
    }

    /// Reads on what an exec has left behind; must not block.
    pub(crate) fn adopt(&mut self, source: OwnedFd) -> Result<(), Errno> {
        if self.sources.len() >= MAX_SOURCES {
            return Err(Errno::MFILE);
        }
        ironcage_sys::rustix::io::ioctl_fionbio(&source, true)?;
        self.add(source, false);
        Ok(())
    }

    fn add(&mut self, end: OwnedFd, own: bool) {
        self.next_key += 1;
        let key = self.next_key;
        self.sources.push(CapturedStream { key, end, own });
    }

    /// Whether everything that the command itself wrote has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.sources.iter().all(|source| !source.own)
            && self.attached.iter().all(|one| one.pending.is_empty())
    }

    /// Joins somebody: where to read the output, and where to write input.
    pub(crate) fn attach(
        &mut self,
        client: u64,
        now: Instant,
    ) -> Result<(OwnedFd, Option<OwnedFd>), SupervisorReason> {
        if self.log.is_none() {
            return Err(SupervisorReason::Foreground);
        }
        if self.attached.len() >= MAX_ATTACHED {
            let limit = MAX_ATTACHED as u64;
            return Err(SupervisorReason::TooManyClients { limit });
        }
        let failed = |error: std::io::Error| SupervisorReason::ExecFailed {
            error: error.to_string(),
        };
        let (source, sink) = pipe().map_err(|error| failed(error.into()))?;
        // Smaller does too, where the user's share of pipe memory is used up.
        let _ = fcntl_setpipe_size(&sink, ATTACHED_PIPE);
        let input = self.input.as_ref().map(OwnedFd::try_clone).transpose();
        let input = input.map_err(failed)?;
        self.attached.push(AttachedClient {
            client,
            end: sink,
            pending: Vec::new(),
            since: now,
        });
        Ok((source, input))
    }

    /// Somebody attached is gone.
    pub(crate) fn detach(&mut self, client: u64) {
        self.attached.retain(|one| one.client != client);
    }

    /// What to poll for. While somebody attached has not taken the last bytes, none are read.
    pub(crate) fn interests(&self) -> Vec<(OutputReady, BorrowedFd<'_>, PollFlags)> {
        let blocked = self.attached.iter().any(|one| !one.pending.is_empty());
        let mut spots = Vec::new();
        for one in &self.attached {
            let flags = match one.pending.is_empty() {
                // Only that nobody reads any more.
                true => PollFlags::empty(),
                false => PollFlags::OUT,
            };
            spots.push((OutputReady::Attached(one.client), one.end.as_fd(), flags));
        }
        if !blocked {
            for source in &self.sources {
                let spot = OutputReady::Source(source.key);
                spots.push((spot, source.end.as_fd(), PollFlags::IN));
            }
        }
        spots
    }

    /// When somebody attached has held the cage up for long enough.
    pub(crate) fn next(&self) -> Option<Instant> {
        let blocking = self.attached.iter().filter(|one| !one.pending.is_empty());
        blocking.map(|one| one.since + PATIENCE).min()
    }

    /// Cuts off who has held the cage up for too long.
    pub(crate) fn cut_off(&mut self, now: Instant) {
        self.attached
            .retain(|one| one.pending.is_empty() || now < one.since + PATIENCE);
    }

    /// Acts where something is ready. Whether anything moved.
    pub(crate) fn advance(&mut self, spot: OutputReady, now: Instant) -> bool {
        match spot {
            OutputReady::Source(key) => self.take(key, now),
            OutputReady::Attached(client) => {
                let mut list = self.attached.iter_mut();
                let gone = match list.find(|one| one.client == client) {
                    // Polled for nothing, so this is the end.
                    Some(one) if one.pending.is_empty() => true,
                    Some(one) => !one.push(now),
                    None => false,
                };
                if gone {
                    self.detach(client);
                }
                true
            }
        }
    }

    fn take(&mut self, key: u64, now: Instant) -> bool {
        // Somebody was held up by another source of the same round.
        if self.attached.iter().any(|one| !one.pending.is_empty()) {
            return false;
        }
        let Some(index) = self.sources.iter().position(|s| s.key == key) else {
            return false;
        };
        let mut buffer = vec![0; BUFFER];
        let source = &self.sources[index];
        let count = match read(&source.end, buffer.as_mut_slice()) {
            Ok(0) => {
                self.sources.swap_remove(index);
                return false;
            }
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => {
                self.sources.swap_remove(index);
                return false;
            }
        };
        buffer.truncate(count);
        if let Some(log) = &mut self.log {
            log.append(&buffer);
        }
        for one in &mut self.attached {
            one.pending.extend_from_slice(&buffer);
            one.since = now;
        }
        self.attached.retain_mut(|one| one.push(now));
        true
    }
}

impl AttachedClient {
    /// Passes on what can be passed on. `false` when nobody reads any more.
    fn push(&mut self, now: Instant) -> bool {
        while !self.pending.is_empty() {
            match write(&self.end, &self.pending) {
                Ok(count) => {
                    self.pending.drain(..count.min(self.pending.len()));
                    self.since = now;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> (tempfile::TempDir, Output, OwnedFd) {
        let place = tempfile::tempdir().unwrap();
        let log = OutputLog::create(place.path()).unwrap();
        let mut output = Output::to_log(log, None);
        let sink = output.own().unwrap();
        (place, output, sink)
    }

    fn run(output: &mut Output, now: Instant) {
        for _ in 0..200 {
            let spots: Vec<OutputReady> = output
                .interests()
                .iter()
                .filter(|(_, _, flags)| !flags.is_empty())
                .map(|(spot, ..)| *spot)
                .collect();
            for spot in spots {
                output.advance(spot, now);
            }
        }
    }

    #[test]
    fn output_goes_to_the_log_and_to_who_is_attached() {
        let (place, mut output, sink) = output();
        let now = Instant::now();
        let (reader, _) = output.attach(1, now).unwrap();
        write(&sink, b"hello").unwrap();
        run(&mut output, now);
        let mut buffer = [0; 16];
        let count = read(&reader, &mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"hello");
        let logged = std::fs::read(place.path().join("output.log")).unwrap();
        assert_eq!(logged, b"hello");
        assert!(!output.is_done());
        drop(sink);
        run(&mut output, now);
        assert!(output.is_done());
    }

    #[test]
    fn who_does_not_read_holds_the_output_up_for_a_while_and_is_then_cut_off() {
        let (place, mut output, sink) = output();
        let now = Instant::now();
        let (_reader, _) = output.attach(1, now).unwrap();
        let block = vec![b'x'; BUFFER];
        let mut written = 0;
        for _ in 0..100 {
            written += write(&sink, &block).unwrap_or(0);
            run(&mut output, now);
        }
        // Bounded: the pipes on the way are full.
        assert!(written < 2 << 20, "{written}");
        assert!(output.next().is_some());
        output.cut_off(now);
        assert!(output.next().is_some(), "not before its time");
        output.cut_off(now + PATIENCE);
        assert!(output.next().is_none());
        run(&mut output, now);
        let logged = std::fs::read(place.path().join("output.log")).unwrap();
        assert_eq!(logged.len(), written);
    }

    #[test]
    fn a_cage_in_the_foreground_cannot_be_attached_to() {
        let mut output = Output::default();
        assert!(output.attach(1, Instant::now()).is_err());
        let (source, sink) = pipe().unwrap();
        output.adopt(source).unwrap();
        write(&sink, b"left over").unwrap();
        run(&mut output, Instant::now());
        // Read on, so that who writes can go on; it is not the command's own.
        assert!(output.is_done());
        drop(sink);
    }
}
