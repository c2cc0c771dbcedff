//! The namespace backend: a cage from kernel namespaces.
//!
//! The supervisor forks PID 1 of a cage, which builds the cage around itself and then runs the
//! command as its child. The supervisor keeps the control socket, the outer ends of the
//! streams and the listener of the system call filter, and the cage dies with it.
//!
//! Hosts that lack what this takes have two levels below it: a root of its own without other
//! namespaces ([`Chroot`]), and no namespace at all ([`Landlock`]).
#![forbid(unsafe_code)]

mod chroot;
mod enclose;
mod landlock;
mod mount_helper;
mod network;
mod outer;
mod prepare;
mod seek;
mod share;
mod start;
mod wasm;

pub use chroot::Chroot;
pub use landlock::Landlock;
pub use wasm::Wasm;

use ironcage_backend::{
    Ability, Backend, Cage, LeaseError, MountHelper, PreparedCage, Sibling, Sought, StartError,
    StartingCage, StreamKind, Support,
};
use ironcage_model::{CageId, Holder, Isolation};
use ironcage_plan::{BoundPlan, Plan, StaticPart};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Namespace;

impl Backend for Namespace {
    fn isolation(&self) -> Isolation {
        Isolation::Namespace
    }

    fn can(&self, ability: Ability) -> Support {
        match ability {
            Ability::Terminal => Support::Yes("the cage's own devpts"),
            Ability::Signal => Support::Yes("by PID 1, to the command's process group"),
            Ability::Freeze => Support::Yes("by PID 1, to every process in its PID namespace"),
            Ability::Kill => Support::Yes("the kernel ends the PID namespace with its PID 1"),
            Ability::Limits => Support::Yes("cgroup if available, rlimits, tmpfs sizes, watchdog"),
            Ability::Refusals => Support::Yes("seccomp user notification"),
            Ability::Exec => Support::Yes("PID 1 forks it, under the same layers"),
            Ability::Lease => {
                Support::Yes("files by mounts that a mount helper adds to the cage's namespace")
            }
            Ability::Flip => Support::Yes("the attributes of such a mount, by its descriptor"),
            Ability::Revoke => Support::Yes(
                "read-only first, then unmounted: the kernel refuses both while the mount is in use",
            ),
            Ability::Scope => Support::Yes(
                "a second start from the cage's plan, beside it, with clones of its workspace's mounts",
            ),
        }
    }

    fn mount_helper(&self, plan: &Plan, cage: &Cage) -> Result<MountHelper, LeaseError> {
        mount_helper::start(plan, cage)
    }

    fn scope(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        sibling: &Sibling,
    ) -> Result<StartingCage, StartError> {
        start::scope(plan, id, sibling)
    }

    fn part(&self, plan: &Plan, sibling: &Sibling, path: &Path) -> io::Result<OwnedFd> {
        share::part(plan, sibling, path)
    }

    fn seek(&self, plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
        seek::seek(plan, sibling, sought)
    }

    fn prepare(&self, part: &Arc<StaticPart>, id: CageId) -> Result<PreparedCage, StartError> {
        prepare::prepare(part, id)
    }

    fn adopt(
        &self,
        prepared: PreparedCage,
        plan: &BoundPlan<'_>,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        prepare::adopt(prepared, plan, kind)
    }

    fn start(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        start::start(plan, id, kind)
    }
}
