//! Packets with descriptors in them, as they come from a socket.
//!
//! Knows nothing of what they say. The content of a packet is its sender's word: a reader gives the
//! longest that it expects, and looks at whether the packet was whole.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What came in one piece.
#[derive(Debug, Default)]
pub struct Packet {
    /// Its bytes; none when the other end is gone.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it, closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether it was longer than the reader expected.
    pub truncated: bool,
}

/// Room for headers and this many descriptors; the kernel cuts what does not fit.
pub const fn ancillary_space(descriptors: usize) -> usize {
    64 + descriptors * 8
}

/// Sends bytes with a descriptor beside them, if that goes at once and whole.
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut space = vec![MaybeUninit::uninit(); ancillary_space(1)];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Takes the next packet of at most so many bytes and descriptors. `None` when there is none and
/// `wait` is false.
pub fn receive(
    socket: BorrowedFd<'_>,
    wait: bool,
    longest: usize,
    descriptors: usize,
) -> io::Result<Option<Packet>> {
    let mut buffer = vec![0_u8; longest];
    let mut space = vec![MaybeUninit::uninit(); ancillary_space(descriptors)];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = if wait {
        RecvFlags::CMSG_CLOEXEC
    } else {
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT
    };
    let mut cut_off = false;
    let message = loop {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        match recvmsg(socket, &mut slices, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            // The peer is gone and had not read all: told once, before what it said last.
            Err(Errno::CONNRESET) if !cut_off => cut_off = true,
            Err(Errno::CONNRESET) => return Ok(Some(Packet::default())),
            other => break other?,
        }
    };
    let descriptors = ancillary
        .drain()
        .filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    buffer.truncate(message.bytes);
    Ok(Some(Packet {
        bytes: buffer,
        descriptors,
        truncated: message.flags.contains(ReturnFlags::TRUNC),
    }))
}
