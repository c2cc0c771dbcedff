//! The user's terminal while a cage has one of its own: raw mode, window size, stop and continue.
//!
//! Keys go to the cage's terminal as they are typed, so Ctrl-C and Ctrl-Z become signals there. Output
//! passes [`filter`] first.
#![forbid(unsafe_code)]

pub mod chord;
pub mod filter;
pub mod keys;
pub mod prompt;
pub mod relay;
pub mod status_line;

use ironcage_sys::rustix::process::{Signal, getpgrp, getpid, kill_process};
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, Winsize, isatty, tcflush, tcgetattr,
    tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::os::fd::BorrowedFd;

/// The size of a cage's terminal when the user has none.
const DEFAULT_SIZE: Winsize = Winsize {
    ws_row: 24,
    ws_col: 80,
    ws_xpixel: 0,
    ws_ypixel: 0,
};

/// Whether both ends of what a person uses are terminals.
pub fn is_interactive() -> bool {
    isatty(stdio::stdin()) && isatty(stdio::stdout()) && is_foreground()
}

/// Whether the program at a terminal reads lines, as a shell's commands do: then lines between its
/// output disturb nothing that it has drawn.
pub fn reads_lines(terminal: BorrowedFd<'_>) -> bool {
    tcgetattr(terminal).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON))
}

/// Whether this process may read from its terminal and change it. In the background (`&`) it
/// may not, and trying would stop it; what is no terminal has no background.
pub fn is_foreground() -> bool {
    match tcgetpgrp(stdio::stdin()) {
        Ok(group) => group == getpgrp(),
        Err(_) => true,
    }
}

/// Takes the screen back from a program that has ended: whatever it was in the middle of, or has set
/// (a VT52, margins, concealed text, another screen), hides nothing of what follows. The cursor stays
/// where it is.
pub fn reclaim_screen() {
    const RESET: &[u8] = b"\x18\x1b<\x1b\\\x1b[0$}\x1b[?2026l\x1b[?69l\x1b[?1047l\
        \x1b7\x1b[r\x1b8\x1b[0m\x1b(B\x0f\x1b[4l\x1b[?7h\x1b[?25h";
    // A terminal that is gone shows nothing.
    let _ = ironcage_sys::rustix::io::write(stdio::stderr(), RESET);
}

/// Drops what was typed and not read yet: it was meant for somebody else.
pub fn drop_typed() {
    // What is no terminal has nothing that was typed.
    let _ = tcflush(stdio::stdin(), QueueSelector::IFlush);
}

/// The user's terminal in raw mode. Dropping it gives the old mode back.
#[derive(Debug)]
pub struct RawMode {
    before: Option<Termios>,
}

impl RawMode {
    /// Takes the terminal over, if standard input is one.
    pub fn enter() -> Self {
        let before = tcgetattr(stdio::stdin()).ok();
        if let Some(before) = &before {
            set_raw(before);
        }
        RawMode { before }
    }

    /// Gives the terminal back, stops this process as the command was stopped, and takes the
    /// terminal over again when the user lets it go on.
    ///
    /// Let go on in the background (`bg`), there is no terminal to go on with: it stops again,
    /// unless a signal waits that ends the command.
    pub fn suspend(&self, ending: impl Fn() -> bool) {
        self.restore();
        loop {
            // Stops here until somebody sends SIGCONT. Not catchable, so nothing is lost.
            let _ = kill_process(getpid(), Signal::STOP);
            if is_foreground() {
                break;
            }
            if ending() {
                return;
            }
        }
        if let Some(before) = &self.before {
            set_raw(before);
        }
    }

    fn restore(&self) {
        if let Some(before) = &self.before
            && is_foreground()
        {
            // A terminal that is gone needs no mode.
            let _ = tcsetattr(stdio::stdin(), OptionalActions::Drain, before);
        }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.restore();
    }
}

fn set_raw(before: &Termios) {
    let mut raw = before.clone();
    raw.make_raw();
    let _ = tcsetattr(stdio::stdin(), OptionalActions::Now, &raw);
}

/// Gives the cage's terminal the size of the user's. The kernel tells the programs in it.
pub fn copy_size(controller: BorrowedFd<'_>) {
    // A terminal whose other end is gone has no size to set.
    let _ = tcsetwinsize(controller, size());
}

/// Gives the cage's terminal a line less than the user's has.
pub fn copy_smaller_size(controller: BorrowedFd<'_>) {
    let mut smaller = size();
    smaller.ws_row = smaller.ws_row.saturating_sub(1).max(1);
    let _ = tcsetwinsize(controller, smaller);
}

/// The size of the user's terminal, or an ordinary one where there is none.
pub fn size() -> Winsize {
    tcgetwinsize(stdio::stdout())
        .or_else(|_| tcgetwinsize(stdio::stdin()))
        .unwrap_or(DEFAULT_SIZE)
}
