//! The user namespace above a cage's, in which the caller has power over the cage and nobody in
//! the cage has any.

use ironcage_plan::{IdMap, Plan};
use ironcage_sys::namespace;
use ironcage_sys::rustix::process::{Signal, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

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
