//! The few messages between supervisor and PID 1, one packet each.
//!
//! PID 1 is Ironcage's own code but lives in the agent's namespaces; the supervisor parses
//! what comes from it as if the agent had sent it: bounded, checked, no trust in lengths.

pub(crate) mod adoption;

use crate::MountContext;
use ironcage_layers::LayerError;
use ironcage_model::{Layer, StartCode};
use ironcage_sys::packet::{self, ancillary_space};
use ironcage_sys::rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg,
};
use ironcage_sys::rustix::termios::Winsize;
use ironcage_sys::spawn::FAILURE;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// First byte of the message that the child sends itself when execve fails.
const NOT_EXECUTED: u8 = b'n';
const EXECUTED: u8 = b'e';
const TERMINAL: u8 = b'p';
const EXEC: u8 = b'o';
const SIGNAL_ALL: u8 = b'a';
const UNSHARED: u8 = b'u';
const READY: u8 = b'r';
const EXITED: u8 = b'x';
const FAILED: u8 = b'f';
const GO: u8 = b'g';
const PERMIT: u8 = b'l';
const NETWORK: u8 = b'w';
const RESUME: u8 = b'c';
const FREEZE: u8 = b'z';
const HOLD: u8 = b'h';
const RELEASE: u8 = b'y';
const STOPPED: u8 = b't';
/// Which of the optional descriptors a ready message has.
const HAS_LISTENER: u8 = 1;
const HAS_TERMINAL: u8 = 2;
const HAS_SHARED_MEMORY: u8 = 4;
const HAS_OUTGROWN: u8 = 8;
const HAS_MOUNT_CONTEXT: u8 = 16;
const HAS_STORAGE: u8 = 32;
const HAS_SOCKETS: u8 = 64;
const HAS_RESOLVER: u8 = 128;
const SIGNAL: u8 = b's';
const DIAL: u8 = b'd';
const DIALLED: u8 = b'i';

/// Longest message.
const MAX: usize = 4096;
/// Most descriptors in a message.
const MAX_FDS: usize = 9 + MAX_OVERLAYS;
/// Most copy-on-write views that are handed over; where there are more, none is.
const MAX_OVERLAYS: usize = 16;

/// What PID 1 says.
#[derive(Debug)]
pub enum FromInit {
    /// Its user namespace waits for its maps.
    Unshared,
    /// Every layer is in force; the command is about to start.
    Ready(Ready),
    /// A program could not be executed.
    NotExecuted {
        /// Which: 0 is the cage's command, others are execs.
        number: u32,
        errno: i32,
    },
    /// A program is being executed; or it has just been said that it cannot be.
    Executed {
        number: u32,
    },
    /// The terminal of an exec.
    Terminal {
        number: u32,
        /// The terminal's controlling end.
        controller: OwnedFd,
    },
    /// The command was stopped, by its terminal or by somebody inside.
    Stopped,
    Exited {
        number: u32,
        status: i32,
    },
    /// A connection to the cage's own loopback is being made.
    Dialled {
        ticket: u32,
        /// Its socket; none where there is none to be had.
        socket: Option<OwnedFd>,
    },
    /// A layer could not be applied.
    Failed {
        layer: Layer,
        errno: i32,
        action: String,
        /// The code of the failed start.
        code: StartCode,
    },
    /// The other end is gone.
    Closed,
}

/// What PID 1 hands over when the cage is built.
#[derive(Debug)]
pub struct Ready {
    /// Root of the ephemeral storage.
    pub root: OwnedFd,
    /// The cage's process file system.
    pub proc: OwnedFd,
    /// Where refused system calls are reported.
    pub listener: Option<OwnedFd>,
    /// The controlling end of the cage's terminal, where it has one.
    pub terminal: Option<OwnedFd>,
    /// The list of the cage's System V shared memory, where somebody has to count it.
    pub shared_memory: Option<OwnedFd>,
    /// Where the kernel lists the sockets of the cage's network namespace, where somebody has to
    /// count what they hold.
    pub sockets: Option<OwnedFd>,
    /// The namespace in which the cage was built and that it has left, where there is one. With
    /// the last descriptor of it go its mounts, for which the kernel waits: better here, beside
    /// the command, than in PID 1 before it.
    pub outgrown: Option<OwnedFd>,
    /// The resolver's socket of a cage without a network: who reads it knows which names were
    /// looked up in vain.
    pub resolver: Option<OwnedFd>,
    /// What leases and scopes stand on, where the backend has them.
    pub mount_context: Option<MountContext>,
    pub overlays: Vec<OwnedFd>,
}

impl Ready {
    /// All of it, to be closed by who has handed it over.
    pub(crate) fn into_descriptors(self) -> Vec<OwnedFd> {
        let mut all = vec![self.root, self.proc];
        all.extend(self.overlays);
        let others = [
            self.listener,
            self.terminal,
            self.shared_memory,
            self.sockets,
            self.outgrown,
            self.resolver,
        ];
        all.extend(others.into_iter().flatten());
        all.extend(
            self.mount_context
                .map(MountContext::into_descriptors)
                .into_iter()
                .flatten(),
        );
        all
    }
}

/// What the supervisor says.
#[derive(Debug)]
pub enum ToInit {
    /// Go on: the id maps are written.
    Go,
    /// The start is on record: the command may be started.
    Permit,
    /// Send a signal to a program and its group.
    Signal { number: u32, signal: i32 },
    /// Send this signal to everything.
    SignalAll(i32),
    /// Execute another program.
    Exec(ExecOrder),
    /// Begin a connection to the cage's own loopback, for a port that is published.
    Dial {
        /// By which the answer is known.
        ticket: u32,
        port: u16,
        /// Whether to `::1` instead of `127.0.0.1`.
        six: bool,
    },
    /// Stop everything.
    Freeze,
    /// Stop everything and say nothing of it: it goes on in a moment.
    Hold,
    /// Let what was held go on.
    Release,
    /// Let what was stopped go on.
    Resume,
    /// The other end is gone.
    Closed,
}

/// Another program, to be executed in the running cage.
#[derive(Debug)]
pub struct ExecOrder {
    pub number: u32,
    /// What is executed; not there where PID 1 may not have more descriptors.
    pub program: Option<OwnedFd>,
    /// The size of the terminal that it gets, if it gets one.
    pub terminal: Option<Winsize>,
    /// Its streams, if it gets pipes.
    pub streams: Option<[OwnedFd; 3]>,
}

fn number(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "garbled message from the cage")
}

/// One packet with the descriptors in it; `None` when there is none and `wait` is false. An
/// empty one means that the other end is gone.
fn receive_packet(
    socket: BorrowedFd<'_>,
    wait: bool,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let Some(packet) = packet::receive(socket, wait, MAX, MAX_FDS)? else {
        return Ok(None);
    };
    if packet.truncated {
        return Err(garbled());
    }
    Ok(Some((packet.bytes, packet.descriptors)))
}

/// Takes the next message of PID 1. With `wait` false, `None` when there is none.
pub fn receive(socket: BorrowedFd<'_>, wait: bool) -> io::Result<Option<FromInit>> {
    match receive_packet(socket, wait)? {
        Some((bytes, descriptors)) => parse(&bytes, descriptors).map(Some),
        None => Ok(None),
    }
}

fn parse(bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<FromInit> {
    let Some((tag, rest)) = bytes.split_first() else {
        return Ok(FromInit::Closed);
    };
    let parsed = match *tag {
        UNSHARED => Some(FromInit::Unshared),
        READY => parse_ready(rest, descriptors),
        STOPPED => Some(FromInit::Stopped),
        NOT_EXECUTED => {
            numbered(rest).map(|(number, errno)| FromInit::NotExecuted { number, errno })
        }
        EXECUTED => which(rest).map(|number| FromInit::Executed { number }),
        TERMINAL => which(rest)
            .zip(descriptors.into_iter().next())
            .map(|(number, controller)| FromInit::Terminal { number, controller }),
        EXITED => numbered(rest).map(|(number, status)| FromInit::Exited { number, status }),
        DIALLED => which(rest).map(|ticket| FromInit::Dialled {
            ticket,
            socket: descriptors.into_iter().next(),
        }),
        FAILED => parse_failure(rest),
        _ => None,
    };
    parsed.ok_or_else(garbled)
}

fn parse_ready(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<FromInit> {
    let has = *bytes.first()?;
    let mut descriptors = descriptors.into_iter();
    let (root, proc) = (descriptors.next()?, descriptors.next()?);
    let mut optional = |bit| match has & bit {
        0 => Some(None),
        // Announced, so it must be there.
        _ => descriptors.next().map(Some),
    };
    let (listener, terminal) = (optional(HAS_LISTENER)?, optional(HAS_TERMINAL)?);
    let (shared_memory, sockets) = (optional(HAS_SHARED_MEMORY)?, optional(HAS_SOCKETS)?);
    let (outgrown, resolver) = (optional(HAS_OUTGROWN)?, optional(HAS_RESOLVER)?);
    let mount_context = match has & HAS_MOUNT_CONTEXT {
        0 => None,
        _ => Some(MountContext {
            mounts: descriptors.next()?,
            storage: match has & HAS_STORAGE {
                0 => None,
                _ => Some(descriptors.next()?),
            },
            built: None,
            beside: None,
        }),
    };
    Some(FromInit::Ready(Ready {
        root,
        proc,
        listener,
        terminal,
        shared_memory,
        sockets,
        outgrown,
        mount_context,
        resolver,
        overlays: descriptors.collect(),
    }))
}

fn parse_failure(bytes: &[u8]) -> Option<FromInit> {
    let layer = Layer::ALL.get(usize::from(*bytes.first()?))?;
    let code = StartCode::ALL.get(usize::from(*bytes.get(1)?))?;
    let rest = bytes.get(2..)?;
    let errno = number(rest)?;
    Some(FromInit::Failed {
        code: *code,
        layer: *layer,
        errno,
        action: String::from_utf8_lossy(rest.get(4..)?).into_owned(),
    })
}

/// Which program a message is about.
fn which(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// Which program a message is about, and a number more.
fn numbered(bytes: &[u8]) -> Option<(u32, i32)> {
    Some((which(bytes)?, number(bytes.get(4..)?)?))
}

/// Sends a message to PID 1, or fails where it does not take it at once: the supervisor waits
/// for nobody.
pub fn tell_init(socket: BorrowedFd<'_>, message: &ToInit) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(16);
    let mut descriptors = Vec::new();
    match message {
        ToInit::Go => bytes.push(GO),
        ToInit::Permit => bytes.push(PERMIT),
        ToInit::Resume => bytes.push(RESUME),
        ToInit::Freeze => bytes.push(FREEZE),
        ToInit::Hold => bytes.push(HOLD),
        ToInit::Release => bytes.push(RELEASE),
        ToInit::Signal { number, signal } => {
            bytes.push(SIGNAL);
            bytes.extend(number.to_le_bytes());
            bytes.extend(signal.to_le_bytes());
        }
        ToInit::SignalAll(signal) => {
            bytes.push(SIGNAL_ALL);
            bytes.extend(signal.to_le_bytes());
        }
        ToInit::Exec(order) => {
            bytes.push(EXEC);
            bytes.extend(order.number.to_le_bytes());
            descriptors.extend(order.program.as_ref().map(AsFd::as_fd));
            if let Some(size) = order.terminal {
                bytes.extend(size.ws_row.to_le_bytes());
                bytes.extend(size.ws_col.to_le_bytes());
            }
            descriptors.extend(order.streams.iter().flatten().map(AsFd::as_fd));
        }
        ToInit::Dial { ticket, port, six } => {
            bytes.push(DIAL);
            bytes.extend(ticket.to_le_bytes());
            bytes.extend(port.to_le_bytes());
            bytes.push(u8::from(*six));
        }
        ToInit::Closed => return Ok(()),
    }
    send_with(socket, &bytes, &descriptors)
}

/// PID 1's side: waits for the next message.
pub fn hear_supervisor(socket: BorrowedFd<'_>) -> io::Result<ToInit> {
    let (bytes, descriptors) = receive_packet(socket, true)?.ok_or_else(garbled)?;
    let Some((tag, rest)) = bytes.split_first() else {
        return Ok(ToInit::Closed);
    };
    let parsed = match *tag {
        GO => Some(ToInit::Go),
        PERMIT => Some(ToInit::Permit),
        RESUME => Some(ToInit::Resume),
        FREEZE => Some(ToInit::Freeze),
        HOLD => Some(ToInit::Hold),
        RELEASE => Some(ToInit::Release),
        SIGNAL => numbered(rest).map(|(number, signal)| ToInit::Signal { number, signal }),
        SIGNAL_ALL => number(rest).map(ToInit::SignalAll),
        EXEC => parse_exec(rest, descriptors).map(ToInit::Exec),
        DIAL => parse_dial(rest),
        _ => None,
    };
    parsed.ok_or_else(garbled)
}

fn parse_dial(bytes: &[u8]) -> Option<ToInit> {
    Some(ToInit::Dial {
        ticket: which(bytes)?,
        port: u16::from_le_bytes(bytes.get(4..6)?.try_into().ok()?),
        six: *bytes.get(6)? != 0,
    })
}

fn parse_exec(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<ExecOrder> {
    let number = which(bytes)?;
    let short = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let terminal = short(4).zip(short(6)).map(|(ws_row, ws_col)| Winsize {
        ws_row,
        ws_col,
        ws_xpixel: 0,
        ws_ypixel: 0,
    });
    let mut descriptors = descriptors.into_iter();
    Some(ExecOrder {
        number,
        program: descriptors.next(),
        terminal,
        streams: descriptors.collect::<Vec<_>>().try_into().ok(),
    })
}

/// PID 1's side: says that its user namespace waits for its maps.
pub fn say_unshared(socket: BorrowedFd<'_>) -> io::Result<()> {
    send(socket, &[UNSHARED], SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The network helper's side: hands the network namespace to PID 1, through the
/// supervisor's end of the socket.
pub fn give_network(socket: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    send_with(socket, &[NETWORK], &[namespace])
}

/// PID 1's side: waits for its network namespace. `None` when the other end is gone.
pub fn take_network(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match receive_packet(socket, true)? {
        Some((bytes, descriptors)) if bytes == [NETWORK] => Ok(descriptors.into_iter().next()),
        _ => Ok(None),
    }
}

/// PID 1's side: says that every layer is in force, and hands over what the supervisor needs.
pub(crate) fn say_ready(socket: BorrowedFd<'_>, ready: &Ready) -> io::Result<()> {
    let mut has = 0;
    let mut descriptors = vec![ready.root.as_fd(), ready.proc.as_fd()];
    for (bit, descriptor) in [
        (HAS_LISTENER, &ready.listener),
        (HAS_TERMINAL, &ready.terminal),
        (HAS_SHARED_MEMORY, &ready.shared_memory),
        (HAS_SOCKETS, &ready.sockets),
        (HAS_OUTGROWN, &ready.outgrown),
        (HAS_RESOLVER, &ready.resolver),
    ] {
        if let Some(descriptor) = descriptor {
            has |= bit;
            descriptors.push(descriptor.as_fd());
        }
    }
    if let Some(mount_context) = &ready.mount_context {
        has |= HAS_MOUNT_CONTEXT;
        descriptors.push(mount_context.mounts.as_fd());
        if let Some(storage) = &mount_context.storage {
            has |= HAS_STORAGE;
            descriptors.push(storage.as_fd());
        }
    }
    if ready.overlays.len() <= MAX_OVERLAYS {
        descriptors.extend(ready.overlays.iter().map(AsFd::as_fd));
    }
    send_with(socket, &[READY, has], &descriptors)
}

/// PID 1's side: says that the command was stopped.
pub fn say_stopped(socket: BorrowedFd<'_>) -> io::Result<()> {
    send(socket, &[STOPPED], SendFlags::NOSIGNAL)?;
    Ok(())
}

fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ancillary_space(MAX_FDS)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// The message that a program cannot be executed, without the error number that ends it.
pub(crate) fn not_executed(number: u32) -> [u8; FAILURE] {
    let [a, b, c, d] = number.to_le_bytes();
    [NOT_EXECUTED, a, b, c, d]
}

/// PID 1's side: says why a program cannot be executed.
pub fn say_not_executed(socket: BorrowedFd<'_>, number: u32, errno: i32) -> io::Result<()> {
    let mut bytes = not_executed(number).to_vec();
    bytes.extend(errno.to_le_bytes());
    send(socket, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// PID 1's side: says that a program is being executed.
pub(crate) fn say_executed(socket: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    let [a, b, c, d] = number.to_le_bytes();
    send(socket, &[EXECUTED, a, b, c, d], SendFlags::NOSIGNAL)?;
    Ok(())
}

/// PID 1's side: hands the terminal of an exec over.
pub(crate) fn say_terminal(
    socket: BorrowedFd<'_>,
    number: u32,
    controller: BorrowedFd<'_>,
) -> io::Result<()> {
    let [a, b, c, d] = number.to_le_bytes();
    send_with(socket, &[TERMINAL, a, b, c, d], &[controller])
}

/// PID 1's side: hands over the socket of a connection that it began, if it could.
pub(crate) fn say_dialled(
    socket: BorrowedFd<'_>,
    ticket: u32,
    dialled: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let [a, b, c, d] = ticket.to_le_bytes();
    send_with(socket, &[DIALLED, a, b, c, d], dialled.as_slice())
}

/// PID 1's side: says how a program ended.
pub fn say_exited(socket: BorrowedFd<'_>, number: u32, status: i32) -> io::Result<()> {
    let mut bytes = vec![EXITED];
    bytes.extend(number.to_le_bytes());
    bytes.extend(status.to_le_bytes());
    send(socket, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// PID 1's side: says which layer failed.
pub fn say_failed(socket: BorrowedFd<'_>, error: &LayerError) -> io::Result<()> {
    let position = Layer::ALL.iter().position(|layer| *layer == error.layer);
    let errno = error.source.raw_os_error().unwrap_or(5);
    let code = StartCode::ALL.iter().position(|code| *code == error.code);
    let (layer, code) = (position.unwrap_or_default(), code.unwrap_or_default());
    let mut bytes = vec![FAILED, layer as u8, code as u8];
    bytes.extend(errno.to_le_bytes());
    let mut text = error.to_string();
    if error.source.raw_os_error().is_none() {
        text.push_str(": ");
        text.push_str(&error.source.to_string());
    }
    bytes.extend(text.bytes().take(MAX - 16));
    send(socket, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}
