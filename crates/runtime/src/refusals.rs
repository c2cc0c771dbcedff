//! Answers refused system calls and counts them for the record.
//!
//! Containment does not depend on this: a call that is never answered stays refused. The
//! supervisor looks at numbers only, never at memory of the cage.

use ironcage_model::Denial;
use ironcage_policy::syscalls;
use ironcage_sys::seccomp::{self, Answer, Notification};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const EPERM: i32 = 1;
const EXECVE: i32 = 59;
/// Distinct (call, program) pairs that are kept apart; the rest is counted as others.
const KINDS: usize = 256;
/// Answers a second: a cage that does nothing but refused calls does not keep the
/// supervisor, and so a processor of the host's, busy.
const PER_SECOND: u32 = 4000;
const WINDOW: Duration = Duration::from_millis(50);

/// Refused calls of one cage.
#[derive(Debug)]
pub(crate) struct Refusals {
    init: u32,
    first_exec: bool,
    seen: HashMap<(i32, String), u64>,
    window: Instant,
    answered: u32,
}

impl Refusals {
    /// `init` is PID 1 outside; `one_exec` whether only the first execve is let through.
    pub(crate) fn new(init: u32, one_exec: bool, now: Instant) -> Self {
        Refusals {
            init,
            first_exec: one_exec,
            seen: HashMap::new(),
            window: now,
            answered: 0,
        }
    }

    /// When the next answer may be given, if not now.
    pub(crate) fn pause(&mut self, now: Instant) -> Option<Instant> {
        if now.duration_since(self.window) >= WINDOW {
            self.window = now;
            self.answered = 0;
        }
        let most = PER_SECOND * WINDOW.as_millis() as u32 / 1000;
        (self.answered >= most).then(|| self.window + WINDOW)
    }

    /// Answers one notification. Returns a denial when it is the first of its kind.
    pub(crate) fn answer(&mut self, listener: BorrowedFd<'_>) -> std::io::Result<Option<Denial>> {
        let Some(notification) = seccomp::receive(listener)? else {
            return Ok(None);
        };
        self.answered += 1;
        if self.is_ours(&notification) {
            seccomp::answer(listener, notification.id, Answer::Continue)?;
            return Ok(None);
        }
        // The name is read while the caller waits, so the id still is its own.
        let key = self.key(&notification);
        seccomp::answer(listener, notification.id, Answer::Errno(EPERM))?;
        let (number, program) = key.clone();
        let count = self.seen.entry(key).or_default();
        *count += 1;
        Ok((*count == 1).then(|| denial(number, program, 1)))
    }

    /// PID 1 is our own code and may do what the agent may not; and before the first execve
    /// nothing of the agent's runs.
    fn is_ours(&mut self, notification: &Notification) -> bool {
        if notification.pid == self.init {
            return true;
        }
        let before_exec = self.first_exec;
        if notification.number == EXECVE {
            self.first_exec = false;
        }
        before_exec
    }

    fn key(&self, notification: &Notification) -> (i32, String) {
        let program = std::fs::read(format!("/proc/{}/comm", notification.pid))
            .map(|name| String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
            .unwrap_or_else(|_| "?".into());
        let key = (notification.number, program);
        if self.seen.len() < KINDS || self.seen.contains_key(&key) {
            key
        } else {
            (notification.number, "(others)".into())
        }
    }

    /// What was refused more than once: the counts that the first records did not have.
    pub(crate) fn remainder(&self) -> Vec<Denial> {
        let mut rest: Vec<Denial> = self
            .seen
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|((number, program), count)| denial(*number, program.clone(), count - 1))
            .collect();
        rest.sort_by(|a, b| (&a.syscall, &a.program).cmp(&(&b.syscall, &b.program)));
        rest
    }
}

fn denial(number: i32, program: String, count: u64) -> Denial {
    let name = u32::try_from(number).ok().and_then(syscalls::name);
    Denial {
        syscall: name.map_or_else(|| format!("syscall_{number}"), str::to_owned),
        program,
        count,
    }
}
