//! The output of one process: what is kept of it, and who reads it.

use crate::protocol::{Exit, Kind};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of output that are kept for those who come later.
const KEPT: usize = 1 << 20;

/// Output, in the order in which it came.
#[derive(Debug, Default)]
pub(crate) struct Output {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// Where the oldest chunk begins.
    from: u64,
    /// Where the next chunk will begin.
    end: u64,
    /// For each follower, the first byte that it has not taken.
    followers: BTreeMap<u64, u64>,
    next_follower: u64,
    /// Streams that are not at their end.
    open: usize,
    exit: Option<Exit>,
}

#[derive(Debug, Clone)]
struct Chunk {
    at: u64,
    kind: Kind,
    bytes: Vec<u8>,
}

/// What a follower gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Bytes(Kind, Vec<u8>),
    Exit(Exit),
}

impl Output {
    /// Output of a process with this number of streams.
    pub(crate) fn of(streams: usize) -> Output {
        let state = State {
            open: streams,
            ..State::default()
        };
        Output {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output. Waits while it would push out what a follower has not taken yet: a slow reader
    /// slows the process, as a pipe does. Without followers the oldest output goes.
    pub(crate) fn push(&self, kind: Kind, bytes: &[u8]) {
        let mut state = self.lock();
        let incoming = bytes.len() as u64;
        while state.end + incoming - state.from > KEPT as u64 {
            let Some(oldest) = state.chunks.front() else {
                break;
            };
            let after = oldest.at + oldest.bytes.len() as u64;
            if state.followers.values().any(|taken| *taken < after) {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.chunks.pop_front();
            state.from = after;
        }
        let at = state.end;
        state.end += incoming;
        state.chunks.push_back(Chunk {
            at,
            kind,
            bytes: bytes.to_vec(),
        });
        self.changed.notify_all();
    }

    /// One of the streams is at its end, or nobody waits for more of it.
    pub(crate) fn close_stream(&self) {
        self.lock().open -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn exited(&self, exit: Exit) {
        self.lock().exit = Some(exit);
        self.changed.notify_all();
    }

    /// Lets followers look whether they are to stop.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// How the process ended, once it did.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.lock().exit
    }

    /// The first byte that is kept, and the number of bytes so far.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let state = self.lock();
        (state.from, state.end)
    }

    /// Follows the output from a byte on, or from now on. What is no longer kept is skipped.
    pub(crate) fn follow(&self, from: Option<u64>) -> Follower<'_> {
        let mut state = self.lock();
        let at = from.unwrap_or(state.end).clamp(state.from, state.end);
        let number = state.next_follower;
        state.next_follower += 1;
        state.followers.insert(number, at);
        Follower {
            output: self,
            number,
            from: at,
        }
    }
}

/// One who reads the output. Dropping it lets the process go on without.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    output: &'a Output,
    number: u64,
    /// The first byte that it gets.
    pub(crate) from: u64,
}

impl Follower<'_> {
    /// Waits for what comes next. `None` when it is to stop.
    pub(crate) fn next(&self, stop: &AtomicBool) -> Option<Next> {
        let mut state = self.output.lock();
        loop {
            if stop.load(Ordering::Acquire) {
                return None;
            }
            let at = state
                .followers
                .get(&self.number)
                .copied()
                .unwrap_or(state.end);
            let found = state
                .chunks
                .partition_point(|chunk| chunk.at + chunk.bytes.len() as u64 <= at);
            if let Some(chunk) = state.chunks.get(found) {
                let skipped = usize::try_from(at.saturating_sub(chunk.at)).unwrap_or(0);
                let bytes = chunk.bytes.get(skipped..).unwrap_or_default().to_vec();
                let (kind, end) = (chunk.kind, chunk.at + chunk.bytes.len() as u64);
                state.followers.insert(self.number, end);
                self.output.changed.notify_all();
                return Some(Next::Bytes(kind, bytes));
            }
            if let (Some(exit), 0) = (state.exit, state.open) {
                return Some(Next::Exit(exit));
            }
            state = self
                .output
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.output.lock().followers.remove(&self.number);
        self.output.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: Exit = Exit {
        code: Some(0),
        signal: None,
    };

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn output_is_read_again_from_any_byte_that_is_kept() {
        let output = Output::of(1);
        output.push(Kind::Stdout, b"abc");
        output.push(Kind::Stderr, b"def");
        output.close_stream();
        output.exited(EXIT);
        let follower = output.follow(Some(1));
        assert_eq!(
            follower.next(&GO_ON),
            Some(Next::Bytes(Kind::Stdout, b"bc".to_vec()))
        );
        assert_eq!(
            follower.next(&GO_ON),
            Some(Next::Bytes(Kind::Stderr, b"def".to_vec()))
        );
        assert_eq!(follower.next(&GO_ON), Some(Next::Exit(EXIT)));
        let late = output.follow(None);
        assert_eq!((late.from, late.next(&GO_ON)), (6, Some(Next::Exit(EXIT))));
    }

    #[test]
    fn without_followers_the_oldest_output_goes() {
        let output = Output::of(1);
        for _ in 0..20 {
            output.push(Kind::Stdout, &[7; KEPT / 10]);
        }
        let (from, end) = output.extent();
        assert!(end - from <= KEPT as u64 && from > 0);
        assert_eq!(output.follow(Some(0)).from, from);
    }

    #[test]
    fn a_slow_follower_loses_nothing() {
        let output = Output::of(1);
        let follower = output.follow(Some(0));
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200_u8 {
                    output.push(Kind::Stdout, &[number; KEPT / 50]);
                }
                output.close_stream();
                output.exited(EXIT);
            });
            let mut taken = 0;
            while let Some(Next::Bytes(_, bytes)) = follower.next(&GO_ON) {
                taken += bytes.len();
            }
            taken
        });
        assert_eq!(taken, 200 * (KEPT / 50));
    }
}
