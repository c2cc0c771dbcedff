//! The cage's terminal: made inside, from the cage's own devpts, so that no descriptor of the
//! user's terminal ever goes in and no name of it exists there.

use ironcage_layers::LayerError;
use ironcage_model::Layer;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::{Pid, ioctl_tiocsctty};
use ironcage_sys::rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use ironcage_sys::rustix::termios::{Winsize, tcsetpgrp, tcsetwinsize};
use std::os::fd::OwnedFd;

/// Both ends of a terminal.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The end that the supervisor relays.
    pub(crate) controller: OwnedFd,
    /// The end that is the command's standard streams.
    pub(crate) command: OwnedFd,
}

/// Makes a terminal. An error names what was tried.
pub(crate) fn open(size: Winsize) -> Result<Pair, (&'static str, Errno)> {
    let doing = |action: &'static str| move |error: Errno| (action, error);
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = openpt(flags).map_err(doing("open a terminal"))?;
    unlockpt(&controller).map_err(doing("unlock the terminal"))?;
    let command =
        ioctl_tiocgptpeer(&controller, flags).map_err(doing("open the terminal's other end"))?;
    tcsetwinsize(&controller, size).map_err(doing("set the terminal's size"))?;
    Ok(Pair {
        controller,
        command,
    })
}

fn failed((action, error): (&str, Errno)) -> LayerError {
    crate::init::failed(Layer::Session, action, error)
}

/// Makes a terminal and makes it the controlling one of the caller's session, which must be
/// new.
pub(crate) fn make(size: Winsize) -> Result<Pair, LayerError> {
    let pair = open(size).map_err(failed)?;
    ioctl_tiocsctty(&pair.command)
        .map_err(|error| failed(("make the terminal the session's", error)))?;
    Ok(pair)
}

/// Makes a terminal that is nobody's controlling one.
pub(crate) fn make_free(size: Winsize) -> Result<Pair, LayerError> {
    open(size).map_err(failed)
}

/// Puts a process group into the foreground of the terminal. PID 1 leads the session, and the
/// kernel does not stop the first process of a pid namespace for asking from the background.
pub(crate) fn bring_forward(terminal: &OwnedFd, group: Pid) {
    // A command that is gone needs no foreground.
    let _ = tcsetpgrp(terminal, group);
}
