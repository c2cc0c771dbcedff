//! A process that is forked from the supervisor to read what the agent writes, and ends with it.

use ironcage_control::Channel;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use std::os::fd::{AsFd as _, OwnedFd};

/// How long one that is killed may take to be gone.
const GONE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

#[derive(Debug)]
pub(crate) struct ForkedReader {
    pub(crate) channel: Channel,
    pub(crate) pidfd: OwnedFd,
}

impl Drop for ForkedReader {
    fn drop(&mut self) {
        // One that is gone already needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // A file system that does not answer may hold it for ever, signal or not; not us.
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&GONE));
        let gone = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), gone);
    }
}
