//! Every system call with arguments that no call accepts: who answers, filter or kernel?

use super::{ChildEnd, fork_start};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
use std::time::{Duration, Instant};

/// One past the last number that is tried.
pub const SWEEP_END: u32 = 472;

/// What one number answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepAnswer {
    /// A value that is not an error.
    Value,
    /// An error.
    Error(Errno),
    /// The caller was killed by this signal.
    Killed(i32),
    /// No answer in time.
    Blocked,
}

/// Whether a number is left out: calls that end, block or duplicate the caller, or that act on
/// the machine without looking at an argument.
pub fn sweep_skips(number: u32) -> bool {
    const SKIPPED: &[libc::c_long] = &[
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        libc::SYS_vhangup,
        libc::SYS_sync,
        libc::SYS_reboot,
        libc::SYS_sched_yield,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pause,
    ];
    SKIPPED.contains(&libc::c_long::from(number))
}

/// Calls one number in a child of its own, every argument being minus one, which is no valid
/// pointer, descriptor, size or flag.
pub fn try_syscall(number: u32) -> Result<SweepAnswer, Errno> {
    const PATIENCE: Duration = Duration::from_millis(300);
    const NO_ERROR: i32 = 0;
    let child = fork_start(|| {
        const BAD: libc::c_long = -1;
        let number = libc::c_long::from(number);
        // SAFETY: no argument is a pointer into this process, so that its memory is not
        // changed; the child ends right afterwards.
        let answer = unsafe { libc::syscall(number, BAD, BAD, BAD, BAD, BAD, BAD) };
        if answer == -1 {
            super::last_errno().raw_os_error()
        } else {
            NO_ERROR
        }
    })?;
    let started = Instant::now();
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG)? {
            Some((_, status)) => {
                let end = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => ChildEnd::Exited(code),
                    (_, signal) => ChildEnd::Killed(signal.unwrap_or(0)),
                };
                return Ok(match end {
                    ChildEnd::Exited(NO_ERROR) => SweepAnswer::Value,
                    ChildEnd::Exited(code) => SweepAnswer::Error(Errno::from_raw_os_error(code)),
                    ChildEnd::Killed(signal) => SweepAnswer::Killed(signal),
                });
            }
            None if started.elapsed() > PATIENCE => {
                kill_process(child, Signal::KILL)?;
                waitpid(Some(child), WaitOptions::empty())?;
                return Ok(SweepAnswer::Blocked);
            }
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}
