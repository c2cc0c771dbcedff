//! A cage that is to stand still, and whoever in it does not.
//!
//! A stopped process goes on when it gets SIGCONT, and it can have arranged for one: a timer, a
//! parent that dies, a descriptor that becomes readable. While nobody watches the cage's limits,
//! or its files are worked on from outside, that must not help it. So PID 1, which nothing inside
//! can stop, looks again and again, and ends what has gone on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often PID 1 looks.
pub(crate) const ROUND: Duration = Duration::from_millis(20);
/// A sleeper stops as soon as it gets the processor. One that still sleeps after so long has
/// gone on since.
const SLEEPS: Duration = Duration::from_secs(1);
/// One that runs may have to wait for the processor first, on a host with much to do.
const RUNS: Duration = Duration::from_secs(10);

/// What was seen of the processes since they were told to stop.
#[derive(Debug)]
pub(crate) struct StopGuard {
    looked: Instant,
    seen: BTreeMap<i32, ObservedProcess>,
}

/// What was seen of one. It may have come later than the others: what is executed meanwhile is to
/// stand too, and has its own time for it.
#[derive(Debug)]
struct ObservedProcess {
    first: Instant,
    stood: bool,
}

/// What is to be done about a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopAction {
    /// It stands, or cannot do anything.
    Leave,
    /// It has not stood yet: tell it again.
    Stop,
    /// It stood, and went on.
    Kill,
}

impl StopGuard {
    /// Everything has just been told to stop.
    pub(crate) fn new(now: Instant) -> StopGuard {
        StopGuard {
            looked: now,
            seen: BTreeMap::new(),
        }
    }

    /// What to do about a process, by the letter that the kernel has for its state.
    pub(crate) fn judge(&mut self, pid: i32, state: u8, now: Instant) -> StopAction {
        let seen = self.seen.entry(pid).or_insert(ObservedProcess {
            first: now,
            stood: false,
        });
        let passed = now.duration_since(seen.first);
        match state {
            b'T' | b't' => {
                seen.stood = true;
                StopAction::Leave
            }
            b'Z' | b'X' => StopAction::Leave,
            _ if seen.stood => StopAction::Kill,
            b'S' if passed >= SLEEPS => StopAction::Kill,
            b'R' if passed >= RUNS => StopAction::Kill,
            // Deep in the kernel, as one is that waits for a child which stopped before it
            // executed: it does nothing else, and stops when it is out.
            _ => StopAction::Stop,
        }
    }

    /// Looks at every process of the cage by its own /proc, where it is time to, and calls on
    /// those that move.
    pub(crate) fn look(&mut self, now: Instant, mut signal: impl FnMut(i32, i32)) {
        if now.duration_since(self.looked) < ROUND {
            return;
        }
        self.looked = now;
        let Ok(listing) = std::fs::read_dir("/proc") else {
            return;
        };
        for entry in listing.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if pid == 1 {
                continue;
            }
            let Some(state) = state(pid) else {
                continue;
            };
            match self.judge(pid, state, now) {
                StopAction::Leave => {}
                StopAction::Stop => signal(pid, SIGSTOP),
                StopAction::Kill => signal(pid, SIGKILL),
            }
        }
    }
}

const SIGKILL: i32 = ironcage_sys::rustix::process::Signal::KILL.as_raw();
const SIGSTOP: i32 = ironcage_sys::rustix::process::Signal::STOP.as_raw();

/// The state of a process: of its threads, that of one which moves.
fn state(pid: i32) -> Option<u8> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut found = None;
    for task in tasks.flatten() {
        let text = std::fs::read(task.path().join("stat")).unwrap_or_default();
        // The name before it is the program's choice, and may hold anything.
        let after = text.iter().rposition(|byte| *byte == b')');
        match after.and_then(|after| text.get(after + 2)) {
            Some(b'T' | b't' | b'Z' | b'X') if found.is_some() => {}
            Some(state) => found = Some(*state),
            None => {}
        }
        if !matches!(found, None | Some(b'T' | b't' | b'Z' | b'X')) {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_is_left_alone_and_who_goes_on_is_ended() {
        let now = Instant::now();
        let mut still = StopGuard::new(now);
        assert_eq!(still.judge(7, b'R', now), StopAction::Stop);
        assert_eq!(still.judge(7, b'T', now), StopAction::Leave);
        assert_eq!(still.judge(7, b'T', now + RUNS), StopAction::Leave);
        assert_eq!(still.judge(7, b'S', now), StopAction::Kill);
        assert_eq!(still.judge(8, b'Z', now), StopAction::Leave);
    }

    #[test]
    fn who_has_not_stood_yet_gets_time_and_not_for_ever() {
        let now = Instant::now();
        let mut still = StopGuard::new(now);
        for state in *b"SRDP" {
            assert_eq!(still.judge(9, state, now), StopAction::Stop);
        }
        assert_eq!(still.judge(9, b'S', now + SLEEPS), StopAction::Kill);
        assert_eq!(still.judge(9, b'R', now + SLEEPS), StopAction::Stop);
        assert_eq!(still.judge(9, b'R', now + RUNS), StopAction::Kill);
        assert_eq!(still.judge(9, b'D', now + RUNS), StopAction::Stop);
        // One that comes later has the same time.
        assert_eq!(still.judge(10, b'S', now + RUNS), StopAction::Stop);
        assert_eq!(still.judge(10, b'S', now + RUNS + SLEEPS), StopAction::Kill);
    }
}
