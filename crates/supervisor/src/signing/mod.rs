//! Keys outside that programs in the cage may use: sockets in the cage, at which ssh and gpg find
//! what they take for an agent.
//!
//! The supervisor only listens. With the first connection it forks the key filter ([`process`]),
//! which confines itself and reads what the cage writes. It cannot reach the real agents: the
//! supervisor connects it to one for each use, after the use is in the audit log and, where the
//! policy says so, a person has approved it.

mod part;
mod process;
mod rules;

pub(crate) use part::{KeyUses, SigningEvent};

use crate::RunError;
use crate::forked_reader::ForkedReader;
use crate::network::HeldSocket;
use crate::permission_requests::NewRequest;
use crate::supervise::Supervision;
use ironcage_control::{CageFile, GrantRequest, LeaseTarget, Listener, Packet, pair};
use ironcage_model::{
    KeyAgent, KeyPurpose, KeyUse, LeaseOrigin, RequestOutcome, Resource, SigningReason, Term,
};
use ironcage_plan::Plan;
use ironcage_sys::clone::{Forked, Namespaces, fork};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::process::getpid;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Messages that are read when a cage ends: more than a socket holds.
const LAST_MESSAGES: usize = 1024;
/// Key filters that are started: one that dies again and again is not needed.
const MOST_FILTERS: u32 = 8;

/// What the key filter says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromFilter {
    /// A key is to be used, as the rules allow.
    Asks {
        ticket: u64,
        agent: KeyAgent,
        key: String,
        purpose: KeyPurpose,
    },
    /// A use was denied, or came to nothing.
    Denied(KeyUse),
    /// Who asked does not wait any more.
    Left { ticket: u64 },
}

/// What the key filter is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToFilter {
    /// The use is logged and may take place. The packet has a connection to the real agent.
    Allowed { ticket: u64 },
    /// The use was allowed, but the real agent does not answer.
    Unreachable { ticket: u64, error: String },
    /// It may not.
    Denied { ticket: u64 },
}

/// The sockets of one cage, and what else its view shows of keys.
#[derive(Debug, Default)]
pub(crate) struct KeySockets {
    pub(crate) ssh: Option<Listener>,
    pub(crate) gpg: Option<Listener>,
    pub(crate) keyring: Option<CageFile>,
}

impl KeySockets {
    /// Takes their names away.
    pub(crate) fn hide(&self) {
        self.ssh.iter().chain(&self.gpg).for_each(Listener::hide);
        self.keyring.iter().for_each(CageFile::hide);
    }
}

/// The real agents.
#[derive(Debug, Default)]
pub(crate) struct RealAgents {
    ssh: Option<HeldSocket>,
    gpg: Option<HeldSocket>,
}

/// The sockets of one cage, and who reads them.
#[derive(Debug, Default)]
pub(crate) struct KeyFilter {
    sockets: KeySockets,
    agents: RealAgents,
    filter: Option<ForkedReader>,
    started: u32,
}

impl KeyFilter {
    /// Holds the real agents of a plan.
    pub(crate) fn new(sockets: KeySockets, plan: &Plan) -> Result<KeyFilter, RunError> {
        let signing = plan.signing.as_ref();
        let ssh = signing.and_then(|signing| signing.ssh.as_ref());
        let gpg = signing.and_then(|signing| signing.gpg.as_ref());
        Ok(KeyFilter {
            agents: RealAgents {
                ssh: ssh.map(|ssh| HeldSocket::hold(&ssh.agent)).transpose()?,
                gpg: gpg.map(|gpg| HeldSocket::hold(&gpg.agent)).transpose()?,
            },
            sockets,
            ..KeyFilter::default()
        })
    }

    /// The cage has the sockets in its view. Scopes take them over by name, where there may be any.
    pub(crate) fn hide(&self, plan: &Plan) {
        if plan.leases.is_none() {
            self.sockets.hide();
        }
    }

    /// Where somebody connects, as long as nobody is there to hear it.
    pub(crate) fn unattended(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let free = self.filter.is_none() && self.started < MOST_FILTERS;
        let all = self.sockets.ssh.iter().chain(&self.sockets.gpg);
        all.filter(move |_| free).map(AsFd::as_fd)
    }

    /// Where the key filter speaks.
    pub(crate) fn filter(&self) -> Option<BorrowedFd<'_>> {
        self.filter.as_ref().map(|filter| filter.channel.as_fd())
    }
}

impl Supervision<'_> {
    /// Somebody connects, and nobody is there: starts the key filter.
    pub(crate) fn start_key_filter(&mut self) {
        let Some(signing) = &self.plan.signing else {
            return;
        };
        self.keys.started += 1;
        let Ok((ours, theirs)) = pair() else {
            return;
        };
        let supervisor = getpid();
        // What its predecessor asked is not taken for what it asks.
        let first = u64::from(self.keys.started) << 32;
        match fork(Namespaces::NONE, None) {
            // Who connects waits, until it is tried again or the cage ends.
            Err(_) => {}
            Ok(Forked::Child) => process::run(process::FilterSetup {
                signing,
                cage: self.control.id(),
                sockets: &self.keys.sockets,
                link: theirs,
                supervisor,
                first,
            }),
            Ok(Forked::Parent { pidfd, .. }) => {
                self.keys.filter = Some(ForkedReader {
                    channel: ours,
                    pidfd,
                });
            }
        }
    }

    /// Takes what the key filter says.
    pub(crate) fn key_filter_message(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(filter) = &self.keys.filter else {
            return Ok(());
        };
        let event = match filter.channel.receive::<FromFilter>(false) {
            Ok(None) => return Ok(()),
            Ok(Some(Packet::Message(message, _))) => SigningEvent::Message(message),
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => {
                self.keys.filter = None;
                SigningEvent::FilterGone
            }
        };
        self.signing_event(event, now)
    }

    /// Gives an event to the part that decides about uses of keys.
    pub(crate) fn signing_event(
        &mut self,
        event: SigningEvent,
        now: Instant,
    ) -> Result<(), RunError> {
        let effects = self.key_uses.handle(event, now);
        self.apply(effects, now)
    }

    /// Asks a person for one use of a key.
    pub(crate) fn ask_for_key(
        &mut self,
        ticket: u64,
        resource: Resource,
        now: Instant,
    ) -> Result<(), RunError> {
        let new = NewRequest {
            by: crate::leases::Requester::KeyUse(ticket),
            origin: LeaseOrigin::Ask,
            resource: resource.clone(),
            identity: None,
            grant: GrantRequest {
                wanted: LeaseTarget::Other(resource),
                term: Term::UntilRevoked,
                uses: Some(1),
                reason: String::new(),
            },
            descriptor: None,
            because: SigningReason::KeyConfirm.into(),
            announced: None,
        };
        self.raise_request(new, now)
    }

    /// A person has answered, or the request came to nothing.
    pub(crate) fn key_answered(
        &mut self,
        ticket: u64,
        outcome: RequestOutcome,
    ) -> Result<(), RunError> {
        self.signing_event(SigningEvent::Answered { ticket, outcome }, Instant::now())
    }

    /// Connects the key filter to the real agent for one use.
    pub(crate) fn allow_key_use(&mut self, ticket: u64, agent: KeyAgent) {
        let agent = match agent {
            KeyAgent::Ssh => &self.keys.agents.ssh,
            KeyAgent::Gpg => &self.keys.agents.gpg,
        };
        let dialled = match agent {
            Some(agent) => agent.dial(),
            None => Err(Errno::NOENT),
        };
        match dialled {
            Ok(real) => self.tell_key_filter(&ToFilter::Allowed { ticket }, Some(real.as_fd())),
            Err(error) => {
                let error = error.to_string();
                self.tell_key_filter(&ToFilter::Unreachable { ticket, error }, None);
            }
        }
    }

    /// Tells the key filter what was decided about a use.
    pub(crate) fn tell_key_filter(&mut self, decided: &ToFilter, real: Option<BorrowedFd<'_>>) {
        if let Some(filter) = &self.keys.filter
            && filter.channel.send(decided, real.as_slice()).is_err()
        {
            self.keys.filter = None;
        }
    }

    /// Ends the key filter. Denials that it reported before the end belong in the log; nothing that
    /// it asks is answered any more.
    pub(crate) fn stop_key_filter(&mut self) -> Result<(), RunError> {
        self.keys.sockets.hide();
        if let Some(filter) = self.keys.filter.take() {
            for _ in 0..LAST_MESSAGES {
                let Ok(Some(Packet::Message(message, _))) = filter.channel.receive(false) else {
                    break;
                };
                if matches!(message, FromFilter::Denied { .. }) {
                    self.signing_event(SigningEvent::Message(message), Instant::now())?;
                }
            }
        }
        self.keys = KeyFilter::default();
        Ok(())
    }
}
