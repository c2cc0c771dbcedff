//! Input of the request reader from the cage: bytes, and descriptors beside them.

use ironcage_sys::rustix::fs::{FileType, fstat};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use ironcage_sys::rustix::pipe::{PipeFlags, pipe_with};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Descriptors that may come with a line.
pub(super) const MOST_GIVEN: usize = 3;
/// Room for one more, so that too many are noticed.
const ANCILLARY: usize = 16 + 8 + (MOST_GIVEN + 1) * 8;

/// Takes bytes, and descriptors that come with them.
pub(super) fn receive(
    socket: &OwnedFd,
    room: &mut [u8],
    given: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut slices = [IoSliceMut::new(room)];
    let message = recvmsg(socket, &mut slices, &mut ancillary, flags)?;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            given.extend(descriptors);
        }
    }
    Ok(message.bytes)
}

/// Whether a descriptor is an end of a pipe without a name: one with a name lies in a mount, which
/// it would hold.
pub(super) fn is_pipe(descriptor: &OwnedFd) -> bool {
    let Ok((own, _)) = pipe_with(PipeFlags::CLOEXEC) else {
        return false;
    };
    match (fstat(descriptor), fstat(&own)) {
        (Ok(given), Ok(own)) => {
            FileType::from_raw_mode(given.st_mode) == FileType::Fifo && given.st_dev == own.st_dev
        }
        _ => false,
    }
}
