//! The container's first process: collects orphans, and is there until the container is ended.
//!
//! It is a program in the container, run by the runtime as the agent's user under every lock of
//! the agent's. It does nothing that the agent could ask of it.

use ironcage_command::error::{CliError, CommandResult};
use ironcage_sys::clone::exit_now;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{DumpableBehavior, WaitOptions, set_dumpable_behavior, wait};
use ironcage_sys::rustix::stdio;
use ironcage_sys::signals;
use std::os::fd::AsFd;

const SIGCHLD: i32 = ironcage_sys::rustix::process::Signal::CHILD.as_raw();

/// Collects whoever ends, for ever.
pub(crate) fn run() -> ! {
    // Its streams are files of the container monitor's: nobody inside is to open them by its name.
    let closed =
        set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok() && let_streams_go().is_ok();
    // The kernel keeps signals from the first process of a pid namespace that it does not handle.
    let Ok(ended) = signals::catch(&[SIGCHLD]) else {
        exit_now(125)
    };
    if !closed {
        exit_now(125);
    }
    loop {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        // An interrupted wait is as good as one that was not.
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], None);
        while let Ok(Some(_)) = signals::next(ended.as_fd()) {}
    }
}

/// Says by its status whether a command that the runtime starts has a system call filter.
pub(crate) fn filtered() -> CommandResult {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| CliError::new(format!("cannot read /proc/self/status: {error}")))?;
    let has_filter = status.lines().any(|line| line == "Seccomp:\t2");
    Ok(if has_filter { 0 } else { 3 })
}

fn let_streams_go() -> Result<(), Errno> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    stdio::dup2_stdin(&null)?;
    stdio::dup2_stdout(&null)?;
    stdio::dup2_stderr(&null)
}
