//! A pty that stands for the user's terminal; its input queue is what his shell would read.

use super::{StageError, making};
use ironcage_sys::attack;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::pty;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

pub(crate) struct Terminal {
    _master: OwnedFd,
    slave: OwnedFd,
    path: PathBuf,
}

impl Terminal {
    /// Opens one; both ends are held, so that the queue stays.
    pub(crate) fn open() -> Result<Terminal, StageError> {
        let what = || "a terminal".to_owned();
        let flags = pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY | pty::OpenptFlags::CLOEXEC;
        let master = pty::openpt(flags).map_err(making(what()))?;
        pty::grantpt(&master).map_err(making(what()))?;
        pty::unlockpt(&master).map_err(making(what()))?;
        let name = pty::ptsname(&master, Vec::new()).map_err(making(what()))?;
        let path = PathBuf::from(OsString::from_vec(name.into_bytes()));
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let slave = open(&path, flags, Mode::empty()).map_err(making(what()))?;
        attack::make_raw(&slave).map_err(making(what()))?;
        Ok(Terminal {
            _master: master,
            slave,
            path,
        })
    }

    /// The path of the user's end.
    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// What was pushed into the input queue since the last look.
    pub(crate) fn take_input(&self) -> Vec<u8> {
        attack::drain_input(&self.slave).unwrap_or_default()
    }
}
