//! The user namespace above a cage's, in which the caller has power over the cage and nobody in
//! the cage has any.

use ironcage_backend::ids::Reaped;
use ironcage_control::{Channel, Packet, pair};
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork};
use ironcage_sys::namespace;
use ironcage_sys::rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Moves this process there, by a mount namespace of the cage's own. Root is above it already.
pub(crate) fn enter(plan: &Plan, mounts: BorrowedFd<'_>) -> io::Result<()> {
    if matches!(plan.identity.map, IdMap::Range { .. }) {
        return Ok(());
    }
    let inner = namespace::owner(mounts)?;
    let outer = namespace::parent(inner.as_fd())?;
    move_into_link_name_space(outer.as_fd(), Some(LinkNameSpaceType::User))?;
    // A change of credentials takes it away.
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Has something done by a short-lived process that may go above a cage, and takes what it says.
/// It ends with the caller.
///
/// Preconditions: the calling process has one thread.
pub(crate) fn ask<T: DeserializeOwned>(
    work: impl FnOnce(&Channel) -> io::Result<()>,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let (ours, theirs) = pair()?;
    let parent = getpid();
    match fork(Namespaces::NONE, None)? {
        Forked::Child => {
            drop(ours);
            let tethered = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            if !tethered || getppid() != Some(parent) {
                exit_now(1);
            }
            exit_now(i32::from(work(&theirs).is_err()))
        }
        Forked::Parent { pidfd, .. } => {
            drop(theirs);
            let _process = Reaped::new(pidfd);
            match ours.receive(true)? {
                Some(Packet::Message(said, descriptors)) => Ok((said, descriptors)),
                Some(Packet::Garbled(_) | Packet::Closed) | None => {
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
            }
        }
    }
}
