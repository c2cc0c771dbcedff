//! The namespace backend: a cage from kernel namespaces.
//!
//! The supervisor forks PID 1 of a cage, which builds the cage around itself and then runs the
//! command as its child. The supervisor keeps the control socket, the outer ends of the
//! streams and the listener of the system call filter, and the cage dies with it.
#![forbid(unsafe_code)]

mod enclose;
mod keeper;
mod network;
mod outer;
mod seek;
mod share;
mod start;

use ironcage_backend::{
    Ability, Answer, Backend, Birth, Cage, Keeper, LeaseError, Sibling, Sought, StartError,
    StreamKind,
};
use ironcage_model::{CageId, Holder, Isolation};
use ironcage_plan::Plan;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Namespace;

impl Backend for Namespace {
    fn isolation(&self) -> Isolation {
        Isolation::Namespace
    }

    fn can(&self, ability: Ability) -> Answer {
        match ability {
            Ability::Terminal => Answer::Yes("a devpts of the cage's own"),
            Ability::Signal => Answer::Yes("by PID 1, to the command's process group"),
            Ability::Freeze => Answer::Yes("by PID 1, to every process of its pid namespace"),
            Ability::Kill => Answer::Yes("the kernel ends the pid namespace with its PID 1"),
            Ability::Limits => {
                Answer::Yes("cgroup where there is one, rlimits, sizes of tmpfs, watchdog")
            }
            Ability::Refusals => Answer::Yes("seccomp user notification"),
            Ability::Exec => {
                Answer::Yes("PID 1 forks it, under every layer that it is under itself")
            }
            Ability::Lease => {
                Answer::Yes("files by mounts that a keeper puts into the cage's namespace")
            }
            Ability::Flip => Answer::Yes("the attributes of such a mount, by its descriptor"),
            Ability::Revoke => Answer::Yes(
                "read-only first, then unmounted: the kernel refuses either while it is used",
            ),
            Ability::Scope => Answer::Yes(
                "a second start by the cage's plan, beside it, with clones of its workspace's mounts",
            ),
        }
    }

    fn keeper(&self, plan: &Plan, cage: &Cage) -> Result<Keeper, LeaseError> {
        keeper::start(plan, cage)
    }

    fn scope(&self, plan: &Plan, id: &CageId, sibling: &Sibling) -> Result<Birth, StartError> {
        start::scope(plan, id, sibling)
    }

    fn part(&self, plan: &Plan, sibling: &Sibling, path: &Path) -> io::Result<OwnedFd> {
        share::part(plan, sibling, path)
    }

    fn seek(&self, plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
        seek::seek(plan, sibling, sought)
    }

    fn start(&self, plan: &Plan, id: &CageId, kind: StreamKind) -> Result<Birth, StartError> {
        start::start(plan, id, kind)
    }
}
