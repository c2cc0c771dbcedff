//! Netlink messages: encoded by hand, sent in one go, each answered by the kernel.
//!
//! Only what the network namespace of a cage needs. Lengths are written after the fact, so
//! that no caller counts bytes.

use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use linux_raw_sys::netlink;
use std::io;
use std::os::fd::OwnedFd;

/// Flags of a request.
pub(super) const REQUEST: u16 = netlink::NLM_F_REQUEST as u16;
pub(super) const ACK: u16 = netlink::NLM_F_ACK as u16;
pub(super) const EXCLUSIVE: u16 = netlink::NLM_F_EXCL as u16;
pub(super) const CREATE: u16 = netlink::NLM_F_CREATE as u16;
pub(super) const APPEND: u16 = netlink::NLM_F_APPEND as u16;

const NESTED: u16 = netlink::NLA_F_NESTED as u16;
/// Type of the kernel's answer to a request.
const ERROR: u16 = netlink::NLMSG_ERROR as u16;
/// Length of a message's header.
const HEADER: usize = 16;

/// Requests in the making.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    /// Sequence numbers that the kernel is to answer.
    awaited: Vec<u32>,
}

impl Batch {
    /// One request. `body` writes what follows the header.
    pub(super) fn message(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Body)) -> u32 {
        self.sequence += 1;
        let mut inner = Body::default();
        body(&mut inner);
        let length = (HEADER + inner.0.len()) as u32;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(flags.to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(inner.0);
        if flags & ACK != 0 {
            self.awaited.push(self.sequence);
        }
        self.sequence
    }

    /// Sends all of it and waits for the answers. An error of a request whose number is in
    /// `optional` is passed over; the first other one ends the wait.
    pub(super) fn send(self, protocol: Option<Protocol>, optional: &[u32]) -> io::Result<()> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        let sent = send(&socket, &self.bytes, SendFlags::empty())?;
        if sent != self.bytes.len() {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
        self.hear(&socket, optional)
    }

    /// All requests as they would be sent.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn hear(mut self, socket: &OwnedFd, optional: &[u32]) -> io::Result<()> {
        let mut buffer = [0_u8; 16384];
        while !self.awaited.is_empty() {
            let length = match recv(socket, &mut buffer, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for (sequence, errno) in answers(buffer.get(..length).unwrap_or_default()) {
                if errno != 0 && !optional.contains(&sequence) {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                self.awaited.retain(|awaited| *awaited != sequence);
            }
        }
        Ok(())
    }
}

/// Sequence number and error number of every answer in a packet of the kernel's.
fn answers(mut packet: &[u8]) -> Vec<(u32, i32)> {
    let mut found = Vec::new();
    loop {
        let word = |at: usize| {
            let bytes = packet.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (Some(length), Some(kind), Some(sequence)) = (word(0), word(4), word(8)) else {
            return found;
        };
        if kind as u16 == ERROR
            && let Some(code) = word(HEADER)
        {
            found.push((sequence, (code as i32).wrapping_neg()));
        }
        let next = (length as usize).max(HEADER).next_multiple_of(4);
        packet = packet.get(next..).unwrap_or_default();
    }
}

/// What follows a header: fields and attributes.
#[derive(Debug, Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// One attribute that holds a text with its NUL.
    pub(super) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// One attribute that holds a number in network order.
    pub(super) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// One attribute that holds others.
    pub(super) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Body)) -> &mut Self {
        let mut inner = Body::default();
        body(&mut inner);
        self.attribute(kind | NESTED, &inner.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_their_lengths_are_not() {
        let mut body = Body::default();
        body.text(1, "abc").attribute(2, &[7]);
        assert_eq!(
            body.0,
            [8, 0, 1, 0, b'a', b'b', b'c', 0, 5, 0, 2, 0, 7, 0, 0, 0]
        );
        let mut outer = Body::default();
        outer.nest(3, |inner| {
            inner.number(1, 0x0102_0304);
        });
        assert_eq!(outer.0, [12, 0, 3, 0x80, 8, 0, 1, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_message_says_its_own_length_and_who_is_to_be_answered() {
        let mut batch = Batch::default();
        batch.message(16, REQUEST | ACK, |body| {
            body.raw(&[0; 4]);
        });
        batch.message(17, REQUEST, |_| {});
        assert_eq!(batch.bytes.len(), 20 + 16);
        assert_eq!(batch.bytes[..8], [20, 0, 0, 0, 16, 0, 5, 0]);
        assert_eq!(batch.awaited, [1]);
    }

    #[test]
    fn answers_are_read_and_garbage_is_not() {
        let mut packet = Vec::new();
        for (sequence, code) in [(4_u32, 0_i32), (5, -2)] {
            packet.extend(36_u32.to_ne_bytes());
            packet.extend(ERROR.to_ne_bytes());
            packet.extend([0; 2]);
            packet.extend(sequence.to_ne_bytes());
            packet.extend([0; 4]);
            packet.extend(code.to_ne_bytes());
            packet.extend([0; 16]);
        }
        assert_eq!(answers(&packet), [(4, 0), (5, 2)]);
        assert_eq!(answers(&packet[..50]), [(4, 0)]);
        assert!(answers(&[0; 64]).is_empty());
        assert!(answers(&[]).is_empty());
    }
}
