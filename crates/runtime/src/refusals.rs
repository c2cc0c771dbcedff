//! Answers refused system calls and counts them for the record.
//!
//! Containment does not depend on this: a call that is never answered stays refused. The
//! supervisor looks at numbers only, never at memory of the cage, unless the run is observed
//! ([`observe`](crate::observe)).

use crate::observe::Observer;
use ironcage_model::{Denial, EventKind};
use ironcage_plan::Plan;
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
    /// What was seen to be used, where that is observed.
    observer: Option<Observer>,
    seen: HashMap<(i32, String), u64>,
    window: Instant,
    answered: u32,
}

impl Refusals {
    /// `init` is PID 1 outside.
    pub(crate) fn new(init: u32, plan: &Plan, now: Instant) -> Self {
        let observed = !plan.seccomp.observed.is_empty();
        Refusals {
            init,
            // Only the first execve is let through.
            first_exec: plan.seccomp.one_exec,
            observer: observed.then(Observer::default),
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

    /// Whether what the run uses is observed.
    pub(crate) fn observes(&self) -> bool {
        self.observer.is_some()
    }

    /// Answers one notification. Returns what goes on record: what is the first of its kind.
    pub(crate) fn answer(
        &mut self,
        listener: BorrowedFd<'_>,
        plan: &Plan,
    ) -> std::io::Result<Vec<EventKind>> {
        let Some(notification) = seccomp::receive(listener)? else {
            return Ok(Vec::new());
        };
        let number = u32::try_from(notification.number).ok();
        if let Some(observer) = &mut self.observer
            && number.is_some_and(|number| plan.seccomp.observed.contains(&number))
        {
            // The filter lets these through by their number alone: whatever is read of the
            // caller's memory, the answer is the same.
            let mut seen = Vec::new();
            if notification.pid != self.init {
                let program = program(notification.pid);
                seen = observer.look(plan, listener, &notification, &program);
            }
            seccomp::answer(listener, notification.id, Answer::Continue)?;
            return Ok(seen.into_iter().map(EventKind::Observed).collect());
        }
        self.answered += 1;
        if self.is_ours(&notification) {
            seccomp::answer(listener, notification.id, Answer::Continue)?;
            return Ok(Vec::new());
        }
        // The name is read while the caller waits, so the id still is its own.
        let key = self.key(&notification);
        seccomp::answer(listener, notification.id, Answer::Errno(EPERM))?;
        let (number, program) = key.clone();
        let count = self.seen.entry(key).or_default();
        *count += 1;
        let first = (*count == 1).then(|| EventKind::Denied(denial(number, program, 1)));
        Ok(first.into_iter().collect())
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
        let key = (notification.number, program(notification.pid));
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

/// What a process calls itself.
fn program(pid: u32) -> String {
    std::fs::read(format!("/proc/{pid}/comm"))
        .map(|name| String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
        .unwrap_or_else(|_| "?".into())
}

fn denial(number: i32, program: String, count: u64) -> Denial {
    let name = u32::try_from(number).ok().and_then(syscalls::name);
    Denial {
        syscall: name.map_or_else(|| format!("syscall_{number}"), str::to_owned),
        program,
        count,
    }
}
