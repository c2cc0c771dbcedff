//! The process that reads the ask socket: one of its own, forked from the supervisor.
//!
//! The bytes on it are the agent's, and the paths that it names lie on file systems that may hang:
//! both are no matter of the process that holds the cage. The request reader has no way to give
//! anything. It is paced: what comes faster than it reads waits in the socket.

mod messages;
mod shell;

use super::received::{MOST_GIVEN, is_pipe, receive};
use super::{FromReader, ReaderReply, ToReader};
use crate::leases::look;
use crate::path_lookup::{PathLookup, look_up};

use ironcage_control::{
    Answered, CageMessage, CageRequest, CageRequestError, CageRequestKind, Channel, ChildLine,
    GrantRequest, LONGEST_CAGE_REQUEST, LeaseTarget, Packet, Schema,
};
use ironcage_model::{
    Lease, LeaseOutcome, LeaseReason, LeaseSummary, Reason, Resource, Right, SupervisorReason, Term,
};
use ironcage_plan::{Plan, locate};
use ironcage_sys::clone::exit_now;
use ironcage_sys::packet;
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::event::{PollFd, PollFlags, Timespec, poll};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{SendFlags, SocketFlags, accept_with, send};
use ironcage_sys::rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::set_name;
use shell::BackgroundCommand;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections at once; others wait in the socket.
const MOST: usize = 8;
/// Requests that are read within a second, of all of them together.
const MOST_READ: u32 = 32;
/// How long somebody may be connected without asking anything.
const IDLE: Duration = Duration::from_secs(60);

/// Paths that a shell's command can have leases on: each is a descriptor beside one message.
const MOST_PATHS: usize = 12;

/// What the request reader is given.
pub(super) struct ReaderSetup<'a> {
    pub(super) plan: &'a Plan,
    pub(super) listener: BorrowedFd<'a>,
    pub(super) link: Channel,
    pub(super) supervisor: Pid,
    /// The number before its first request's.
    pub(super) first: u64,
    /// Channels, and what their messages look like.
    pub(super) schemas: Vec<(String, String)>,
}

/// Somebody who is connected.
struct ReaderClient {
    socket: OwnedFd,
    /// What has come of a line that is not whole yet.
    heard: Vec<u8>,
    /// Descriptors that came with it.
    given: Vec<OwnedFd>,
    state: ClientState,
}

enum ClientState {
    /// Nothing is asked; until when that is borne.
    Idle(Instant),
    /// The supervisor was asked.
    Waiting {
        ticket: u64,
        /// Until when a person's answer is waited for.
        until: Instant,
        /// What is said when that is over.
        pending: Option<Answered>,
        what: AwaitedReply,
    },
    /// The supervisor was asked for leases of the cage, for a command.
    Leasing(BackgroundCommand),
    Gone,
}

/// What somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AwaitedReply {
    Lease,
    /// The end of a child, which ends with who waits for it.
    Child,
    /// A message; whether the supervisor was told that it took too long.
    Message {
        told: bool,
    },
}

/// Reads the socket until the supervisor is gone.
pub(super) fn run(given: ReaderSetup<'_>) -> ! {
    let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    if !tethered || getppid() != Some(given.supervisor) {
        exit_now(1);
    }
    if close_all_but(&[given.listener, given.link.as_fd()]).is_err() {
        exit_now(1);
    }
    let _ = set_name(c"request-reader");
    let mut reader = Reader {
        plan: given.plan,
        listener: given.listener,
        link: given.link,
        clients: Vec::new(),
        last: given.first,
        second: Instant::now(),
        read: 0,
        schemas: Vec::new(),
    };
    for (channel, schema) in given.schemas {
        reader.learn(channel, &schema);
    }
    while reader.turn().is_some() {}
    exit_now(0)
}

struct Reader<'a> {
    plan: &'a Plan,
    listener: BorrowedFd<'a>,
    link: Channel,
    clients: Vec<ReaderClient>,
    last: u64,
    /// When this second began, and how much was read in it.
    second: Instant,
    read: u32,
    schemas: Vec<(String, Schema)>,
}

impl Reader<'_> {
    /// Waits for something, and does it. `None` when there is nobody left to do it for.
    fn turn(&mut self) -> Option<()> {
        let now = Instant::now();
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.read = 0;
        }
        let paused = self.read >= MOST_READ;
        let (linked, knocking, speaking) = self.wait(now, paused)?;
        if linked {
            self.hear_supervisor()?;
        }
        for index in speaking {
            // Those who wait are looked at too: who is gone needs no answer.
            self.hear_asker(index);
        }
        if knocking {
            self.accept();
        }
        let now = Instant::now();
        for client in &mut self.clients {
            if let Some(ticket) = client.look(now) {
                // Answered all the same: what comes meanwhile is not lost.
                self.link.send(&FromReader::Left { ticket }, &[]).ok()?;
            }
        }
        self.clients
            .retain(|client| !matches!(client.state, ClientState::Gone));
        Some(())
    }

    fn wait(&self, now: Instant, paused: bool) -> Option<(bool, bool, Vec<usize>)> {
        let mut fds = vec![PollFd::new(&self.link, PollFlags::IN)];
        let mut until: Vec<Instant> = self
            .clients
            .iter()
            .filter_map(ReaderClient::until)
            .collect();
        if paused {
            until.push(self.second + Duration::from_secs(1));
        } else {
            // Who waits for a child does so as long as that lives.
            let most = MOST + self.plan.children as usize;
            let open = match self.clients.len() < most {
                true => PollFlags::IN,
                false => PollFlags::empty(),
            };
            fds.push(PollFd::from_borrowed_fd(self.listener, open));
            for client in &self.clients {
                // Of who waits only the end is of interest, which is told unasked.
                let flags = match client.state {
                    ClientState::Idle(_) => PollFlags::IN,
                    _ => PollFlags::empty(),
                };
                fds.push(PollFd::new(&client.socket, flags));
            }
        }
        let timeout = until.into_iter().min().map(|at| {
            let left = at.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Some((false, false, Vec::new())),
            Err(_) => return None,
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let linked = ready.next().unwrap_or(false);
        let knocking = ready.next().unwrap_or(false);
        let speaking = ready.enumerate().filter(|(_, ready)| *ready);
        Some((linked, knocking, speaking.map(|(index, _)| index).collect()))
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = accept_with(self.listener, flags) {
            self.read += 1;
            self.clients.push(ReaderClient {
                socket,
                heard: Vec::new(),
                given: Vec::new(),
                state: ClientState::Idle(Instant::now() + IDLE),
            });
        }
    }

    fn hear_supervisor(&mut self) -> Option<()> {
        let said = match self.link.receive::<ToReader>(false) {
            Ok(None) => return Some(()),
            Ok(Some(Packet::Message(said, _))) => said,
            Ok(Some(Packet::Garbled(_) | Packet::Closed)) | Err(_) => return None,
        };
        let (ticket, came) = match said {
            ToReader::Reply { ticket, reply } => (ticket, reply),
            ToReader::Type { channel, schema } => {
                self.learn(channel, &schema);
                return Some(());
            }
        };
        let waits = |client: &&mut ReaderClient| match &client.state {
            ClientState::Waiting { ticket: own, .. } => *own == ticket,
            ClientState::Leasing(command) => command.awaits(ticket),
            ClientState::Idle(_) | ClientState::Gone => false,
        };
        if let Some(client) = self.clients.iter_mut().find(waits) {
            match came {
                ReaderReply::Outcome(outcome) if client.is_leasing() => {
                    client.leased(ticket, outcome);
                }
                ReaderReply::Message { channel, text } => {
                    let answer = messages::understood(&self.schemas, &channel, &text);
                    client.answer(&answer);
                }
                came => client.told(came),
            }
        }
        Some(())
    }

    fn hear_asker(&mut self, index: usize) {
        let Some(client) = self.clients.get_mut(index) else {
            return;
        };
        let awaited = match client.state {
            ClientState::Waiting { ticket, what, .. } if what != AwaitedReply::Lease => {
                Some(ticket)
            }
            _ => None,
        };
        let Some(line) = client.hear() else {
            if let Some(ticket) = awaited {
                // A supervisor who is gone is noticed later.
                let _ = self.link.send(&FromReader::Left { ticket }, &[]);
            }
            return;
        };
        let given = std::mem::take(&mut client.given);
        self.read += 1;
        match line.and_then(|line| CageMessage::read(&line)) {
            Ok(CageMessage::Asks(CageRequest {
                what: CageRequestKind::Child(child),
                ..
            })) => self.ask_for_child(index, child, &given),
            Ok(CageMessage::Asks(CageRequest {
                what: CageRequestKind::Send { channel, message },
                ..
            })) => self.ask_to_send(index, channel, &message),
            Ok(CageMessage::Asks(CageRequest {
                what: CageRequestKind::Receive { channel },
                wait,
                ..
            })) => self.ask_for_message(index, channel, wait),
            Ok(CageMessage::Asks(inquiry)) => self.ask(index, inquiry),
            Ok(CageMessage::Runs(inquiry)) => self.run_shell(index, inquiry),
            Err(error) => {
                let error = error.to_string();
                let reason = SupervisorReason::RequestInvalid { error }.into();
                client.answer(&Answered::Invalid { reason });
                client.state = ClientState::Gone;
            }
        }
    }

    /// Asks the supervisor, if there is anything to ask.
    fn ask(&mut self, index: usize, inquiry: CageRequest) {
        let Some(resource) = inquiry.what.resource() else {
            return;
        };
        let (wanted, descriptor) = match inquiry.what {
            CageRequestKind::Child(_)
            | CageRequestKind::Send { .. }
            | CageRequestKind::Receive { .. } => return,
            CageRequestKind::Host(rule) => (LeaseTarget::Other(Resource::Host { rule }), None),
            CageRequestKind::Path { path, right } => match look_up(self.plan, &path, right) {
                // A file system that does not answer is waited for here, and not in the supervisor.
                PathLookup::Found { handle, .. } => match look(&handle, right) {
                    Ok(_) => (LeaseTarget::Path { right }, Some(handle)),
                    Err(_) => {
                        let error = "it is not accessible".into();
                        let reason = LeaseReason::PathNotInspected { error };
                        return self.refuse(index, resource, reason.into());
                    }
                },
                PathLookup::Had { passing: false } => {
                    let origin = locate(self.plan, &path).origin;
                    let reason = LeaseReason::PathInBase {
                        right: right.name().into(),
                        origin: origin.unwrap_or_else(|| "built in".into()),
                    };
                    return self.answer(index, &had(reason));
                }
                PathLookup::Had { passing: true } => {
                    let leases = self.plan.leases.as_ref();
                    if let Some(why) = leases.and_then(|leases| leases.never(&path, right)) {
                        let reason = LeaseReason::PathNever {
                            path: path.to_string_lossy().into_owned(),
                            why: why.to_string(),
                        };
                        return self.refuse(index, resource, reason.into());
                    }
                    let reason = LeaseReason::PathPrivate.into();
                    // Who wants to write has where to; who wants to read what is outside has not.
                    return match right {
                        Right::Write => self.answer(index, &had(reason)),
                        Right::Read => self.refuse(index, resource, reason),
                    };
                }
                // Only scopes are leased names.
                PathLookup::Name(_) => {
                    return self.refuse(index, resource, LeaseReason::PathNotFound.into());
                }
                PathLookup::Neither(reason) => return self.refuse(index, resource, reason.into()),
            },
        };
        let term = match inquiry.seconds {
            Some(seconds) => Term::Milliseconds(seconds.saturating_mul(1000)),
            None => Term::UntilRevoked,
        };
        self.last += 1;
        let asks = FromReader::Asks {
            ticket: self.last,
            grant: GrantRequest {
                wanted,
                term,
                uses: None,
                reason: inquiry.reason,
            },
        };
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.iter().map(AsFd::as_fd).collect();
        self.pass_on(
            index,
            &asks,
            &descriptors,
            (inquiry.wait, AwaitedReply::Lease),
        );
    }

    /// Asks the supervisor, by the last ticket, and lets who asked wait for the answer.
    fn pass_on(
        &mut self,
        index: usize,
        asks: &FromReader,
        descriptors: &[BorrowedFd<'_>],
        (wait, what): (u64, AwaitedReply),
    ) {
        if self.link.send(asks, descriptors).is_err() {
            return self.answer(index, &Answered::denied(SupervisorReason::Busy));
        }
        if let Some(client) = self.clients.get_mut(index) {
            client.state = ClientState::Waiting {
                ticket: self.last,
                until: Instant::now() + Duration::from_secs(wait),
                pending: None,
                what,
            };
        }
    }

    /// Asks the supervisor for a child.
    fn ask_for_child(&mut self, index: usize, child: ChildLine, streams: &[OwnedFd]) {
        if streams.len() != 3 || !streams.iter().all(is_pipe) {
            let expected = "three pipes, for standard input, output and error,".into();
            let reason = SupervisorReason::WrongDescriptors { expected }.into();
            return self.answer(index, &Answered::Invalid { reason });
        }
        self.last += 1;
        let ticket = self.last;
        let descriptors: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
        let asks = FromReader::Child { ticket, child };
        self.pass_on(index, &asks, &descriptors, (0, AwaitedReply::Child));
    }

    /// Says no to what cannot even be asked for.
    fn refuse(&mut self, index: usize, resource: Resource, reason: Reason) {
        let refused = FromReader::Refused {
            resource,
            reason: reason.clone(),
        };
        // For the record; a supervisor who is gone is noticed later.
        let _ = self.link.send(&refused, &[]);
        self.answer(index, &Answered::denied(reason));
    }

    fn answer(&mut self, index: usize, answer: &Answered) {
        if let Some(client) = self.clients.get_mut(index) {
            client.answer(answer);
        }
    }
}

impl ReaderClient {
    fn until(&self) -> Option<Instant> {
        match &self.state {
            ClientState::Idle(until) => Some(*until),
            ClientState::Waiting {
                until,
                pending: Some(_),
                ..
            }
            | ClientState::Waiting {
                until,
                what: AwaitedReply::Message { told: false },
                ..
            } => Some(*until),
            ClientState::Leasing(command) => command.until(),
            ClientState::Waiting { .. } | ClientState::Gone => None,
        }
    }

    fn is_leasing(&self) -> bool {
        matches!(self.state, ClientState::Leasing(_))
    }

    /// Takes what came of one of the leases for a command.
    fn leased(&mut self, ticket: u64, outcome: LeaseOutcome<Lease>) {
        if let ClientState::Leasing(command) = &mut self.state
            && let Some(answer) = command.take(ticket, outcome)
        {
            self.answer(&answer);
        }
    }

    /// A line, where one is whole; what comes after it waits.
    fn hear(&mut self) -> Option<Result<Vec<u8>, CageRequestError>> {
        if !matches!(self.state, ClientState::Idle(_)) {
            // Nobody waits for the answer any more.
            self.state = ClientState::Gone;
            return None;
        }
        let mut part = [0; 2048];
        let room = LONGEST_CAGE_REQUEST + 1 - self.heard.len();
        let room = part.get_mut(..room.min(2048)).unwrap_or_default();
        match receive(&self.socket, room, &mut self.given) {
            Ok(count) if count == 0 || self.given.len() > MOST_GIVEN => {
                self.state = ClientState::Gone;
                return None;
            }
            Ok(count) => {
                let came = part.get(..count).unwrap_or_default();
                self.heard.extend_from_slice(came);
            }
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => {
                self.state = ClientState::Gone;
                return None;
            }
        }
        match self.heard.iter().position(|byte| *byte == b'\n') {
            // One at a time: what is said before the answer is not read.
            Some(end) => {
                self.heard.truncate(end);
                Some(Ok(std::mem::take(&mut self.heard)))
            }
            None if self.heard.len() > LONGEST_CAGE_REQUEST => Some(Err(CageRequestError::TooLong)),
            None => None,
        }
    }

    fn told(&mut self, reply: ReaderReply) {
        let answer = match reply {
            ReaderReply::Outcome(outcome) => {
                let outcome = outcome.map(|lease| LeaseSummary::from(&lease));
                let said = Answered::Outcome(outcome);
                if let Answered::Outcome(LeaseOutcome::Pending { .. }) = said {
                    if let ClientState::Waiting { pending, .. } = &mut self.state {
                        *pending = Some(said);
                    }
                    return;
                }
                said
            }
            ReaderReply::Ended { child, status } => Answered::Ended {
                child: child.to_string(),
                status,
            },
            ReaderReply::Sent => Answered::Sent,
            ReaderReply::Empty => Answered::Empty,
            // Its type is looked at first.
            ReaderReply::Message { .. } => return,
        };
        self.answer(&answer);
    }

    /// Says that a person has not answered, when that was waited for long enough. Returns the
    /// ticket of who has waited long enough for a message.
    fn look(&mut self, now: Instant) -> Option<u64> {
        match &mut self.state {
            ClientState::Idle(until) if now >= *until => self.state = ClientState::Gone,
            ClientState::Waiting {
                ticket,
                until,
                what: AwaitedReply::Message { told },
                ..
            } if now >= *until && !*told => {
                *told = true;
                return Some(*ticket);
            }
            ClientState::Waiting { until, pending, .. } if now >= *until => {
                if let Some(said) = pending.take() {
                    self.answer(&said);
                }
            }
            ClientState::Leasing(command) => {
                if let Some(answer) = command.give_up(now) {
                    self.answer(&answer);
                }
            }
            _ => {}
        }
        None
    }

    /// Gives the connection to a scope's supervisor; there is nothing more to say here.
    fn hand_over(&mut self, connection: BorrowedFd<'_>) {
        let mut line = serde_json::to_vec(&Answered::Scope).unwrap_or_default();
        line.push(b'\n');
        // Whether it went or not: who does not take it has given the scope up.
        let _ = packet::send_with(self.socket.as_fd(), &line, connection);
        self.state = ClientState::Gone;
    }

    fn answer(&mut self, answer: &Answered) {
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Who does not take a line has asked for nothing that matters to them.
        self.state = match send(&self.socket, &line, flags) {
            Ok(count) if count == line.len() => ClientState::Idle(Instant::now() + IDLE),
            _ => ClientState::Gone,
        };
    }
}

/// The cage has it anyway.
fn had(reason: impl Into<Reason>) -> Answered {
    let reason = reason.into();
    Answered::Outcome(LeaseOutcome::InBase { reason })
}
