//! The microvm backend: a namespace cage whose commands run in a virtual machine.
//!
//! The cage is built as the namespace backend builds it, with every layer. What PID 1 executes in it
//! are clients of `ironcage-vmm`, the first of which boots the machine; so a guest that breaks out of
//! its VMM is in a namespace cage. [`setup`] makes the guest's kernel and initramfs ready.
#![forbid(unsafe_code)]

pub mod kvm;
pub mod setup;

use ironcage_backend::{
    Ability, Backend, Cage, LeaseError, MountHelper, Sibling, Sought, StartError, StartingCage,
    StreamKind, Support,
};
use ironcage_model::{CageId, Holder, Isolation};
use ironcage_namespace::Namespace;
use ironcage_plan::{BoundPlan, Plan};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Microvm;

impl Backend for Microvm {
    fn isolation(&self) -> Isolation {
        Isolation::Microvm
    }

    fn can(&self, ability: Ability) -> Support {
        match ability {
            Ability::Terminal => Support::Yes("a terminal in the guest, joined to the cage's own"),
            Ability::Signal => Support::Yes("by the guest's init, to the command's process group"),
            Ability::Freeze => Support::Yes("by PID 1, to the virtual machine"),
            Ability::Kill => Support::Yes("the kernel ends the virtual machine with the cage"),
            Ability::Limits => Support::Yes(
                "those of a namespace cage, around the virtual machine; the guest's RAM is below them",
            ),
            Ability::Refusals => Support::No(
                "denials in the guest are its own kernel's; only those of the virtual machine are reported",
            ),
            Ability::Exec => Support::Yes("the guest's init starts it, as the agent"),
            Ability::Lease => Support::Yes(
                "files by mounts that a mount helper adds to the cage's namespace; the guest's root shows them",
            ),
            Ability::Flip => Support::Yes("the attributes of such a mount, by its descriptor"),
            Ability::Revoke => Support::Yes(
                "the file server closes what the guest has open, then read-only and unmounted: the kernel refuses both while the mount is in use",
            ),
            Ability::Scope => Support::Yes(
                "a second guest beside the first, in a second start from the cage's plan; one at a time",
            ),
        }
    }

    fn mount_helper(&self, plan: &Plan, cage: &Cage) -> Result<MountHelper, LeaseError> {
        Namespace.mount_helper(plan, cage)
    }

    fn scope(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        sibling: &Sibling,
    ) -> Result<StartingCage, StartError> {
        Namespace.scope(plan, id, sibling)
    }

    fn part(&self, plan: &Plan, sibling: &Sibling, path: &Path) -> io::Result<OwnedFd> {
        Namespace.part(plan, sibling, path)
    }

    fn seek(&self, plan: &Plan, sibling: &Sibling, sought: &Sought<'_>) -> io::Result<Vec<Holder>> {
        Namespace.seek(plan, sibling, sought)
    }

    fn start(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        Namespace.start(plan, id, kind)
    }
}
