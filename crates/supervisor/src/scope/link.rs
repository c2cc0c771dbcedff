//! Messages between a scope's supervisor and the cage's. The audit log has one writer, so what
//! happens in a scope is written by the cage's supervisor, and the scope's waits until it is.

use ironcage_control::{Channel, GrantRequest, Packet};
use ironcage_model::{EventKind, LeaseOrigin, Reason, Resource, Taint, Term};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// What the scope's supervisor asks for. Each is answered by [`ToScope::Done`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromScope {
    /// To be put on record.
    Record(Box<EventKind>),
    /// Something of a lease went to the cage: its processes are to stop while it is looked for.
    Freeze,
    Resume,
    /// It was not found: only the end of the cage is an end of the lease.
    EndCage,
    /// The scope is about to be made: from now on it has what the cage has.
    Make(Box<ScopeTaint>),
    /// The scope is there: with its process list, storage and segments come what it uses, which
    /// counts as the cage's.
    Count,
    /// A person is to be asked for all of it together. Each is answered by [`ToScope::Asked`], or at
    /// once by [`ToScope::Answered`].
    Ask(Box<ScopeNeeds>),
}

/// What a scope's leases bring to its cage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScopeTaint {
    pub(super) taint: Taint,
    /// The first lease that does, in words.
    pub(super) by: String,
    /// Whether something could leave by one that no person has allowed.
    pub(super) leads_out: bool,
    /// Whether a person stands behind all of them.
    pub(super) wished: bool,
    /// Directories of the host to which it may write: the cage's limits hold in them.
    pub(super) writes: Vec<String>,
}

/// What the command of a scope needs that a person has to approve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScopeNeeds {
    /// The command. The agent wrote it.
    pub(super) command: String,
    pub(super) requests: Vec<ScopePermissionRequest>,
}

/// What a person is to be asked for a scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScopePermissionRequest {
    /// By which the scope knows it.
    pub(super) ticket: u32,
    pub(super) resource: Resource,
    /// Device and number, where it is a path.
    pub(super) identity: Option<(u64, u64)>,
    pub(super) grant: GrantRequest,
    pub(super) origin: LeaseOrigin,
    /// Why it is not given without asking.
    pub(super) because: Reason,
}

/// What the cage's supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToScope {
    Done,
    /// The scope is to end.
    End,
    /// It is to stand still, or not any more.
    Pause(bool),
    /// It cannot be done, and why.
    Against(Reason),
    /// A person is asked, by the question of this number.
    Asked {
        ticket: u32,
        question: u32,
    },
    /// What they said, or why nobody was asked.
    Answered {
        ticket: u32,
        said: PersonAnswer,
    },
}

/// What a person said to a scope's having something.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum PersonAnswer {
    Yes { term: Term, uses: Option<u32> },
    No { reason: Reason },
}

/// The scope's end of the connection.
#[derive(Debug)]
pub(crate) struct ScopeLink {
    channel: Channel,
    ended: Cell<bool>,
    paused: Cell<bool>,
}

impl ScopeLink {
    pub(super) fn new(channel: Channel) -> ScopeLink {
        ScopeLink {
            channel,
            ended: Cell::new(false),
            paused: Cell::new(false),
        }
    }

    /// Whether the scope was told to end, or nobody is left to say so.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether the scope is to stand still.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    /// Has what the scope uses counted as the cage's.
    ///
    /// # Errors
    /// Where the cage's supervisor is gone.
    pub(crate) fn count(&self, places: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.channel.send(&FromScope::Count, places)?;
        self.await_done()
    }

    /// Takes what was said without being asked.
    pub(crate) fn hear(&self) {
        match self.channel.receive::<ToScope>(false) {
            Ok(Some(Packet::Message(ToScope::End, _) | Packet::Garbled(_) | Packet::Closed))
            | Err(_) => self.ended.set(true),
            Ok(Some(Packet::Message(ToScope::Pause(paused), _))) => self.paused.set(paused),
            // What is answered too late is not waited for any more.
            Ok(None | Some(Packet::Message(_, _))) => {}
        }
    }

    /// Puts an event on record, and waits until it is.
    ///
    /// # Errors
    /// Where the cage's supervisor is gone, or is ending the cage.
    pub(crate) fn record(&self, kind: EventKind) -> io::Result<()> {
        self.ask(&FromScope::Record(Box::new(kind)))
    }

    /// The next word, if there is one.
    pub(super) fn word(&self) -> io::Result<Option<ToScope>> {
        match self.channel.receive::<ToScope>(false)? {
            None => Ok(None),
            Some(Packet::Message(word, _)) => {
                if let ToScope::Pause(paused) = word {
                    self.paused.set(paused);
                }
                Ok(Some(word))
            }
            Some(Packet::Garbled(_) | Packet::Closed) => {
                self.ended.set(true);
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
    }

    pub(super) fn say(&self, report: &FromScope) -> io::Result<()> {
        self.channel.send(report, &[])
    }

    pub(super) fn ask(&self, report: &FromScope) -> io::Result<()> {
        self.say(report)?;
        self.await_done()
    }

    fn await_done(&self) -> io::Result<()> {
        loop {
            match self.channel.receive::<ToScope>(true)? {
                Some(Packet::Message(ToScope::Done, _)) => return Ok(()),
                Some(Packet::Message(ToScope::Against(reason), _)) => {
                    return Err(io::Error::other(reason));
                }
                Some(Packet::Message(ToScope::End, _)) => self.ended.set(true),
                Some(Packet::Message(ToScope::Pause(paused), _)) => self.paused.set(paused),
                None
                | Some(Packet::Message(ToScope::Asked { .. } | ToScope::Answered { .. }, _)) => {}
                Some(Packet::Garbled(_) | Packet::Closed) => {
                    self.ended.set(true);
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }
}

impl AsFd for ScopeLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
