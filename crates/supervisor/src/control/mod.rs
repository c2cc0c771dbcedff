//! The supervisor's side of the control socket: who is connected, and what they wait for.
//!
//! Nothing here waits. A client that does not take its answer is dropped; there is a bound on
//! how many there are; each brings one message at a time. [`requests`] says what is done.

mod hold;
mod requests;
mod stats;

use hold::Hold;

use crate::RunError;
use crate::execs::Execs;
use crate::log_budget::LogBudget;
use crate::scope::{CLIENT, Scopes};
use crate::supervise::failed;
use ironcage_control::{
    Channel, ChannelDescription, Description, Examination, Listener, NameClaim, PeerDenial, Reply,
    State, Stats, examine,
};
use ironcage_model::{CageId, Ending, Reason, SupervisorReason};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{SocketFlags, accept_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Connections at once.
const MAX_CLIENTS: usize = 128;
/// Connections taken before something else has its turn.
const AT_ONCE: usize = 16;
/// Refused peers that are recorded at once; then one a minute.
const MAX_RECORDED: u32 = 16;

/// The control socket of one cage.
#[derive(Debug)]
pub(crate) struct Control {
    listener: Option<Listener>,
    examination: Examination,
    clients: Vec<Client>,
    next_key: u64,
    refused: LogBudget,
    /// What the cage is; `state` and `execs` are filled in when somebody asks.
    description: Description,
    /// When a cage that was asked to end is killed.
    stopping: Option<Instant>,
    /// Who holds the cage still, and what is to be started when he lets it go.
    hold: Option<Hold>,
    /// What was last counted, and when.
    stats: Option<(Instant, Stats)>,
    _name: Option<NameClaim>,
}

/// Somebody who is connected.
#[derive(Debug)]
struct Client {
    key: u64,
    channel: Channel,
    waits: bool,
    exec: Option<u32>,
}

impl Control {
    pub(crate) fn id(&self) -> &CageId {
        &self.description.id
    }

    /// What the cage is, without the fields that change.
    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    /// When a cage that was asked to end is killed.
    pub(crate) fn stop_deadline(&self) -> Option<Instant> {
        self.stopping
    }

    /// Has the cage end, and killed at this time if it has not.
    pub(crate) fn stop_by(&mut self, deadline: Instant) {
        self.stopping = Some(deadline);
    }

    /// Begins to listen.
    pub(crate) fn new(
        listener: Listener,
        name: Option<NameClaim>,
        examination: Examination,
        description: Description,
    ) -> Self {
        Control {
            listener: Some(listener),
            examination,
            clients: Vec::new(),
            next_key: 0,
            refused: LogBudget::new(MAX_RECORDED),
            description,
            stopping: None,
            hold: None,
            stats: None,
            _name: name,
        }
    }

    /// That of a scope: nobody connects, and there is one client.
    pub(crate) fn of_scope(client: Channel, description: Description) -> Result<Self, RunError> {
        let examination = Examination::of_this_process()
            .map_err(failed("tell which namespaces this process is in"))?;
        Ok(Control {
            listener: None,
            examination,
            clients: vec![Client {
                key: CLIENT,
                channel: client,
                waits: false,
                exec: None,
            }],
            next_key: CLIENT,
            refused: LogBudget::new(MAX_RECORDED),
            description,
            stopping: None,
            hold: None,
            stats: None,
            _name: None,
        })
    }

    /// Gives a client away, to who serves it from now on.
    pub(crate) fn give_away(&mut self, key: u64) -> Option<Channel> {
        let index = self.clients.iter().position(|c| c.key == key)?;
        Some(self.clients.swap_remove(index).channel)
    }

    /// Whether a client is gone, or has started a command.
    pub(crate) fn has_exec(&mut self, key: u64) -> bool {
        self.client(key).is_none_or(|client| client.exec.is_some())
    }

    /// A client has started a command, which ends with it.
    pub(crate) fn set_exec(&mut self, key: u64, number: u32) {
        if let Some(client) = self.client(key) {
            client.exec = Some(number);
        }
    }

    /// Whether the socket of a killed supervisor lies beside this one's.
    pub(crate) fn sees_a_dead_one(&self) -> bool {
        let listener = self.listener.as_ref();
        listener.is_some_and(Listener::is_beside_a_dead_one)
    }

    /// Where connections come in.
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Where those who are connected speak.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        self.clients.iter().map(|c| (c.key, c.channel.as_fd()))
    }

    /// Takes connections. Returns why peers were refused, as far as that is to be recorded.
    pub(crate) fn accept(&mut self) -> Vec<Reason> {
        let mut refused = Vec::new();
        for _ in 0..AT_ONCE {
            let Some(listener) = &self.listener else {
                break;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => break,
            };
            let examined = examine(socket.as_fd(), &self.examination);
            let channel = Channel::new(socket);
            let rejected = |refusal: &PeerDenial| {
                let error = refusal.to_string();
                SupervisorReason::PeerRejected { error }
            };
            let why = match examined {
                Err(refusal) if refusal.is_gone() => rejected(&refusal),
                Err(refusal) => {
                    if self.refused.spend(Instant::now()) {
                        refused.push(rejected(&refusal).into());
                    }
                    rejected(&refusal)
                }
                Ok(()) if self.clients.len() >= MAX_CLIENTS => {
                    let limit = MAX_CLIENTS as u64;
                    SupervisorReason::TooManyClients { limit }
                }
                Ok(()) => {
                    self.next_key += 1;
                    self.clients.push(Client {
                        key: self.next_key,
                        channel,
                        waits: false,
                        exec: None,
                    });
                    continue;
                }
            };
            // Who does not take it learns by the end of the connection.
            let reason = why.into();
            let _ = channel.send(&Reply::Refused { reason }, &[]);
        }
        refused
    }

    /// Refused peers that have no line on record.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.refused.unrecorded()
    }

    fn client(&mut self, key: u64) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.key == key)
    }

    /// Sends an answer. A client that cannot take it is cut off; that it is gone shows when it is
    /// looked at next.
    pub(crate) fn reply(&mut self, key: u64, reply: &Reply, descriptors: &[BorrowedFd<'_>]) {
        if let Some(client) = self.client(key)
            && client.channel.send(reply, descriptors).is_err()
        {
            use ironcage_sys::rustix::net::{Shutdown, shutdown};
            let _ = shutdown(client.channel.as_fd(), Shutdown::Both);
        }
    }

    pub(crate) fn refuse(&mut self, key: u64, reason: impl Into<Reason>) {
        let reason = reason.into();
        self.reply(key, &Reply::Refused { reason }, &[]);
    }

    /// Forgets a client. The exec that ends with it, if any.
    fn forget(&mut self, key: u64) -> Option<u32> {
        let index = self.clients.iter().position(|c| c.key == key)?;
        self.clients.swap_remove(index).exec
    }

    /// What the cage is, now.
    fn describe(
        &self,
        command_over: bool,
        (execs, scopes): (&Execs, &Scopes),
        (children, channels): (Vec<CageId>, Vec<ChannelDescription>),
    ) -> Description {
        Description {
            children,
            channels,
            state: match (self.stopping, command_over) {
                (Some(_), _) => State::Stopping,
                (None, _) if self.hold.as_ref().is_some_and(Hold::is_pause) => State::Paused,
                (None, true) => State::Waiting,
                (None, false) => State::Running,
            },
            execs: execs.describe().chain(scopes.describe()).collect(),
            ..self.description.clone()
        }
    }

    /// The cage is gone: nobody connects any more once the descriptors are closed, and who waits is
    /// told at the very end.
    pub(crate) fn close(mut self, ending: Ending) -> (ExitNotifier, Vec<OwnedFd>) {
        let listener = self.listener.take().map(Listener::into_descriptors);
        let waiting = self.clients.into_iter().filter(|client| client.waits);
        let exit_notifier = ExitNotifier {
            waiting: waiting.map(|client| client.channel).collect(),
            ending,
        };
        (exit_notifier, listener.unwrap_or_default())
    }
}

/// Those who wait for the cage's end. They are told when this is dropped: after everything that
/// belongs to the run is done.
#[derive(Debug)]
pub struct ExitNotifier {
    waiting: Vec<Channel>,
    ending: Ending,
}

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        for channel in &self.waiting {
            let _ = channel.send(&Reply::Ended(self.ending.clone()), &[]);
        }
    }
}

/// A pipe whose reading end does not block.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
}
