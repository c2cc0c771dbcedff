//! Answers refused system calls and counts them for the record.
//!
//! Containment does not depend on this: a call that is never answered stays refused. The
//! supervisor looks at numbers only, never at memory of the cage, unless the run is observed
//! ([`observe`](crate::observe)) or for the address of a connection
//! ([`connects`](crate::connects)).

use crate::connects::ConnectReports;
use crate::observe::{LeasedPath, Observer};
use ironcage_catalog::syscalls;
use ironcage_model::{Denial, EventKind, Traffic};
use ironcage_plan::Plan;
use ironcage_sys::seccomp::{self, Notification, NotificationReply};
use libc::EPERM;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Distinct (call, program) pairs that are kept apart; the rest is counted as others of the call.
const KINDS: usize = 256;
/// Programs of one call that are kept apart: junk names of one call leave others their rows.
const PROGRAMS: usize = 16;
/// Programs of each call that are kept apart even where all rows are taken.
const LEAST_PROGRAMS: usize = 2;
const OTHERS: &str = "(others)";
/// Answers a second: a cage that does nothing but refused calls does not keep the
/// supervisor, and so a processor of the host's, busy.
const PER_SECOND: u32 = 4000;
/// Connections a second that are let through after a look.
const CONNECTS_PER_SECOND: u32 = 20_000;
const WINDOW: Duration = Duration::from_millis(50);

/// Refused calls of one cage.
#[derive(Debug)]
pub(crate) struct Denials {
    init: u32,
    first_exec: bool,
    /// What was seen to be used, where that is observed.
    observer: Option<Observer>,
    connects: ConnectReports,
    seen: BTreeMap<(i32, String), u64>,
    window: Instant,
    answered: u32,
    connected: u32,
}

impl Denials {
    /// `init` is PID 1 outside.
    pub(crate) fn new(init: u32, plan: &Plan, now: Instant) -> Self {
        let observed = !plan.seccomp.observed.is_empty();
        Denials {
            init,
            // Only the first execve is let through.
            first_exec: plan.seccomp.one_exec,
            observer: observed.then(Observer::default),
            connects: ConnectReports::default(),
            seen: BTreeMap::new(),
            window: now,
            answered: 0,
            connected: 0,
        }
    }

    /// When the next answer may be given, if not now.
    pub(crate) fn pause(&mut self, now: Instant) -> Option<Instant> {
        if now.duration_since(self.window) >= WINDOW {
            self.window = now;
            self.answered = 0;
            self.connected = 0;
        }
        let most = |per_second: u32| per_second * WINDOW.as_millis() as u32 / 1000;
        (self.answered >= most(PER_SECOND) || self.connected >= most(CONNECTS_PER_SECOND))
            .then(|| self.window + WINDOW)
    }

    /// Whether what the run uses is observed.
    pub(crate) fn observes(&self) -> bool {
        self.observer.is_some()
    }

    /// Observed uses that were not recorded because there were too many.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.observer.as_ref().map_or(0, Observer::left_out)
    }

    /// Answers one notification. Returns what goes on record: what is the first of its kind.
    pub(crate) fn answer(
        &mut self,
        listener: BorrowedFd<'_>,
        plan: &Plan,
        leased: &[LeasedPath],
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
                seen = observer.look(plan, leased, listener, &notification, &program);
            }
            seccomp::answer(listener, notification.id, NotificationReply::Continue)?;
            return Ok(seen.into_iter().map(EventKind::Observed).collect());
        }
        if plan.seccomp.connects && i64::from(notification.number) == libc::SYS_connect {
            self.connected += 1;
            let told = self.connects.look(plan, listener, &notification);
            seccomp::answer(listener, notification.id, NotificationReply::Continue)?;
            return Ok(told.into_iter().map(EventKind::Network).collect());
        }
        self.answered += 1;
        if self.is_ours(&notification) {
            seccomp::answer(listener, notification.id, NotificationReply::Continue)?;
            return Ok(Vec::new());
        }
        // The name is read while the caller waits, so the id still is its own.
        let key = self.key(&notification);
        seccomp::answer(listener, notification.id, NotificationReply::Errno(EPERM))?;
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
        if i64::from(notification.number) == libc::SYS_execve {
            self.first_exec = false;
        }
        before_exec
    }

    fn key(&self, notification: &Notification) -> (i32, String) {
        self.row(notification.number, program(notification.pid))
    }

    fn row(&self, number: i32, program: String) -> (i32, String) {
        let key = (number, program);
        if self.seen.contains_key(&key) {
            return key;
        }
        let programs = self.seen.keys().filter(|(known, _)| *known == number);
        let programs = programs.count();
        let fits = self.seen.len() < KINDS && programs < PROGRAMS || programs < LEAST_PROGRAMS;
        match fits {
            true => key,
            false => (number, OTHERS.into()),
        }
    }

    /// Connections that were reported more than once, as [`Self::remainder`].
    pub(crate) fn connects(&self) -> Vec<Traffic> {
        self.connects.remainder()
    }

    /// What was refused more than once: the counts that the first records did not have.
    pub(crate) fn remainder(&self) -> Vec<Denial> {
        let mut rest = self.all();
        rest.retain_mut(|denial| {
            denial.count -= 1;
            denial.count > 0
        });
        rest
    }

    /// Everything that was refused, with how often.
    pub(crate) fn all(&self) -> Vec<Denial> {
        let seen = self.seen.iter();
        let mut all: Vec<Denial> = seen
            .map(|((number, program), count)| denial(*number, program.clone(), *count))
            .collect();
        all.sort_by(|a, b| (&a.syscall, &a.program).cmp(&(&b.syscall, &b.program)));
        all
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

#[cfg(test)]
mod tests {
    use super::*;

    fn count(denials: &mut Denials, number: i32, program: &str) -> String {
        let row = denials.row(number, program.into());
        *denials.seen.entry(row.clone()).or_default() += 1;
        row.1
    }

    fn empty() -> Denials {
        Denials {
            init: 1,
            first_exec: false,
            observer: None,
            connects: ConnectReports::default(),
            seen: BTreeMap::new(),
            window: Instant::now(),
            answered: 0,
            connected: 0,
        }
    }

    #[test]
    fn junk_program_names_leave_other_calls_their_rows() {
        let mut denials = empty();
        for number in 0..1000 {
            count(&mut denials, 165, &format!("junk{number}"));
        }
        assert_eq!(denials.seen.len(), PROGRAMS + 1);
        assert_eq!(count(&mut denials, 101, "gdb"), "gdb");
        let left_out = &denials.seen[&(165, OTHERS.to_owned())];
        assert_eq!(*left_out, 1000 - PROGRAMS as u64);
    }

    #[test]
    fn junk_of_many_calls_leaves_a_new_call_some_programs() {
        let mut denials = empty();
        for call in 0..400 {
            for number in 0..40 {
                count(&mut denials, call, &format!("junk{number}"));
            }
        }
        assert!(denials.seen.len() <= KINDS + 400 * (LEAST_PROGRAMS + 1));
        assert_eq!(count(&mut denials, 450, "gdb"), "gdb");
        assert_eq!(count(&mut denials, 450, "strace"), "strace");
        assert_eq!(count(&mut denials, 450, "perf"), OTHERS);
    }
}
