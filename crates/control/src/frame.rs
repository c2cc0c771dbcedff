//! Encodes messages as packets and back: a version, a size limit, a body.
//!
//! ```text
//! bytes  0..2   "IC"
//!        2..4   version, little-endian
//!        4      0: the body follows; 1: the body is in the first descriptor, a sealed memfd
//!        5..8   zero
//!        8..    the body: JSON
//! ```
//!
//! Incoming packets are not trusted: no allocation depends on a length in a packet, and a packet
//! that cannot be parsed is an error that says why.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of the protocol. Both sides must have the same.
pub const VERSION: u16 = 1;
/// Longest body in a packet. What is longer goes into a memfd.
pub const MAX_INLINE: usize = 32 * 1024;
/// Longest body at all: more than a kernel takes as arguments and environment.
pub const MAX_BODY: usize = 8 * 1024 * 1024;
/// Bytes before the body.
pub const HEADER: usize = 8;
/// Most descriptors beside a message.
pub const MAX_DESCRIPTORS: usize = 16;

const MAGIC: [u8; 2] = *b"IC";

/// Why a packet is not a valid message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It does not begin as messages of this protocol do.
    #[error("not a message of Ironcage's control protocol")]
    NotOurs,
    /// The other side speaks another version.
    #[error(
        "the peer uses version {theirs} of the control protocol, this program version {VERSION}; use the ironcage that started the cage, or restart the cage"
    )]
    Version {
        /// The other side's version.
        theirs: u16,
    },
    /// It is longer than messages may be.
    #[error("the message is longer than {MAX_BODY} bytes")]
    TooLong,
    /// The header says something that this version does not know.
    #[error("the message has a header that this version does not support")]
    Header,
    /// Its body was announced in a descriptor that is not there, not a memfd, or still open to
    /// changes.
    #[error("the body of the message is not in a sealed memfd")]
    Unsealed,
    /// It has more descriptors than messages have.
    #[error("the message has more than {MAX_DESCRIPTORS} descriptors")]
    Descriptors,
    /// Its body is not what it should be.
    #[error("cannot parse the message: {0}")]
    Body(#[from] serde_json::Error),
}

/// Where the body of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// In the packet.
    Inline,
    /// In the first descriptor.
    Memory,
}

/// The body of a message.
pub fn body<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_BODY {
        return Err(FrameError::TooLong);
    }
    Ok(body)
}

/// The header of a message.
pub fn header(placement: Placement) -> [u8; HEADER] {
    let [low, high] = VERSION.to_le_bytes();
    let place = u8::from(placement == Placement::Memory);
    [MAGIC[0], MAGIC[1], low, high, place, 0, 0, 0]
}

/// Takes a packet apart: where its body is, and the part of it that is here.
pub fn split(packet: &[u8]) -> Result<(Placement, &[u8]), FrameError> {
    let (header, body) = packet
        .split_first_chunk::<HEADER>()
        .ok_or(FrameError::NotOurs)?;
    let [m0, m1, low, high, place, rest @ ..] = *header;
    if [m0, m1] != MAGIC {
        return Err(FrameError::NotOurs);
    }
    let theirs = u16::from_le_bytes([low, high]);
    if theirs != VERSION {
        return Err(FrameError::Version { theirs });
    }
    let placement = match place {
        0 => Placement::Inline,
        1 => Placement::Memory,
        _ => return Err(FrameError::Header),
    };
    if rest != [0; 3] || (placement == Placement::Memory && !body.is_empty()) {
        return Err(FrameError::Header);
    }
    if body.len() > MAX_INLINE {
        return Err(FrameError::TooLong);
    }
    Ok((placement, body))
}

/// Understands a body.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    if body.len() > MAX_BODY {
        return Err(FrameError::TooLong);
    }
    Ok(serde_json::from_slice(body)?)
}
