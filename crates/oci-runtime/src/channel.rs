//! The messages between a command and the first process of the container that it makes.

use crate::error::{Error, IoContext as _};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// An error text is no longer; anything else is shorter.
const LONGEST: usize = 16 * 1024;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The process that was forked, as this host numbers it.
    Forked(i32),
    /// Go on.
    Go,
    /// Mounts stand; hooks of the engine are to run.
    Mounted,
    /// Everything is made. Only the program is still to be executed.
    Ready,
    /// It failed.
    Failed(String),
}

impl Step {
    fn tag(&self) -> u8 {
        match self {
            Step::Forked(_) => b'F',
            Step::Go => b'G',
            Step::Mounted => b'M',
            Step::Ready => b'R',
            Step::Failed(_) => b'E',
        }
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl Channel {
    pub(crate) fn pair() -> Result<(Channel, Channel), Error> {
        let (one, other) = UnixStream::pair().doing(|| "make a socket pair".into())?;
        Ok((Channel(one), Channel(other)))
    }

    pub(crate) fn send(&mut self, step: &Step) -> Result<(), Error> {
        let text = match step {
            Step::Forked(pid) => pid.to_string(),
            Step::Failed(text) => text.clone(),
            _ => String::new(),
        };
        let text = text.as_bytes().get(..LONGEST).unwrap_or(text.as_bytes());
        let mut packet = vec![step.tag()];
        packet.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        packet.extend(text);
        self.0
            .write_all(&packet)
            .doing(|| "speak with the other side of this start".into())
    }

    pub(crate) fn receive(&mut self) -> Result<Step, Error> {
        let ended = || "hear from the other side of this start".to_owned();
        let mut head = [0; 5];
        self.0.read_exact(&mut head).doing(ended)?;
        let [tag, length @ ..] = head;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(Error::refused(ended(), "the message is too long"));
        }
        let mut text = vec![0; length];
        self.0.read_exact(&mut text).doing(ended)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(match tag {
            b'F' => Step::Forked(text.parse().unwrap_or(0)),
            b'G' => Step::Go,
            b'M' => Step::Mounted,
            b'R' => Step::Ready,
            _ => Step::Failed(text),
        })
    }

    /// Waits for one step; what the other side failed with is the error.
    pub(crate) fn expect(&mut self, wanted: &Step) -> Result<(), Error> {
        match self.receive()? {
            step if step == *wanted => Ok(()),
            Step::Failed(text) => Err(Error::InContainer(text)),
            other => Err(Error::refused(
                "start the container",
                format!("unexpected step {other:?}"),
            )),
        }
    }

    /// The process that was forked.
    pub(crate) fn forked(&mut self) -> Result<i32, Error> {
        match self.receive()? {
            Step::Forked(pid) if pid > 0 => Ok(pid),
            Step::Failed(text) => Err(Error::InContainer(text)),
            other => Err(Error::refused(
                "start the container",
                format!("unexpected step {other:?}"),
            )),
        }
    }
}

impl std::os::fd::AsFd for Channel {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
