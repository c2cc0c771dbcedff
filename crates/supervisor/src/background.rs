//! A supervisor in the background: a process of its own that leaves the caller's session.
//!
//! There is no daemon: the supervisor is forked from the command that starts the cage, and lives
//! as long as the cage does. The caller waits until the command is being executed, so that
//! whatever fails before that fails in front of them.

use ironcage_model::CageId;
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::io::{Errno, read, write};
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use ironcage_sys::rustix::process::{WaitId, WaitIdOptions, setsid, waitid};
use ironcage_sys::rustix::stdio;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Which side of the fork this is.
#[derive(Debug)]
pub enum ForkRole {
    /// The one that was called, and goes back to its caller.
    Caller(AwaitedStart),
    Supervisor(Background),
}

/// A supervisor that is starting a cage.
#[derive(Debug)]
pub struct AwaitedStart {
    pidfd: OwnedFd,
    ready: OwnedFd,
}

/// What a supervisor in the background owes its caller: the cage's id, once its command runs.
#[derive(Debug)]
pub struct Background {
    ready: OwnedFd,
}

/// Forks a supervisor that leaves the caller's session. It keeps the caller's standard error until
/// the cage runs, and nothing else of theirs.
///
/// Preconditions: the calling process has one thread, and nobody in it owns a descriptor yet.
pub fn detach() -> io::Result<ForkRole> {
    let (ready, announce) = pipe_with(PipeFlags::CLOEXEC)?;
    match fork(Namespaces::NONE, None)? {
        Forked::Parent { pidfd, .. } => {
            drop(announce);
            Ok(ForkRole::Caller(AwaitedStart { pidfd, ready }))
        }
        Forked::Child => {
            drop(ready);
            setsid()?;
            let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            stdio::dup2_stdin(&null)?;
            stdio::dup2_stdout(&null)?;
            drop(null);
            // Whatever else the caller had open is not to be held open by a cage.
            close_all_but(&[announce.as_fd()])?;
            Ok(ForkRole::Supervisor(Background { ready: announce }))
        }
    }
}

impl AwaitedStart {
    /// Waits until the command runs, or the start has failed: then the exit status with which the
    /// supervisor ended, which has said why.
    pub fn wait(self) -> io::Result<Result<CageId, u8>> {
        let mut text = Vec::new();
        let mut buffer = [0; 64];
        loop {
            match read(&self.ready, &mut buffer) {
                Ok(0) => break,
                Ok(count) => text.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(id) = String::from_utf8(text).ok().and_then(|id| id.parse().ok()) {
            return Ok(Ok(id));
        }
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        let code = status.and_then(|status| status.exit_status());
        // Killed, it had no status to give; and without an id nothing has succeeded.
        Ok(Err(code
            .and_then(|code| u8::try_from(code).ok())
            .filter(|code| *code != 0)
            .unwrap_or(125)))
    }
}

impl Background {
    /// Tells the caller that the command runs, and lets go of their standard error. An error means
    /// that the caller is gone: nobody would know of the cage.
    pub(crate) fn announce(self, id: &CageId) -> io::Result<()> {
        write(&self.ready, id.as_str().as_bytes())?;
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        stdio::dup2_stderr(&null)?;
        Ok(())
    }
}
