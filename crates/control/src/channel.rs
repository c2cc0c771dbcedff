//! One end of a connection: packets with descriptors, never waiting unless told to.

use crate::frame::{self, FrameError, HEADER, MAX_BODY, MAX_DESCRIPTORS, MAX_INLINE, Placement};
use ironcage_sys::rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use ironcage_sys::rustix::io::{Errno, pread, write};
use ironcage_sys::rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Room for one descriptor more than messages may have, so that too many are noticed.
const ANCILLARY: usize = 16 + 8 + (MAX_DESCRIPTORS + 2) * 8;

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// What came in.
#[derive(Debug)]
pub enum Packet<T> {
    /// A message and its descriptors.
    Message(T, Vec<OwnedFd>),
    /// Something that is no message. The connection cannot be trusted to make sense again.
    Garbled(FrameError),
    /// The other end is gone.
    Closed,
}

impl Channel {
    /// Takes a connected socket over.
    pub fn new(socket: OwnedFd) -> Self {
        Channel { socket }
    }

    /// Sends a message, or fails where the other end does not take it at once.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let body = frame::body(message).map_err(io::Error::other)?;
        if body.len() <= MAX_INLINE {
            let header = frame::header(Placement::Inline);
            return self.send_packet(&[&header, &body], descriptors);
        }
        let memory = sealed(&body)?;
        let mut all = vec![memory.as_fd()];
        all.extend_from_slice(descriptors);
        self.send_packet(&[&frame::header(Placement::Memory)], &all)
    }

    fn send_packet(&self, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other(FrameError::Descriptors));
        }
        let mut space = [MaybeUninit::uninit(); ANCILLARY];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::Error::other(FrameError::Descriptors));
        }
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.socket, &slices, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Takes the next message. `None` when there is none and `wait` is false.
    pub fn receive<T: DeserializeOwned>(&self, wait: bool) -> io::Result<Option<Packet<T>>> {
        let mut buffer = [0_u8; HEADER + MAX_INLINE];
        let mut space = [MaybeUninit::uninit(); ANCILLARY];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = match wait {
            true => RecvFlags::CMSG_CLOEXEC,
            false => RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        };
        let mut cut_off = false;
        let message = loop {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            match recvmsg(&self.socket, &mut slices, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // The other end left what we sent unread. This is told once, and before what it
                // had said itself.
                Err(Errno::CONNRESET) if !cut_off => cut_off = true,
                Err(Errno::CONNRESET) => return Ok(Some(Packet::Closed)),
                other => break other?,
            }
        };
        let mut descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if message.bytes == 0 && descriptors.is_empty() {
            return Ok(Some(Packet::Closed));
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Ok(Some(Packet::Garbled(FrameError::TooLong)));
        }
        if descriptors.len() > MAX_DESCRIPTORS {
            return Ok(Some(Packet::Garbled(FrameError::Descriptors)));
        }
        let packet = buffer.get(..message.bytes).unwrap_or_default();
        Ok(Some(match understand(packet, &mut descriptors) {
            Ok(message) => Packet::Message(message, descriptors),
            Err(error) => Packet::Garbled(error),
        }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn understand<T: DeserializeOwned>(
    packet: &[u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<T, FrameError> {
    match frame::split(packet)? {
        (Placement::Inline, body) => frame::parse(body),
        (Placement::Memory, _) => {
            if descriptors.is_empty() {
                return Err(FrameError::Unsealed);
            }
            let memory = descriptors.remove(0);
            frame::parse(&contents(memory.as_fd())?)
        }
    }
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);

/// A memfd with these bytes, which nobody can change any more.
fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("ironcage-message", flags)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = write(&memory, rest)?;
        rest = rest.get(count..).unwrap_or_default();
    }
    fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// What is in a sealed memfd. One that is not sealed could change, or be cut, while it is read.
fn contents(memory: BorrowedFd<'_>) -> Result<Vec<u8>, FrameError> {
    let seals = fcntl_get_seals(memory).map_err(|_| FrameError::Unsealed)?;
    if !seals.contains(SEALS) {
        return Err(FrameError::Unsealed);
    }
    let stat = fstat(memory).map_err(|_| FrameError::Unsealed)?;
    let size = usize::try_from(stat.st_size).map_err(|_| FrameError::TooLong)?;
    if size > MAX_BODY {
        return Err(FrameError::TooLong);
    }
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(memory, rest, filled as u64) {
            Ok(0) => return Err(FrameError::Unsealed),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(_) => return Err(FrameError::Unsealed),
        }
    }
    Ok(bytes)
}

/// Two ends that are joined, for tests and for who has both sides.
pub fn pair() -> io::Result<(Channel, Channel)> {
    let (one, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((Channel::new(one), Channel::new(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};

    fn unsealed_memory(bytes: &[u8]) -> OwnedFd {
        let memory = memfd_create("m", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        write(&memory, bytes).unwrap();
        memory
    }

    fn garbled(end: &Channel) -> FrameError {
        match end.receive::<Request>(false).unwrap() {
            Some(Packet::Garbled(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_long_message_goes_through_a_sealed_memfd_and_descriptors_stay_in_order() {
        let (one, other) = pair().unwrap();
        let long = crate::ExecRequest {
            argv: vec![crate::Bytes(vec![b'x'; 300_000]), crate::Bytes(vec![0xff])],
            env: vec![],
            cwd: None,
            streams: crate::ExecStreams::Detached,
            scope: None,
        };
        let (_, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let request = Request::Exec(long);
        one.send(&request, &[sink.as_fd()]).unwrap();
        match other.receive::<Request>(false).unwrap() {
            Some(Packet::Message(got, fds)) => {
                assert_eq!(got, request);
                assert_eq!(fds.len(), 1);
                // Only a pipe takes a packet mode question; a memfd would not be one.
                assert!(ironcage_sys::rustix::pipe::fcntl_getpipe_size(&fds[0]).is_ok());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_body_that_could_still_change_is_refused_and_a_sealed_one_is_taken() {
        let (one, other) = pair().unwrap();
        let header = frame::header(Placement::Memory);
        let body = frame::body(&Request::Describe).unwrap();
        let open = unsealed_memory(&body);
        one.send_packet(&[&header], &[open.as_fd()]).unwrap();
        assert!(matches!(garbled(&other), FrameError::Unsealed));
        // Announced, but not there; or there, but something else.
        one.send_packet(&[&header], &[]).unwrap();
        assert!(matches!(garbled(&other), FrameError::Unsealed));
        let (source, _sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        one.send_packet(&[&header], &[source.as_fd()]).unwrap();
        assert!(matches!(garbled(&other), FrameError::Unsealed));
        let closed = sealed(&body).unwrap();
        one.send_packet(&[&header], &[closed.as_fd()]).unwrap();
        let taken = other.receive::<Request>(false).unwrap();
        assert!(matches!(taken, Some(Packet::Message(Request::Describe, _))));
    }

    #[test]
    fn too_many_descriptors_and_too_long_packets_are_told_apart_from_the_end() {
        let (one, other) = pair().unwrap();
        assert!(other.receive::<Request>(false).unwrap().is_none());
        let long = vec![b' '; MAX_INLINE + 1];
        let header = frame::header(Placement::Inline);
        one.send_packet(&[&header, &long], &[]).unwrap();
        assert!(matches!(garbled(&other), FrameError::TooLong));
        let sparse = unsealed_memory(b"");
        ironcage_sys::rustix::fs::ftruncate(&sparse, MAX_BODY as u64 + 1).unwrap();
        fcntl_add_seals(&sparse, SEALS).unwrap();
        let header = frame::header(Placement::Memory);
        one.send_packet(&[&header], &[sparse.as_fd()]).unwrap();
        assert!(matches!(garbled(&other), FrameError::TooLong));
        drop(one);
        let end = other.receive::<Request>(false).unwrap();
        assert!(matches!(end, Some(Packet::Closed)));
    }

    #[test]
    fn who_does_not_read_makes_sending_fail_instead_of_wait() {
        let (one, _other) = pair().unwrap();
        let mut sent = 0;
        while one.send(&Request::Describe, &[]).is_ok() {
            sent += 1;
            assert!(sent < 1_000_000, "sending never fails");
        }
        assert!(sent > 0);
    }
}
