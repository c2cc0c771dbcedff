//! What a scope's supervisor and the cage's say to each other. The record has one writer, so what
//! happens in a scope is written by the cage's supervisor, and the scope's waits until it is.

use ironcage_control::{Channel, Packet};
use ironcage_model::EventKind;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// What the scope's supervisor asks for. Each is answered by [`Word::Done`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// To be put on record.
    Record(Box<EventKind>),
    /// Something of a lease went to the cage: its processes are to stop while it is looked for.
    Freeze,
    /// They go on.
    Resume,
    /// It was not found: only the end of the cage is an end of the lease.
    EndCage,
}

/// What the cage's supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// It is done.
    Done,
    /// The scope is to end.
    End,
}

/// The scope's end of the connection.
#[derive(Debug)]
pub(crate) struct Link {
    channel: Channel,
    ended: Cell<bool>,
}

impl Link {
    pub(super) fn new(channel: Channel) -> Link {
        Link {
            channel,
            ended: Cell::new(false),
        }
    }

    /// Whether the scope was told to end, or nobody is left to say so.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Takes what was said without being asked.
    pub(crate) fn hear(&self) {
        match self.channel.receive::<Word>(false) {
            Ok(None | Some(Packet::Message(Word::Done, _))) => {}
            Ok(Some(Packet::Message(Word::End, _) | Packet::Garbled(_) | Packet::Closed))
            | Err(_) => self.ended.set(true),
        }
    }

    /// Puts an event on record, and waits until it is.
    ///
    /// # Errors
    /// Where the cage's supervisor is gone, or is ending the cage.
    pub(crate) fn record(&self, kind: EventKind) -> io::Result<()> {
        self.ask(&Report::Record(Box::new(kind)))
    }

    pub(super) fn ask(&self, report: &Report) -> io::Result<()> {
        self.channel.send(report, &[])?;
        loop {
            match self.channel.receive::<Word>(true)? {
                Some(Packet::Message(Word::Done, _)) => return Ok(()),
                Some(Packet::Message(Word::End, _)) => self.ended.set(true),
                None => {}
                Some(Packet::Garbled(_) | Packet::Closed) => {
                    self.ended.set(true);
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
