//! RequestReader from inside: a socket in the cage, at which whoever is there says what they need.
//!
//! The supervisor only listens. With the first connection it forks the [`process`], which reads
//! what the agent writes and looks paths up; what comes from there is a lease that is asked for,
//! by a descriptor, in the name of somebody who is not trusted.

mod process;
mod received;

use crate::RunError;
use crate::channels::ChannelEvent;
use crate::children::ChildEvent;
use crate::forked_reader::ForkedReader;
use crate::leases::{LeaseRequest, Requester};
use crate::supervise::Supervision;
use ironcage_control::{
    ChildLine, GrantRequest, Listener, Packet, ScopeRequest, ShellIntent, pair,
};
use ironcage_model::{
    CageId, GrantedLease, Lease, LeaseOrigin, LeaseOutcome, Reason, RequestOutcome, Resource,
};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::process::getpid;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Request readers that are started: one that dies again and again is not needed.
const MOST_READERS: u32 = 8;

/// What the request reader says.
#[derive(Debug, Serialize, Deserialize)]
enum FromReader {
    /// Somebody asks for a lease. A path's descriptor is beside it.
    Asks { ticket: u64, grant: GrantRequest },
    /// Somebody wants a child cage. Pipes for its three streams are beside it.
    Child { ticket: u64, child: ChildLine },
    /// Who wanted a child or a message does not wait for it any more.
    Left { ticket: u64 },
    /// A message for a channel: its text where it is of the channel's type, else where it is not.
    Send {
        ticket: u64,
        channel: String,
        bytes: u32,
        message: Result<String, Reason>,
    },
    /// Somebody wants the next message of a channel.
    Receive {
        ticket: u64,
        channel: String,
        waits: bool,
    },
    /// Somebody asked for what cannot even be asked for, and was told so.
    Refused { resource: Resource, reason: Reason },
    /// A shell wants to run a command in a scope with these leases. The end of its connection is
    /// beside it, then the descriptors of paths.
    Runs {
        shell: ShellIntent,
        leases: Vec<GrantRequest>,
        wait: u64,
    },
}

/// What the request reader is told.
#[derive(Debug, Serialize, Deserialize)]
enum ToReader {
    Reply {
        ticket: u64,
        reply: ReaderReply,
    },
    /// What the messages of a channel look like.
    Type {
        channel: String,
        schema: String,
    },
}

/// What the request reader is told about a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ReaderReply {
    /// What came of it; of one for a child or a message only that it was denied.
    Outcome(LeaseOutcome<Lease>),
    Ended {
        child: CageId,
        status: u8,
    },
    Sent,
    Message {
        channel: String,
        text: String,
    },
    Empty,
}

impl ReaderReply {
    pub(crate) fn denied(reason: impl Into<Reason>) -> Self {
        ReaderReply::Outcome(LeaseOutcome::denied(reason))
    }
}

/// The socket of one cage, and who reads it.
#[derive(Debug, Default)]
pub(crate) struct RequestReader {
    listener: Option<Listener>,
    reader: Option<ForkedReader>,
    started: u32,
}

impl RequestReader {
    pub(crate) fn new(listener: Option<Listener>) -> RequestReader {
        RequestReader {
            listener,
            ..RequestReader::default()
        }
    }

    /// The cage has the socket in its view: nobody needs its name outside any more.
    pub(crate) fn hide(&self) {
        if let Some(listener) = &self.listener {
            listener.hide();
        }
    }

    /// Where somebody knocks, as long as nobody is there to hear it.
    pub(crate) fn unattended(&self) -> Option<BorrowedFd<'_>> {
        let free = self.reader.is_none() && self.started < MOST_READERS;
        let listener = self.listener.as_ref().filter(|_| free);
        listener.map(AsFd::as_fd)
    }

    /// Where the request reader speaks.
    pub(crate) fn reader(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(|reader| reader.channel.as_fd())
    }
}

impl Supervision<'_> {
    /// Somebody connects, and nobody is there: starts the request reader.
    pub(crate) fn start_reader(&mut self) {
        let Some(listener) = &self.request_reader.listener else {
            return;
        };
        self.request_reader.started += 1;
        let Ok((ours, theirs)) = pair() else {
            return;
        };
        let supervisor = getpid();
        // What its predecessor was asked is not taken for what it is asked.
        let first = u64::from(self.request_reader.started) << 32;
        match fork(Namespaces::NONE, None) {
            // Who connects waits, until it is tried again or the cage ends.
            Err(_) => {}
            Ok(Forked::Child) => process::run(process::ReaderSetup {
                plan: self.plan,
                listener: listener.as_fd(),
                link: theirs,
                supervisor,
                first,
                schemas: self.channels.schemas(),
            }),
            Ok(Forked::Parent { pidfd, .. }) => {
                self.request_reader.reader = Some(ForkedReader {
                    channel: ours,
                    pidfd,
                });
            }
        }
    }

    /// Takes what the request reader says.
    pub(crate) fn reader_message(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(reader) = &self.request_reader.reader else {
            return Ok(());
        };
        match reader.channel.receive::<FromReader>(false) {
            Ok(None) => Ok(()),
            Ok(Some(Packet::Message(FromReader::Asks { ticket, grant }, descriptors))) => self
                .request_lease(
                    LeaseRequest {
                        by: Requester::Inside(ticket),
                        origin: LeaseOrigin::Ask,
                        grant,
                        descriptor: descriptors.into_iter().next(),
                        unannounced: false,
                    },
                    now,
                ),
            Ok(Some(Packet::Message(FromReader::Child { ticket, child }, streams))) => {
                self.open_child(ticket, child, streams, now)
            }
            Ok(Some(Packet::Message(FromReader::Left { ticket }, _))) => {
                self.child_event(ChildEvent::Left(ticket), now)?;
                self.channel_event(ChannelEvent::Left { ticket }, now)
            }
            Ok(Some(Packet::Message(
                FromReader::Send {
                    ticket,
                    channel,
                    bytes,
                    message,
                },
                _,
            ))) => {
                // What it carries goes with it: others may have brought something.
                self.tainted(now)?;
                let event = ChannelEvent::Send {
                    ticket,
                    name: channel,
                    bytes,
                    message,
                };
                self.channel_event(event, now)
            }
            Ok(Some(Packet::Message(
                FromReader::Receive {
                    ticket,
                    channel,
                    waits,
                },
                _,
            ))) => {
                let event = ChannelEvent::Receive {
                    ticket,
                    name: channel,
                    waits,
                };
                self.channel_event(event, now)
            }
            Ok(Some(Packet::Message(FromReader::Refused { resource, reason }, _))) => {
                self.record_refusal(resource, LeaseOrigin::Ask, reason, now)
            }
            Ok(Some(Packet::Message(
                FromReader::Runs {
                    shell,
                    leases,
                    wait,
                },
                mut descriptors,
            ))) => {
                if descriptors.is_empty() {
                    return Ok(());
                }
                let client = descriptors.remove(0);
                let asked = ScopeRequest {
                    leases,
                    origin: LeaseOrigin::Shell,
                    call: None,
                    shell: Some(shell),
                    wait,
                };
                self.run_for_shell(client, asked, descriptors, now)
            }
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => {
                self.lose_reader();
                Ok(())
            }
        }
    }

    /// Tells somebody in the cage what came of a request.
    pub(crate) fn reply_inside(&mut self, ticket: u64, outcome: RequestOutcome) {
        let lease = |granted| match granted {
            GrantedLease::Open(lease) => Some(lease),
            // A scope's supervisor gets this reply, not the reader.
            GrantedLease::ForScope { .. } => None,
        };
        if let Some(outcome) = outcome.try_map(lease) {
            self.reply_to_reader(ticket, ReaderReply::Outcome(outcome));
        }
    }

    /// Tells the request reader what came of something.
    pub(crate) fn reply_to_reader(&mut self, ticket: u64, reply: ReaderReply) {
        self.say(&ToReader::Reply { ticket, reply });
    }

    /// Tells the request reader what the messages of a channel look like.
    pub(crate) fn send_schema_to_reader(&mut self, channel: String, schema: String) {
        self.say(&ToReader::Type { channel, schema });
    }

    fn say(&mut self, word: &ToReader) {
        if let Some(reader) = &self.request_reader.reader
            && reader.channel.send(word, &[]).is_err()
        {
            self.lose_reader();
        }
    }

    /// Every requester is cut off with the request reader, and nobody waits for the children any more.
    fn lose_reader(&mut self) {
        self.request_reader.reader = None;
        self.children.handle(ChildEvent::End, Instant::now());
    }

    /// Nobody is answered any more.
    pub(crate) fn stop_reader(&mut self) {
        self.request_reader = RequestReader::default();
    }
}
