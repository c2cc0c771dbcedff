//! The key filter: a process of its own, forked from the supervisor with the first connection.
//!
//! It reads what the cage writes to its agents, and asks the real ones for a signature once the
//! supervisor has connected it. It is paced: what comes faster than it reads waits in the socket. A
//! real agent that waits for a person holds up one connection, and no other.
//!
//! Its system call filter lets it open, connect and start nothing.

use super::{FromFilter, KeySockets, ToFilter, rules};
use ironcage_control::{Channel, Packet};
use ironcage_layers::privileges;
use ironcage_model::{CageId, KeyAgent, KeyPurpose, KeyUse, NetworkVerdict, Reason, SigningReason};
use ironcage_plan::Signing;
use ironcage_signing::gpg::{GpgConnection, GpgRules};
use ironcage_signing::ssh::{SshConnection, SshRules};
use ironcage_signing::{Connection, Denial, Exchange, Progress, Rules, Step};
use ironcage_sys::clone::exit_now;
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::{Errno, read};
use ironcage_sys::rustix::net::{SendFlags, SocketFlags, accept_with, send};
use ironcage_sys::rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::set_name;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections at once; others wait in the socket.
const MOST: usize = 16;
/// Messages that are read within a second, of all connections together.
const MOST_READ: u32 = 64;
/// How long somebody may be connected without saying anything.
const IDLE: Duration = Duration::from_secs(60);

/// What the key filter is given.
pub(super) struct FilterSetup<'a> {
    pub(super) signing: &'a Signing,
    pub(super) cage: &'a CageId,
    pub(super) sockets: &'a KeySockets,
    pub(super) link: Channel,
    pub(super) supervisor: Pid,
    /// The number before its first use's.
    pub(super) first: u64,
}

/// Reads the sockets until the supervisor is gone.
pub(super) fn run(given: FilterSetup<'_>) -> ! {
    let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !tethered || getppid() != Some(given.supervisor) {
        exit_now(1);
    }
    let listeners = given.sockets.ssh.iter().chain(&given.sockets.gpg);
    let mut kept: Vec<BorrowedFd<'_>> = listeners.map(AsFd::as_fd).collect();
    kept.push(given.link.as_fd());
    if close_all_but(&kept).is_err() {
        exit_now(1);
    }
    let _ = set_name(c"ironcage-keys");
    let mut filter = Filter {
        ssh: rules::ssh(given.signing),
        gpg: rules::gpg(given.signing, given.cage),
        sockets: given.sockets,
        link: given.link,
        clients: Vec::new(),
        last: given.first,
        second: Instant::now(),
        read: 0,
    };
    if privileges::confine_reader(&given.signing.filter).is_err() {
        exit_now(1);
    }
    while filter.turn().is_some() {}
    exit_now(0)
}

/// Somebody in the cage who is connected.
struct KeyClient {
    agent: KeyAgent,
    socket: OwnedFd,
    connection: Connection,
    state: KeyClientState,
}

enum KeyClientState {
    /// Until when nothing has to be said.
    Idle(Instant),
    /// The supervisor decides about a use.
    Deciding {
        ticket: u64,
        used: Box<ironcage_signing::Use>,
    },
    /// The real agent is asked.
    Signing {
        real: OwnedFd,
        exchange: Exchange,
        key: String,
        purpose: KeyPurpose,
    },
    Gone,
}

struct Filter<'a> {
    ssh: SshRules,
    gpg: GpgRules,
    sockets: &'a KeySockets,
    link: Channel,
    clients: Vec<KeyClient>,
    last: u64,
    /// When this second began, and how much was read in it.
    second: Instant,
    read: u32,
}

/// What there is to do, and with whom.
enum Ready {
    Supervisor,
    Listener(KeyAgent),
    Client(usize),
    Agent(usize),
}

impl Filter<'_> {
    /// Waits for something, and does it. `None` when there is nobody left to do it for.
    fn turn(&mut self) -> Option<()> {
        let now = Instant::now();
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.read = 0;
        }
        for ready in self.wait(now)? {
            match ready {
                Ready::Supervisor => self.hear_supervisor()?,
                Ready::Listener(agent) => self.accept(agent),
                Ready::Client(index) => self.hear_client(index)?,
                Ready::Agent(index) => self.hear_agent(index)?,
            }
        }
        let now = Instant::now();
        for client in &mut self.clients {
            if matches!(client.state, KeyClientState::Idle(until) if now >= until) {
                client.state = KeyClientState::Gone;
            }
        }
        self.clients
            .retain(|client| !matches!(client.state, KeyClientState::Gone));
        Some(())
    }

    fn wait(&self, now: Instant) -> Option<Vec<Ready>> {
        let mut fds = vec![PollFd::new(&self.link, PollFlags::IN)];
        let mut what = vec![Ready::Supervisor];
        let mut until: Vec<Instant> = Vec::new();
        let paused = self.read >= MOST_READ;
        if paused {
            until.push(self.second + Duration::from_secs(1));
        }
        let listeners = [
            (KeyAgent::Ssh, &self.sockets.ssh),
            (KeyAgent::Gpg, &self.sockets.gpg),
        ];
        for (agent, listener) in listeners {
            if let (Some(listener), true) = (listener, self.clients.len() < MOST && !paused) {
                fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
                what.push(Ready::Listener(agent));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            let flags = match &client.state {
                KeyClientState::Idle(at) => {
                    until.push(*at);
                    match paused {
                        true => continue,
                        false => PollFlags::IN,
                    }
                }
                // Of who waits only the end is of interest, which is told unasked.
                _ => PollFlags::empty(),
            };
            fds.push(PollFd::new(&client.socket, flags));
            what.push(Ready::Client(index));
            if let KeyClientState::Signing { real, .. } = &client.state {
                fds.push(PollFd::new(real, PollFlags::IN));
                what.push(Ready::Agent(index));
            }
        }
        let timeout = until.into_iter().min().map(|at| {
            let left = at.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Some(Vec::new()),
            Err(_) => return None,
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let both = what.into_iter().zip(is_ready);
        Some(
            both.filter(|(_, ready)| *ready)
                .map(|(what, _)| what)
                .collect(),
        )
    }

    fn accept(&mut self, agent: KeyAgent) {
        let (listener, connection) = match agent {
            KeyAgent::Ssh => (&self.sockets.ssh, Connection::Ssh(SshConnection::default())),
            KeyAgent::Gpg => (&self.sockets.gpg, Connection::Gpg(GpgConnection::default())),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = listener
            .as_ref()
            .map(|listener| accept_with(listener, flags));
        let Some(Ok(socket)) = accepted else {
            return;
        };
        let mut client = KeyClient {
            agent,
            socket,
            connection,
            state: KeyClientState::Idle(Instant::now() + IDLE),
        };
        let greeting = client.connection.greeting();
        client.answer(greeting);
        self.clients.push(client);
    }

    /// The supervisor has decided about a use.
    fn hear_supervisor(&mut self) -> Option<()> {
        let (decided, mut descriptors) = match self.link.receive::<ToFilter>(false) {
            Ok(None) => return Some(()),
            Ok(Some(Packet::Message(decided, descriptors))) => (decided, descriptors),
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => return None,
        };
        let (ToFilter::Allowed { ticket }
        | ToFilter::Denied { ticket }
        | ToFilter::Unreachable { ticket, .. }) = decided;
        let decides = |client: &KeyClient| matches!(&client.state, KeyClientState::Deciding { ticket: own, .. } if *own == ticket);
        let Some(index) = self.clients.iter().position(decides) else {
            // Who asked has left.
            return Some(());
        };
        let client = self.clients.get_mut(index)?;
        let state = std::mem::replace(&mut client.state, KeyClientState::Gone);
        let KeyClientState::Deciding { used, .. } = state else {
            return Some(());
        };
        let mut used = *used;
        let real = match decided {
            ToFilter::Denied { .. } => {
                client.answer(&used.refused);
                return self.advance(index);
            }
            ToFilter::Unreachable { error, .. } => Err(error),
            ToFilter::Allowed { .. } => {
                let real = descriptors.pop().ok_or(Errno::NOENT);
                real.map_err(|error| error.to_string())
            }
        };
        let begun = real.and_then(|real| {
            let sent = send_all(&real, &used.exchange.begin());
            sent.map(|()| real).map_err(|error| error.to_string())
        });
        match begun {
            Ok(real) => {
                client.state = KeyClientState::Signing {
                    real,
                    exchange: used.exchange,
                    key: used.key,
                    purpose: used.purpose,
                };
                Some(())
            }
            Err(error) => {
                client.answer(&used.refused);
                let reason = SigningReason::KeyAgentUnreachable { error };
                let event = came_to_nothing(client.agent, used.key, used.purpose, reason);
                report(&self.link, &event)?;
                self.advance(index)
            }
        }
    }

    /// Reads what a client has written.
    fn hear_client(&mut self, index: usize) -> Option<()> {
        let client = self.clients.get_mut(index)?;
        match &client.state {
            KeyClientState::Idle(_) => {}
            KeyClientState::Deciding { ticket, .. } => {
                // It is gone: nobody waits for the answer.
                let ticket = *ticket;
                client.state = KeyClientState::Gone;
                return report(&self.link, &FromFilter::Left { ticket });
            }
            KeyClientState::Signing { .. } | KeyClientState::Gone => {
                client.state = KeyClientState::Gone;
                return Some(());
            }
        }
        let mut part = [0; 4096];
        match read(&client.socket, &mut part) {
            Ok(0) => client.state = KeyClientState::Gone,
            Ok(count) => client
                .connection
                .receive(part.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => client.state = KeyClientState::Gone,
        }
        self.advance(index)
    }

    /// Takes the messages that a client has written, up to one that needs a decision.
    fn advance(&mut self, index: usize) -> Option<()> {
        let rules = Rules {
            ssh: &self.ssh,
            gpg: &self.gpg,
        };
        loop {
            let client = self.clients.get_mut(index)?;
            if !matches!(client.state, KeyClientState::Idle(_)) {
                return Some(());
            }
            let agent = client.agent;
            match client.connection.next(rules) {
                Step::More => return Some(()),
                Step::Reply(reply) => client.answer(&reply),
                Step::Bye(reply) => {
                    client.answer(&reply);
                    client.state = KeyClientState::Gone;
                }
                Step::Denied { denial, reply } => {
                    // First the log: a command that has its answer may be over at once.
                    report(&self.link, &denied(agent, denial))?;
                    client.answer(&reply);
                }
                Step::Close(denial) => {
                    client.state = KeyClientState::Gone;
                    report(&self.link, &denied(agent, denial))?;
                }
                Step::Use(used) => {
                    self.last += 1;
                    let ticket = self.last;
                    let asks = FromFilter::Asks {
                        ticket,
                        agent,
                        key: used.key.clone(),
                        purpose: used.purpose.clone(),
                    };
                    client.state = KeyClientState::Deciding { ticket, used };
                    report(&self.link, &asks)?;
                }
            }
            // What a cage writes in one piece counts as what it is: so many messages.
            self.read += 1;
        }
    }

    /// Reads what a real agent has answered.
    fn hear_agent(&mut self, index: usize) -> Option<()> {
        let client = self.clients.get_mut(index)?;
        let KeyClientState::Signing {
            real,
            exchange,
            key,
            purpose,
        } = &mut client.state
        else {
            return Some(());
        };
        let mut part = [0; 4096];
        let progress = match read(&*real, &mut part) {
            Ok(0) | Err(Errno::CONNRESET) => Err(Errno::CONNRESET),
            Ok(count) => Ok(exchange.receive(part.get(..count).unwrap_or_default())),
            Err(Errno::AGAIN | Errno::INTR) => return Some(()),
            Err(error) => Err(error),
        };
        let progress = match progress {
            Ok(Progress::Send(line)) => send_all(real, &line).map(|()| Progress::More),
            other => other,
        };
        let (reply, reason) = match progress {
            Ok(Progress::More | Progress::Send(_)) => return Some(()),
            Ok(Progress::Signed(reply)) => (reply, None),
            Ok(Progress::Refused(reply)) => (reply, Some(SigningReason::KeyAgentRefused)),
            Err(error) => {
                let error = error.to_string();
                let reason = SigningReason::KeyAgentUnreachable { error };
                // Nothing that makes sense to it: the connection ends.
                (Vec::new(), Some(reason))
            }
        };
        if let Some(reason) = reason {
            let event = came_to_nothing(client.agent, key.clone(), purpose.clone(), reason);
            report(&self.link, &event)?;
        }
        match reply.is_empty() {
            true => client.state = KeyClientState::Gone,
            false => client.answer(&reply),
        }
        self.advance(index)
    }
}

impl KeyClient {
    /// Answers, and waits for the next message. Who does not take an answer is gone.
    fn answer(&mut self, reply: &[u8]) {
        self.state = match send_all(&self.socket, reply) {
            Ok(()) => KeyClientState::Idle(Instant::now() + IDLE),
            Err(_) => KeyClientState::Gone,
        };
    }
}

/// Sends some bytes, which fit into the socket of whoever reads.
fn send_all(to: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(to, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reports to the supervisor, and waits until it has room: a cage that floods the filter waits with
/// it. `None` when the supervisor is gone.
fn report(link: &Channel, message: &FromFilter) -> Option<()> {
    loop {
        match link.send(message, &[]) {
            Ok(()) => return Some(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(link, PollFlags::OUT)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return None,
                }
            }
            Err(_) => return None,
        }
    }
}

fn denied(agent: KeyAgent, denial: Denial) -> FromFilter {
    FromFilter::Denied(KeyUse {
        agent,
        key: denial.key,
        purpose: denial.purpose,
        verdict: NetworkVerdict::Denied,
        reason: Some(denial.reason.into()),
    })
}

/// A use that was allowed, and on record as that.
fn came_to_nothing(
    agent: KeyAgent,
    key: String,
    purpose: KeyPurpose,
    reason: SigningReason,
) -> FromFilter {
    FromFilter::Denied(KeyUse {
        agent,
        key: Some(key),
        purpose: Some(purpose),
        verdict: NetworkVerdict::Allowed,
        reason: Some(Reason::from(reason)),
    })
}
