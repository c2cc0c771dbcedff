//! Asking from inside: a socket in the cage, at which whoever is there says what they need.
//!
//! The supervisor only listens. With the first connection it forks the [`clerk`], which reads
//! what the agent writes and looks paths up; what comes from there is a lease that is asked for,
//! by a descriptor, in the name of somebody who is not trusted.

mod clerk;
mod given;

use crate::RunError;
use crate::leases::{LeaseOutcome, LeaseRequest, Requester};
use crate::supervise::Supervision;
use ironcage_backend::{Ability, Answer};
use ironcage_control::{
    ASK_PROGRAM, ASK_SOCKET, Channel, ChildLine, GrantRequest, Listener, Packet, RuntimeDir,
    ScopeRequest, ShellIntent, pair,
};
use ironcage_model::{CageId, Lease, LeaseOrigin, Resource};
use ironcage_plan::{Access, Item, NodeKind, Plan, ViewOp};
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::process::{
    Signal, WaitId, WaitIdOptions, getpid, pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Clerks that are started: one that dies again and again is not needed.
const MOST_CLERKS: u32 = 8;

/// How long a clerk that is killed may take to be gone.
const GONE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What the clerk says.
#[derive(Debug, Serialize, Deserialize)]
enum FromClerk {
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
        message: Result<String, String>,
    },
    /// Somebody wants the next message of a channel.
    Receive {
        ticket: u64,
        channel: String,
        waits: bool,
    },
    /// Somebody asked for what cannot even be asked for, and was told so.
    Refused { resource: Resource, reason: String },
    /// A shell wants to run a command in a scope with these leases. The end of its connection is
    /// beside it, then the descriptors of paths.
    Runs {
        shell: ShellIntent,
        leases: Vec<GrantRequest>,
        wait: u64,
    },
}

/// What the clerk is told.
#[derive(Debug, Serialize, Deserialize)]
enum ToClerk {
    /// What came of something.
    Came { ticket: u64, came: Came },
    /// What the messages of a channel look like.
    Type { channel: String, schema: String },
}

/// What came of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Came {
    Open(Lease),
    Ended { child: CageId, status: u8 },
    Sent,
    Message { channel: String, text: String },
    Empty,
    Had { reason: String },
    Asked { question: u32, because: String },
    Refused { reason: String },
}

/// The socket of one cage, and who reads it.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    listener: Option<Listener>,
    clerk: Option<Clerk>,
    started: u32,
}

#[derive(Debug)]
struct Clerk {
    channel: Channel,
    pidfd: OwnedFd,
}

impl Drop for Clerk {
    fn drop(&mut self) {
        // One that is gone already needs no signal.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // A file system that does not answer may hold it for ever, signal or not; not us.
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&GONE));
        let gone = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), gone);
    }
}

/// Puts the socket, and the program that knows how to ask, into the view of a cage that can be
/// given anything; of others nothing is made.
pub(crate) fn furnish(
    plan: &mut Cow<'_, Plan>,
    (runtime, id): (&RuntimeDir, &CageId),
    index: usize,
) -> Result<Asking, RunError> {
    let can = crate::backend(plan.rung.what.isolation).can(Ability::Lease);
    let anything = plan.leases.is_some() || plan.children > 0 || plan.channels > 0;
    if !anything || !matches!(can, Answer::Yes(_)) {
        return Ok(Asking::default());
    }
    let (listener, source) = runtime.listen_for_cage(id, index)?;
    let bind = |source: PathBuf, target: &str| Item {
        what: ViewOp::Bind {
            source,
            target: target.into(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        },
        origin: "for asking".into(),
    };
    let mut ops = vec![bind(source, ASK_SOCKET)];
    let own = std::fs::read_link("/proc/self/exe").ok();
    // One that was replaced while it ran has no name any more; the socket is there all the same.
    let replaced = |own: &PathBuf| own.as_os_str().as_bytes().ends_with(b" (deleted)");
    ops.extend(
        own.filter(|own| !replaced(own))
            .map(|own| bind(own, ASK_PROGRAM)),
    );
    let view = &mut plan.to_mut().view;
    let seal = view.iter().position(|op| matches!(op.what, ViewOp::Seal));
    let place = seal.unwrap_or(view.len());
    view.splice(place..place, ops);
    Ok(Asking {
        listener: Some(listener),
        ..Asking::default()
    })
}

/// Takes the socket out of a scope's view: what is asked for there would be the cage's.
pub(crate) fn without(plan: &mut Plan) {
    let is_it = |op: &ViewOp| op.target() == Some(Path::new(ASK_SOCKET));
    plan.view.retain(|op| !is_it(&op.what));
}

impl Asking {
    /// The cage has the socket in its view: nobody needs its name outside any more.
    pub(crate) fn hide(&self) {
        if let Some(listener) = &self.listener {
            listener.hide();
        }
    }

    /// Where somebody knocks, as long as nobody is there to hear it.
    pub(crate) fn unattended(&self) -> Option<BorrowedFd<'_>> {
        let free = self.clerk.is_none() && self.started < MOST_CLERKS;
        let listener = self.listener.as_ref().filter(|_| free);
        listener.map(AsFd::as_fd)
    }

    /// Where the clerk speaks.
    pub(crate) fn clerk(&self) -> Option<BorrowedFd<'_>> {
        self.clerk.as_ref().map(|clerk| clerk.channel.as_fd())
    }
}

impl Supervision<'_> {
    /// Somebody connects, and nobody is there: starts the clerk.
    pub(crate) fn start_clerk(&mut self) {
        let Some(listener) = &self.asking.listener else {
            return;
        };
        self.asking.started += 1;
        let Ok((ours, theirs)) = pair() else {
            return;
        };
        let supervisor = getpid();
        // What its predecessor was asked is not taken for what it is asked.
        let first = u64::from(self.asking.started) << 32;
        match fork(Namespaces::NONE, None) {
            // Who connects waits, until it is tried again or the cage ends.
            Err(_) => {}
            Ok(Forked::Child) => clerk::run(clerk::Given {
                plan: self.plan,
                listener: listener.as_fd(),
                link: theirs,
                supervisor,
                first,
                schemas: self.channels.schemas(),
            }),
            Ok(Forked::Parent { pidfd, .. }) => {
                self.asking.clerk = Some(Clerk {
                    channel: ours,
                    pidfd,
                });
            }
        }
    }

    /// Takes what the clerk says.
    pub(crate) fn hear_clerk(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(clerk) = &self.asking.clerk else {
            return Ok(());
        };
        match clerk.channel.receive::<FromClerk>(false) {
            Ok(None) => Ok(()),
            Ok(Some(Packet::Message(FromClerk::Asks { ticket, grant }, descriptors))) => self
                .request_lease(
                    LeaseRequest {
                        by: Requester::Asker(ticket),
                        origin: LeaseOrigin::Ask,
                        grant,
                        descriptor: descriptors.into_iter().next(),
                        unannounced: false,
                    },
                    now,
                ),
            Ok(Some(Packet::Message(FromClerk::Child { ticket, child }, streams))) => {
                self.open_child(ticket, child, streams, now)
            }
            Ok(Some(Packet::Message(FromClerk::Left { ticket }, _))) => {
                self.leave_child(ticket);
                self.leave_channels(ticket);
                Ok(())
            }
            Ok(Some(Packet::Message(
                FromClerk::Send {
                    ticket,
                    channel,
                    bytes,
                    message,
                },
                _,
            ))) => self.send_message((ticket, channel), bytes, message, now),
            Ok(Some(Packet::Message(
                FromClerk::Receive {
                    ticket,
                    channel,
                    waits,
                },
                _,
            ))) => self.receive_message(ticket, &channel, waits, now),
            Ok(Some(Packet::Message(FromClerk::Refused { resource, reason }, _))) => {
                self.record_refusal(resource, LeaseOrigin::Ask, reason, now)
            }
            Ok(Some(Packet::Message(
                FromClerk::Runs {
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
                self.asking.clerk = None;
                Ok(())
            }
        }
    }

    /// Tells somebody in the cage what came of a request.
    pub(crate) fn tell_asker(&mut self, ticket: u64, outcome: LeaseOutcome) {
        let came = match outcome {
            LeaseOutcome::Open(lease) => Came::Open(lease),
            LeaseOutcome::InBase { reason } => Came::Had { reason },
            LeaseOutcome::Asked { question, because } => Came::Asked { question, because },
            // Said of scopes only, and they are not told here.
            LeaseOutcome::Approved { .. } => return,
            LeaseOutcome::Refused { reason } => Came::Refused { reason },
        };
        self.tell_clerk(ticket, came);
    }

    /// Tells the clerk what came of something.
    pub(crate) fn tell_clerk(&mut self, ticket: u64, came: Came) {
        self.say(&ToClerk::Came { ticket, came });
    }

    /// Tells the clerk what the messages of a channel look like.
    pub(crate) fn tell_type(&mut self, channel: String, schema: String) {
        self.say(&ToClerk::Type { channel, schema });
    }

    fn say(&mut self, word: &ToClerk) {
        if let Some(clerk) = &self.asking.clerk
            && clerk.channel.send(word, &[]).is_err()
        {
            self.asking.clerk = None;
        }
    }

    /// Nobody is answered any more.
    pub(crate) fn dismiss_clerk(&mut self) {
        self.asking = Asking::default();
    }
}
