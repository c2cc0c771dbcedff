//! The isolation level wasm: a namespace cage whose commands are WebAssembly.
//!
//! The plan puts the runtime into the view and has it execute every command, so nothing of how the
//! cage is made differs: this backend is the namespace backend under another name, and a runtime
//! that a hostile module took over is in a namespace cage.

use crate::Namespace;
use ironcage_backend::{
    Ability, Backend, Cage, LeaseError, MountHelper, Sibling, Sought, StartError, StartingCage,
    StreamKind, Support,
};
use ironcage_model::{CageId, Holder, Isolation};
use ironcage_plan::{BoundPlan, Plan};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The backend of the isolation level wasm.
#[derive(Debug, Clone, Copy)]
pub struct Wasm;

impl Backend for Wasm {
    fn isolation(&self) -> Isolation {
        Isolation::Wasm
    }

    fn can(&self, ability: Ability) -> Support {
        match ability {
            Ability::Exec => Support::Yes("another WebAssembly command, by the same runtime"),
            ability => Namespace.can(ability),
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
