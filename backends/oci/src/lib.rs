//! The oci backend: an OCI runtime on the host makes the cage from a bundle of the plan.
//!
//! The file view is built as the namespace backend builds it, copy-on-write layers, protected and
//! hidden paths included, in a mount namespace of Ironcage's own (and without root in the user
//! namespace that this takes), and is the bundle's root. Namespaces, process file system,
//! terminals, capabilities, rlimits and the system call filter are the runtime's to make, from
//! `config.json`. Its first process is a program of Ironcage's that only collects orphans; the
//! command and every exec are the runtime's `exec`.
//!
//! A container monitor outside, below a subreaper, answers the supervisor. The runtime's state is on a
//! tmpfs that only the container monitor sees, and ends with it.
#![forbid(unsafe_code)]

mod bundle;
mod exec;
mod filter;
mod make;
mod runtimes;

use ironcage_backend::{
    Ability, Backend, StartError, StartingCage, StreamKind, Support, container_monitor, subreaper,
};
use ironcage_model::{CageId, Isolation};
use ironcage_plan::{BoundPlan, IdMap};
use ironcage_sys::clone::Namespaces;

/// Why there is none.
const NO_TERMINAL: &str = "an OCI runtime can lose the last output of a program on a terminal; use --no-tty, or --isolation namespace";

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Oci;

impl Backend for Oci {
    fn isolation(&self) -> Isolation {
        Isolation::Oci
    }

    fn can(&self, ability: Ability) -> Support {
        const FIXED: &str = "a bundle is fixed once it runs: start again with `-r`, `-w` or another policy, or use namespace";
        match ability {
            Ability::Terminal => Support::No(NO_TERMINAL),
            Ability::Signal => Support::Yes("by the runtime, to the command"),
            Ability::Kill => Support::Yes(
                "a subreaper stops and kills every descendant, including the container's first process",
            ),
            Ability::Refusals => {
                Support::No("the runtime's filter denies by itself and reports nothing")
            }
            Ability::Exec => {
                Support::Yes("the runtime's exec, under the same layers as the command")
            }
            Ability::Lease | Ability::Flip | Ability::Revoke | Ability::Scope => Support::No(FIXED),
            ability => subreaper::can(ability),
        }
    }

    fn start(
        &self,
        plan: &BoundPlan<'_>,
        id: &CageId,
        kind: StreamKind,
    ) -> Result<StartingCage, StartError> {
        if matches!(kind, StreamKind::Terminal { .. }) {
            return Err(StartError::NoTerminal(NO_TERMINAL));
        }
        let namespaces = match plan.identity.map {
            IdMap::Own { .. } => Namespaces::MOUNT.with(Namespaces::USER),
            IdMap::Range { .. } => Namespaces::MOUNT,
        };
        subreaper::start(plan, id, kind, namespaces, |plan, inheritance| {
            container_monitor::run(plan, &inheritance, make::make)
        })
    }
}
