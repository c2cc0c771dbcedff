//! The mount helper of a cage's leases: a process that can be in two mount namespaces.
//!
//! In the outer one, which copies the host, it clones what is leased; in the cage's own
//! it attaches the clone, flips it and takes it off. It is forked by the supervisor with the
//! first lease and dies with it, as the cage does: without a supervisor there is no lease.
//!
//! Without root it first enters the user namespace above the cage's, in which the caller may
//! mount; it never enters the cage's own, so nobody in the cage has power over it.

mod eviction;
pub(crate) mod holders;
mod names;
mod serve;

use crate::outer;
use ironcage_backend::faults::lease_step as step;
use ironcage_backend::{Cage, LeaseError, MountHelper};
use ironcage_control::{Channel, pair};
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::clone::{Forked, Namespaces, exit_now, fork, unshare};
use ironcage_sys::mount::{AttributeChange, set_attributes};
use ironcage_sys::process::close_all_but;
use ironcage_sys::rustix::fs::{Mode, OFlags, open};
use ironcage_sys::rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use ironcage_sys::rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_name};
use serve::Service;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Starts the mount helper of a cage.
///
/// Preconditions: the calling process has one thread.
pub(crate) fn start(plan: &Plan, cage: &Cage) -> Result<MountHelper, LeaseError> {
    let mount_context = cage.mount_context().ok_or(LeaseError::NoMountContext)?;
    let storage = mount_context
        .storage
        .as_ref()
        .ok_or(LeaseError::NoMountContext)?;
    let (ours, theirs) = pair().map_err(LeaseError::Start)?;
    let supervisor = getpid();
    step();
    match fork(Namespaces::NONE, None).map_err(LeaseError::Start)? {
        Forked::Child => {
            drop(ours);
            let rootless = matches!(plan.identity.map, IdMap::Own { .. });
            let agent = cage.agent().filter(|_| !rootless);
            let given = HelperContext {
                mounts: mount_context.mounts.as_fd(),
                storage: storage.as_fd(),
                built: mount_context.built.as_ref().map(AsFd::as_fd),
                beside: mount_context.beside.as_ref().map(AsFd::as_fd),
                proc: cage.proc(),
                plan,
                agent,
            };
            let served = enter(&theirs, &given, supervisor).and_then(|service| service.run());
            exit_now(i32::from(served.is_err()))
        }
        Forked::Parent { pidfd, .. } => Ok(MountHelper {
            channel: ours,
            pidfd,
        }),
    }
}

/// What the mount helper works with.
struct HelperContext<'a> {
    mounts: BorrowedFd<'a>,
    storage: BorrowedFd<'a>,
    /// Where the cage was built.
    built: Option<BorrowedFd<'a>>,
    /// In a scope, that of the cage, which both share.
    beside: Option<BorrowedFd<'a>>,
    proc: BorrowedFd<'a>,
    plan: &'a Plan,
    agent: Option<(u32, u32)>,
}

fn enter<'a>(
    channel: &'a Channel,
    given: &HelperContext<'a>,
    supervisor: ironcage_sys::rustix::process::Pid,
) -> io::Result<Service<'a>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(supervisor) {
        // It ended before it could be heard of.
        exit_now(0);
    }
    // What the supervisor holds is not ours: an end of a stream held here would never end.
    let mut kept = vec![channel.as_fd(), given.mounts, given.storage, given.proc];
    kept.extend(given.built);
    kept.extend(given.beside);
    close_all_but(&kept)?;
    let _ = set_name(c"ironcage-mounts");
    step();
    outer::enter(given.plan, given.mounts)?;
    unshare(Namespaces::MOUNT)?;
    // What is mounted on the host later is seen; what is done here is not seen there.
    let root = open_place("/")?;
    set_attributes(
        root.as_fd(),
        AttributeChange {
            recursive: true,
            slave: true,
            ..AttributeChange::default()
        },
    )?;
    drop(root);
    step();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let outer = open("/proc/self/ns/mnt", flags, Mode::empty())?;
    let own = open_place("/proc/self")?;
    let links = open_place("/proc/self/fd")?;
    enter_mounts(given.mounts)?;
    let inside = open_place("/")?;
    Ok(Service {
        channel,
        outer,
        cage: given.mounts,
        inside,
        storage: given.storage,
        built: given.built,
        beside: given.beside.map(|storage| (storage, given.plan)),
        proc: given.proc,
        own,
        links,
        agent: given.agent,
        guest: given.plan.isolation_level.what.microvm.is_some(),
        leases: Default::default(),
        joined: Default::default(),
        misplaced: None,
        owners: Vec::new(),
    })
}

/// Moves this process into a mount namespace; its root and working directory are that one's.
fn enter_mounts(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))?;
    Ok(())
}

fn open_place(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}
