//! Children for attempts that may end the caller.
//!
//! Used by programs with a single thread (the probe inside a sandbox, the stage's init):
//! only then may a forked child run ordinary code. With more threads, it is refused.

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait, waitpid};

/// How a forked child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// One child that [`run_as_init`] or [`wait_for`] collected.
#[derive(Debug, Clone, Copy)]
pub struct CollectedChild {
    /// Its process id.
    pub pid: Pid,
    /// How it ended.
    pub end: ChildEnd,
}

fn single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |tasks| tasks.count() <= 1)
}

fn end_of(status: WaitStatus) -> ChildEnd {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ChildEnd::Exited(code),
        (None, Some(signal)) => ChildEnd::Killed(signal),
        (None, None) => ChildEnd::Exited(-1),
    }
}

/// Starts `work` in a forked child, which ends with the status that it returns.
pub fn fork_start(work: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    if !single_threaded() {
        return Err(Errno::DEADLK);
    }
    // SAFETY: there is one thread, so that no lock is held by a thread that the child lacks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = work();
        // SAFETY: _exit ends the process without running the parent's exit handlers.
        unsafe { libc::_exit(status) }
    }
    if pid < 0 {
        return Err(super::last_errno());
    }
    Pid::from_raw(pid).ok_or(Errno::INVAL)
}

/// Runs `work` in a forked child and waits for its end.
pub fn fork_run(work: impl FnOnce() -> i32) -> Result<ChildEnd, Errno> {
    wait_for(fork_start(work)?)
}

/// Waits for one child.
pub fn wait_for(child: Pid) -> Result<ChildEnd, Errno> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(end_of(status)),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Collects every orphan, as the first process of a pid namespace must, until `child` ends.
pub fn run_as_init(child: Pid) -> Result<ChildEnd, Errno> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => return Ok(end_of(status)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_threads_may_not_fork_ordinary_code() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || held.recv());
        assert_eq!(fork_run(|| 0), Err(Errno::DEADLK));
        drop(hold);
        assert!(waiter.join().is_ok());
    }
}
