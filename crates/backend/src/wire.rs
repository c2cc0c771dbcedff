//! The few messages between supervisor and PID 1, one packet each.
//!
//! PID 1 is Ironcage's own code but lives in the agent's namespaces; the supervisor parses
//! what comes from it as if the agent had sent it: bounded, checked, no trust in lengths.

use ironcage_layers::LayerError;
use ironcage_model::Layer;
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// First byte of the message that the child sends itself when execve fails.
pub const NOT_EXECUTED: u8 = b'n';
const UNSHARED: u8 = b'u';
const READY: u8 = b'r';
const EXITED: u8 = b'x';
const FAILED: u8 = b'f';
const GO: u8 = b'g';
const NETWORK: u8 = b'w';
const RESUME: u8 = b'c';
const FREEZE: u8 = b'z';
const STOPPED: u8 = b't';
/// Which of the optional descriptors a ready message has.
const HAS_LISTENER: u8 = 1;
const HAS_TERMINAL: u8 = 2;
const HAS_SHARED_MEMORY: u8 = 4;
const SIGNAL: u8 = b's';

/// Longest message.
const MAX: usize = 4096;
/// Most descriptors in a message.
const MAX_FDS: usize = 5;

/// What PID 1 says.
#[derive(Debug)]
pub enum FromInit {
    /// Its user namespace waits for its maps.
    Unshared,
    /// Every layer is in force; the command is about to start.
    Ready(Ready),
    /// execve failed with this error number.
    NotExecuted(i32),
    /// The command was stopped, by its terminal or by somebody inside.
    Stopped,
    /// The command ended with this wait status.
    Exited(i32),
    /// A layer could not be applied.
    Failed {
        /// Which.
        layer: Layer,
        /// The kernel's answer.
        errno: i32,
        /// What it was doing.
        action: String,
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
}

/// What the supervisor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToInit {
    /// Go on.
    Go,
    /// Send this signal to the command.
    Signal(i32),
    /// Stop everything.
    Freeze,
    /// Let what was stopped go on.
    Resume,
    /// The other end is gone.
    Closed,
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
    let mut buffer = [0_u8; MAX];
    let mut space = [MaybeUninit::uninit(); ancillary_space()];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = if wait {
        RecvFlags::CMSG_CLOEXEC
    } else {
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT
    };
    let message = loop {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        match recvmsg(socket, &mut slices, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET) => return Ok(Some((Vec::new(), Vec::new()))),
            other => break other?,
        }
    };
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(garbled());
    }
    let descriptors = ancillary
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let bytes = buffer.get(..message.bytes).unwrap_or_default().to_vec();
    Ok(Some((bytes, descriptors)))
}

/// Takes the next message of PID 1. With `wait` false, `None` when there is none.
pub fn receive(socket: BorrowedFd<'_>, wait: bool) -> io::Result<Option<FromInit>> {
    let Some((bytes, descriptors)) = receive_packet(socket, wait)? else {
        return Ok(None);
    };
    let Some((tag, rest)) = bytes.split_first() else {
        return Ok(Some(FromInit::Closed));
    };
    let parsed = match *tag {
        UNSHARED => Some(FromInit::Unshared),
        READY => parse_ready(rest, descriptors),
        STOPPED => Some(FromInit::Stopped),
        NOT_EXECUTED => number(rest).map(FromInit::NotExecuted),
        EXITED => number(rest).map(FromInit::Exited),
        FAILED => parse_failure(rest),
        _ => None,
    };
    parsed.map(Some).ok_or_else(garbled)
}

const fn ancillary_space() -> usize {
    // One header and room for the descriptors; generous, the kernel cuts what does not fit.
    16 + 8 + MAX_FDS * 8
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
    Some(FromInit::Ready(Ready {
        root,
        proc,
        listener: optional(HAS_LISTENER)?,
        terminal: optional(HAS_TERMINAL)?,
        shared_memory: optional(HAS_SHARED_MEMORY)?,
    }))
}

fn parse_failure(bytes: &[u8]) -> Option<FromInit> {
    let layer = Layer::ALL.get(usize::from(*bytes.first()?))?;
    let rest = bytes.get(1..)?;
    let errno = number(rest)?;
    Some(FromInit::Failed {
        layer: *layer,
        errno,
        action: String::from_utf8_lossy(rest.get(4..)?).into_owned(),
    })
}

/// Sends a message to PID 1.
pub fn tell_init(socket: BorrowedFd<'_>, message: ToInit) -> io::Result<()> {
    let mut bytes = vec![match message {
        ToInit::Go => GO,
        ToInit::Signal(_) => SIGNAL,
        ToInit::Resume => RESUME,
        ToInit::Freeze => FREEZE,
        ToInit::Closed => return Ok(()),
    }];
    if let ToInit::Signal(signal) = message {
        bytes.extend(signal.to_le_bytes());
    }
    send(socket, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// PID 1's side: waits for the next message.
pub fn hear_supervisor(socket: BorrowedFd<'_>) -> io::Result<ToInit> {
    let mut buffer = [0_u8; 8];
    let read = loop {
        match ironcage_sys::rustix::io::read(socket, &mut buffer) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    match buffer.get(..read).and_then(<[u8]>::split_first) {
        None => Ok(ToInit::Closed),
        Some((&GO, _)) => Ok(ToInit::Go),
        Some((&RESUME, _)) => Ok(ToInit::Resume),
        Some((&FREEZE, _)) => Ok(ToInit::Freeze),
        Some((&SIGNAL, rest)) => number(rest).map(ToInit::Signal).ok_or_else(garbled),
        Some(_) => Err(garbled()),
    }
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
pub fn say_ready(
    socket: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    proc: BorrowedFd<'_>,
    listener: Option<BorrowedFd<'_>>,
    terminal: Option<BorrowedFd<'_>>,
    shared_memory: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut has = 0;
    let mut descriptors = vec![root, proc];
    for (bit, descriptor) in [
        (HAS_LISTENER, listener),
        (HAS_TERMINAL, terminal),
        (HAS_SHARED_MEMORY, shared_memory),
    ] {
        if let Some(descriptor) = descriptor {
            has |= bit;
            descriptors.push(descriptor);
        }
    }
    send_with(socket, &[READY, has], &descriptors)
}

/// PID 1's side: says that the command was stopped.
pub fn say_stopped(socket: BorrowedFd<'_>) -> io::Result<()> {
    send(socket, &[STOPPED], SendFlags::NOSIGNAL)?;
    Ok(())
}

fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ancillary_space()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// PID 1's side: says why the command cannot be executed.
pub fn say_not_executed(socket: BorrowedFd<'_>, errno: i32) -> io::Result<()> {
    let [a, b, c, d] = errno.to_le_bytes();
    send(socket, &[NOT_EXECUTED, a, b, c, d], SendFlags::NOSIGNAL)?;
    Ok(())
}

/// PID 1's side: says how the command ended.
pub fn say_exited(socket: BorrowedFd<'_>, status: i32) -> io::Result<()> {
    let [a, b, c, d] = status.to_le_bytes();
    send(socket, &[EXITED, a, b, c, d], SendFlags::NOSIGNAL)?;
    Ok(())
}

/// PID 1's side: says which layer failed.
pub fn say_failed(socket: BorrowedFd<'_>, error: &LayerError) -> io::Result<()> {
    let position = Layer::ALL.iter().position(|layer| *layer == error.layer);
    let errno = error.source.raw_os_error().unwrap_or(5);
    let mut bytes = vec![FAILED, position.unwrap_or_default() as u8];
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
