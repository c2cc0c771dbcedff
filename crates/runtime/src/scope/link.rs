//! What a scope's supervisor and the cage's say to each other. The record has one writer, so what
//! happens in a scope is written by the cage's supervisor, and the scope's waits until it is.

use ironcage_control::{Channel, GrantRequest, Packet};
use ironcage_model::{EventKind, LeaseOrigin, Resource, Taint, Term};
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
    /// The scope is about to be made: from now on it has what the cage has.
    Make(Box<Brings>),
    /// A person is to be asked. Answered by [`Word::Asked`], or at once by [`Word::Answered`].
    Ask(Box<Asks>),
}

/// What a scope's leases bring to its cage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Brings {
    pub(super) taint: Taint,
    /// The first lease that does, in words.
    pub(super) by: String,
    /// Whether something could leave by one that no person has allowed.
    pub(super) leads_out: bool,
    /// Whether a person stands behind all of them.
    pub(super) wished: bool,
}

/// What a person is to be asked for a scope.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Asks {
    /// By which the scope knows it.
    pub(super) ticket: u32,
    pub(super) resource: Resource,
    /// Device and number, where it is a path.
    pub(super) identity: Option<(u64, u64)>,
    pub(super) grant: GrantRequest,
    pub(super) origin: LeaseOrigin,
    /// Why it is not given without asking.
    pub(super) because: String,
}

/// What the cage's supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// It is done.
    Done,
    /// The scope is to end.
    End,
    /// It cannot be done, and why.
    Against(String),
    /// A person is asked, by the question of this number.
    Asked { ticket: u32, question: u32 },
    /// What they said, or why nobody was asked.
    Answered { ticket: u32, said: Said },
}

/// What a person said to a scope's having something.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Said {
    Yes { term: Term, uses: Option<u32> },
    No { reason: String },
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
            Ok(Some(Packet::Message(Word::End, _) | Packet::Garbled(_) | Packet::Closed))
            | Err(_) => self.ended.set(true),
            // What is answered too late is not waited for any more.
            Ok(None | Some(Packet::Message(_, _))) => {}
        }
    }

    /// Puts an event on record, and waits until it is.
    ///
    /// # Errors
    /// Where the cage's supervisor is gone, or is ending the cage.
    pub(crate) fn record(&self, kind: EventKind) -> io::Result<()> {
        self.ask(&Report::Record(Box::new(kind)))
    }

    /// The next word, if there is one.
    pub(super) fn word(&self) -> io::Result<Option<Word>> {
        match self.channel.receive::<Word>(false)? {
            None => Ok(None),
            Some(Packet::Message(word, _)) => Ok(Some(word)),
            Some(Packet::Garbled(_) | Packet::Closed) => {
                self.ended.set(true);
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
    }

    pub(super) fn say(&self, report: &Report) -> io::Result<()> {
        self.channel.send(report, &[])
    }

    pub(super) fn ask(&self, report: &Report) -> io::Result<()> {
        self.say(report)?;
        loop {
            match self.channel.receive::<Word>(true)? {
                Some(Packet::Message(Word::Done, _)) => return Ok(()),
                Some(Packet::Message(Word::Against(reason), _)) => {
                    return Err(io::Error::other(reason));
                }
                Some(Packet::Message(Word::End, _)) => self.ended.set(true),
                None | Some(Packet::Message(Word::Asked { .. } | Word::Answered { .. }, _)) => {}
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
