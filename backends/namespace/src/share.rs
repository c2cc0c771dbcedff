//! The part of a cage's view that a scope has too: clones of its mounts, with all that is mounted
//! in them, made by a short-lived process that goes into the mount namespace in which the cage was
//! built. Leases of the cage are mounted in its own, so that no clone has one.
//!
//! Without root it first enters the user namespace above the cage's, in which the caller may
//! mount; it never enters the cage's own.

use crate::outer;
use ironcage_backend::ids::Reaped;
use ironcage_backend::{Sibling, StartError};
use ironcage_control::{Channel, Packet, pair};
use ironcage_layers::live::clone_part;
use ironcage_layers::view::Shared;
use ironcage_model::Layer;
use ironcage_plan::{Access, Plan, ViewOp};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork, unshare};
use ironcage_sys::mount::{AttributeChange, MountAttributes, open_below, set_attributes};
use ironcage_sys::rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, open, statx};
use ironcage_sys::rustix::io::Errno;
use ironcage_sys::rustix::mount::{OpenTreeFlags, open_tree};
use ironcage_sys::rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What the process says of one place; the tree is beside it. Else the kernel's answer.
type CloneReply = Result<(), i32>;

/// Clones the shared part of a cage's view.
///
/// Preconditions: the calling process has one thread.
pub(crate) fn trees(plan: &Plan, sibling: &Sibling) -> Result<(Vec<Shared>, Reaped), StartError> {
    let places: Vec<(&Path, bool)> = plan
        .shared_places()
        .into_iter()
        .map(|place| (place, is_read_only(plan, place)))
        .collect();
    let (ours, theirs) = pair().map_err(StartError::Channel)?;
    let parent = getpid();
    match fork(Namespaces::NONE, None).map_err(StartError::Fork)? {
        Forked::Child => {
            drop(ours);
            let ready = set_parent_process_death_signal(Some(Signal::KILL)).is_ok()
                && getppid() == Some(parent);
            if !ready {
                exit_now(1);
            }
            let told = hand_over(&theirs, &places, plan, sibling);
            exit_now(i32::from(told.is_err()))
        }
        Forked::Parent { pidfd, .. } => {
            drop(theirs);
            // With it goes a mount namespace, for which nobody has to wait.
            let process = Reaped::new(pidfd);
            let shared: Result<_, _> = places.iter().map(|(place, _)| take(&ours, place)).collect();
            Ok((shared?, process))
        }
    }
}

/// Whether the plan shows a place only: a child may have less of it than its parent.
fn is_read_only(plan: &Plan, place: &Path) -> bool {
    plan.view.iter().any(|item| match &item.what {
        ViewOp::Bind { target, access, .. } => target == place && *access == Access::Read,
        _ => false,
    })
}

/// Clones a part of a locked view of the cage's, where that was built and is not locked.
///
/// Preconditions: the calling process has one thread.
pub(crate) fn part(plan: &Plan, sibling: &Sibling, path: &Path) -> io::Result<OwnedFd> {
    let built = sibling.built.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    let (told, descriptors) = outer::ask::<CloneReply>(|asker| {
        match clone_where_built(plan, sibling, built.as_fd(), path) {
            Ok(tree) => asker.send(&CloneReply::Ok(()), &[tree.as_fd()]),
            Err(error) => asker.send(&CloneReply::Err(number(&error)), &[]),
        }
    })?;
    told.map_err(io::Error::from_raw_os_error)?;
    let tree = descriptors.into_iter().next();
    tree.ok_or(io::ErrorKind::UnexpectedEof.into())
}

fn clone_where_built(
    plan: &Plan,
    sibling: &Sibling,
    built: BorrowedFd<'_>,
    path: &Path,
) -> io::Result<OwnedFd> {
    let root = enter_built(plan, sibling, built)?;
    clone_part(root.as_fd(), path).map_err(|error| error.source)
}

fn take(channel: &Channel, place: &Path) -> Result<Shared, StartError> {
    let failed = |errno| StartError::Layer {
        layer: Layer::MountNs,
        action: format!(
            "share {} with the scope",
            ironcage_model::Printable::new(place)
        ),
        errno,
        code: ironcage_model::StartCode::LayerFailed,
    };
    match channel
        .receive::<CloneReply>(true)
        .map_err(StartError::Channel)?
    {
        Some(Packet::Message(Ok(()), descriptors)) => {
            let tree = descriptors.into_iter().next();
            Ok(Shared {
                target: place.to_owned(),
                tree: tree.ok_or(StartError::Died)?,
            })
        }
        Some(Packet::Message(Err(errno), _)) => Err(failed(errno)),
        Some(Packet::Garbled(_) | Packet::Closed) | None => Err(StartError::Died),
    }
}

/// In the process: goes to the cage's mounts, and clones each place there.
fn hand_over(
    channel: &Channel,
    places: &[(&Path, bool)],
    plan: &Plan,
    sibling: &Sibling,
) -> io::Result<()> {
    let entered = match &sibling.built {
        Some(built) => enter_built(plan, sibling, built.as_fd()),
        None => enter_copy(plan, sibling.mounts.as_fd()),
    };
    for (place, read_only) in places {
        let cloned = match &entered {
            Ok(root) => clone(root.as_fd(), place, *read_only),
            Err(error) => Err(io::Error::from_raw_os_error(number(error))),
        };
        match cloned {
            Ok(tree) => channel.send(&CloneReply::Ok(()), &[tree.as_fd()])?,
            Err(error) => channel.send(&CloneReply::Err(number(&error)), &[])?,
        }
    }
    Ok(())
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}

/// Where the cage was built, which is this side's.
fn enter_built(plan: &Plan, sibling: &Sibling, built: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    outer::enter(plan, sibling.mounts.as_fd())?;
    move_into_link_name_space(built, Some(LinkNameSpaceType::Mount))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open("/", flags, Mode::empty())?)
}

/// A copy of the cage's own, with the leases that are open in it.
fn enter_copy(plan: &Plan, mounts: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    outer::enter(plan, mounts)?;
    move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))?;
    // In the cage's own nothing can be cloned: that makes a namespace for a moment, and in the
    // cage's user namespace there may be no more of them. A copy of it is one of this side's.
    unshare(Namespaces::MOUNT)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open("/", flags, Mode::empty())?)
}

/// Clones what is mounted at a place, with all that is mounted in it: what the cage may not change
/// or see there stays so, also where somebody in it has renamed a directory around that.
fn clone(root: BorrowedFd<'_>, place: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let handle = open_below(root, place)?;
    let stat = statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    if !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        // Moved away by somebody in the cage: it is no longer where the plan has it.
        return Err(Errno::STALE.into());
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(&handle, "", flags)?;
    // What is mounted in the cage later is not to come here by itself.
    let mut change = AttributeChange {
        recursive: true,
        private: true,
        ..AttributeChange::default()
    };
    if read_only {
        change.set = MountAttributes::READ_ONLY;
    }
    set_attributes(tree.as_fd(), change)?;
    Ok(tree)
}
