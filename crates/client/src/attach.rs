//! Joining the command of a background cage, and leaving it again.

use crate::{ClientError, Connection, system};
use ironcage_control::{Reply, Request};
use ironcage_model::Ending;
use ironcage_sys::rustix::event::{PollFd, PollFlags, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::stdio;
use ironcage_sys::rustix::termios::{Winsize, isatty, tcsetwinsize};
use ironcage_sys::signals;
use ironcage_terminal::relay::{self, Relay};
use ironcage_terminal::{self as terminal, RawMode};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

const SIGWINCH: i32 = ironcage_sys::rustix::process::Signal::WINCH.as_raw();

/// How an attachment ended.
#[derive(Debug)]
pub enum Attachment {
    /// The user left; the cage runs on.
    Left,
    /// The cage is gone.
    Ended(Ending),
}

/// Joins the caller's streams with those of a cage's command, until one of them leaves.
pub fn attach(connection: &Connection, raw_terminal: bool) -> Result<Attachment, ClientError> {
    let signals = signals::catch(&[SIGWINCH]).map_err(system("catch signals"))?;
    connection.send(&Request::Attach)?;
    let (terminal, input, descriptors) = match connection.receive(None)? {
        (Reply::Attached { terminal, input }, descriptors) => (terminal, input, descriptors),
        (Reply::Ended(ending), _) => return Ok(Attachment::Ended(ending)),
        (other, _) => return Err(ClientError::Answer(format!("{other:?}"))),
    };
    let mut descriptors = descriptors.into_iter();
    let missing = || ClientError::Answer("streams are missing".into());
    let own = |fd| relay::own(fd).map_err(system("prepare the streams"));
    let output = descriptors.next().ok_or_else(missing)?;
    let shown = Relay::new(own(output)?, relay::callers_sink(stdio::stdout()));
    let shown = match isatty(stdio::stdout()) && !raw_terminal {
        true => shown.filtered(),
        false => shown,
    };
    let controller = match input {
        true => Some(descriptors.next().ok_or_else(missing)?),
        false => None,
    };
    let typed = match &controller {
        Some(end) => {
            let end = end.try_clone().map_err(system("copy a descriptor"))?;
            Some(Relay::new(relay::End::Callers(stdio::stdin()), own(end)?).with_chord())
        }
        None => None,
    };
    let mode = (terminal && isatty(stdio::stdin())).then(RawMode::enter);
    let controller = controller.filter(|_| mode.is_some());
    if let Some(controller) = &controller {
        redraw(controller);
    }
    Attached {
        connection,
        signals,
        shown,
        typed,
        controller,
        _mode: mode,
    }
    .run()
}

/// Gives the cage's terminal the size of the user's, by way of another, so that programs draw
/// themselves anew even where it was that size before.
fn redraw(controller: &OwnedFd) {
    let size = terminal::size();
    let other = Winsize {
        ws_col: size.ws_col.saturating_sub(1).max(1),
        ..size
    };
    let _ = tcsetwinsize(controller, other);
    let _ = tcsetwinsize(controller, size);
}

struct Attached<'a> {
    connection: &'a Connection,
    signals: OwnedFd,
    shown: Relay<'static>,
    typed: Option<Relay<'static>>,
    controller: Option<OwnedFd>,
    _mode: Option<RawMode>,
}

impl Attached<'_> {
    fn run(mut self) -> Result<Attachment, ClientError> {
        let mut ending: Option<Ending> = None;
        loop {
            if self.typed.as_ref().is_some_and(Relay::has_left) {
                return Ok(Attachment::Left);
            }
            if let Some(ended) = ending.take() {
                if self.shown.is_done() {
                    return Ok(Attachment::Ended(ended));
                }
                ending = Some(ended);
            }
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            // Three more, of which each may have nothing to wait for.
            let heard = ending.is_none();
            if heard {
                fds.push(PollFd::new(self.connection, PollFlags::IN));
            }
            let interests = [Some(&self.shown), self.typed.as_ref()];
            let mut places = [None, None];
            for (place, interest) in places.iter_mut().zip(interests) {
                if let Some((_, fd, flags)) = interest.and_then(Relay::interest) {
                    *place = Some(fds.len());
                    fds.push(PollFd::from_borrowed_fd(fd, flags));
                }
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(system("wait for the cage")(error)),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let is_ready = |place: usize| ready.get(place) == Some(&true);
            if is_ready(0) {
                self.resize()?;
            }
            if heard
                && is_ready(1)
                && let Some((Reply::Ended(ended), _)) = self.connection.take()?
            {
                ending = Some(ended);
                self.shown.take_only_what_is_there(Instant::now());
            }
            let [shown, typed] = places;
            if shown.is_some_and(is_ready) {
                self.shown.advance();
            }
            if typed.is_some_and(is_ready)
                && let Some(typed) = &mut self.typed
            {
                typed.advance();
            }
        }
    }

    fn resize(&self) -> Result<(), ClientError> {
        let next = || signals::next(self.signals.as_fd()).map_err(system("read a signal"));
        while next()?.is_some() {
            if let Some(controller) = &self.controller {
                terminal::copy_size(controller.as_fd());
            }
        }
        Ok(())
    }
}
