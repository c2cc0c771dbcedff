//! The messages of a prepared cage: that it waits, and what makes it a tenant's.

use super::{FromInit, garbled, parse, receive_packet, send_with, which};
use ironcage_plan::Owner;
use ironcage_sys::rustix::net::{SendFlags, send};
use ironcage_sys::rustix::termios::Winsize;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const PREPARED: u8 = b'q';
const ADOPT: u8 = b'b';

/// What makes a prepared cage a tenant's.
#[derive(Debug)]
pub(crate) struct Adoption<F> {
    /// The plan's own part, in a memfd.
    pub(crate) own: F,
    /// The command's streams, if they are pipes.
    pub(crate) streams: Option<[F; 3]>,
    /// The size of its terminal, if it gets one.
    pub(crate) terminal: Option<Winsize>,
    /// Files by which PID 1 enters its cgroups.
    pub(crate) cgroup_entries: Vec<F>,
    /// Namespaces that map owners on disk to the agent.
    pub(crate) owner_maps: Vec<(Owner, F)>,
}

/// Hands a prepared cage what makes it a tenant's.
pub(crate) fn tell_adopted(
    socket: BorrowedFd<'_>,
    adoption: &Adoption<BorrowedFd<'_>>,
) -> io::Result<()> {
    let size = adoption
        .terminal
        .map_or((0, 0), |size| (size.ws_row, size.ws_col));
    let entries = u8::try_from(adoption.cgroup_entries.len()).map_err(io::Error::other)?;
    let mut bytes = vec![ADOPT, u8::from(adoption.streams.is_some()), entries];
    bytes.extend(size.0.to_le_bytes());
    bytes.extend(size.1.to_le_bytes());
    let mut descriptors = vec![adoption.own];
    descriptors.extend(adoption.streams.iter().flatten());
    descriptors.extend(&adoption.cgroup_entries);
    for (owner, namespace) in &adoption.owner_maps {
        bytes.extend(owner.uid.to_le_bytes());
        bytes.extend(owner.gid.to_le_bytes());
        bytes.push(owner.all.into());
        descriptors.push(*namespace);
    }
    send_with(socket, &bytes, &descriptors)
}

/// PID 1's side, in a prepared cage: waits until somebody adopts it. `None` when the other end is
/// gone.
pub(crate) fn hear_adopted(socket: BorrowedFd<'_>) -> io::Result<Option<Adoption<OwnedFd>>> {
    let (bytes, descriptors) = receive_packet(socket, true)?.ok_or_else(garbled)?;
    match bytes.split_first() {
        None => Ok(None),
        Some((&ADOPT, rest)) => {
            let parsed = parse_adoption(rest, descriptors);
            parsed.map(Some).ok_or_else(garbled)
        }
        Some(_) => Err(garbled()),
    }
}

fn parse_adoption(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Adoption<OwnedFd>> {
    let (head, owners) = bytes.split_first_chunk::<6>()?;
    let [pipes, entries, row_low, row_high, column_low, column_high] = *head;
    let mut descriptors = descriptors.into_iter();
    let own = descriptors.next()?;
    let (streams, terminal) = match pipes {
        0 => {
            let size = Winsize {
                ws_row: u16::from_le_bytes([row_low, row_high]),
                ws_col: u16::from_le_bytes([column_low, column_high]),
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            (None, Some(size))
        }
        _ => {
            let three = [
                descriptors.next()?,
                descriptors.next()?,
                descriptors.next()?,
            ];
            (Some(three), None)
        }
    };
    let cgroup_entries: Vec<OwnedFd> = descriptors.by_ref().take(entries.into()).collect();
    let owner = |chunk: &[u8]| {
        Some(Owner {
            uid: which(chunk)?,
            gid: which(chunk.get(4..)?)?,
            all: *chunk.get(8)? != 0,
        })
    };
    let owners: Vec<Owner> = owners.chunks(9).map(owner).collect::<Option<_>>()?;
    let namespaces: Vec<OwnedFd> = descriptors.collect();
    if cgroup_entries.len() != usize::from(entries) || namespaces.len() != owners.len() {
        return None;
    }
    Some(Adoption {
        own,
        streams,
        terminal,
        cgroup_entries,
        owner_maps: owners.into_iter().zip(namespaces).collect(),
    })
}

/// PID 1's side, in a prepared cage: says that it waits.
pub(crate) fn say_prepared(socket: BorrowedFd<'_>) -> io::Result<()> {
    send(socket, &[PREPARED], SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits until PID 1 of a prepared cage has carried out the static part; what it said instead,
/// if it has not.
pub(crate) fn hear_prepared(socket: BorrowedFd<'_>) -> io::Result<Option<FromInit>> {
    match receive_packet(socket, true)? {
        Some((bytes, _)) if bytes == [PREPARED] => Ok(None),
        Some((bytes, descriptors)) => parse(&bytes, descriptors).map(Some),
        None => Err(garbled()),
    }
}
