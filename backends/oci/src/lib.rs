//! The oci backend: an OCI runtime of the host's makes the cage from a bundle of the plan.
//!
//! The file view is built as the namespace backend builds it, copy-on-write layers, protected and
//! hidden paths included, in a mount namespace of Ironcage's own (and without root in the user
//! namespace that this takes), and is the bundle's root. Namespaces, process file system,
//! terminals, capabilities, rlimits and the system call filter are the runtime's to make, from
//! `config.json`. Its first process is a program of Ironcage's that only collects orphans; the
//! command and every exec are the runtime's `exec`.
//!
//! A conductor stands outside, below a guardian, and speaks for the cage. All that the runtime
//! keeps is on a tmpfs that only the conductor sees, and goes with it.
#![forbid(unsafe_code)]

mod bundle;
mod exec;
mod filter;
mod init;
mod make;

pub use init::run as run_init;

use ironcage_backend::{
    Ability, Answer, Backend, Birth, StartError, StreamKind, conductor, guardian,
};
use ironcage_model::{CageId, Isolation};
use ironcage_plan::{IdMap, Plan};
use ironcage_sys::clone::Namespaces;

/// Why there is none.
const NO_TERMINAL: &str = "crun can lose the last words of a program on a terminal; --no-tty starts with pipes, and namespace has one";

/// The backend.
#[derive(Debug, Clone, Copy)]
pub struct Oci;

impl Backend for Oci {
    fn isolation(&self) -> Isolation {
        Isolation::Oci
    }

    fn can(&self, ability: Ability) -> Answer {
        const FIXED: &str = "a bundle is fixed once it runs: start again with `-r`, `-w` or another policy, or use namespace";
        match ability {
            Ability::Terminal => Answer::No(NO_TERMINAL),
            Ability::Signal => Answer::Yes("by the runtime, to the command"),
            Ability::Kill => Answer::Yes(
                "a guardian to whom orphans come stops and kills all below it, the container's first process among them",
            ),
            Ability::Refusals => {
                Answer::No("the runtime's filter answers by itself and reports to nobody")
            }
            Ability::Exec => Answer::Yes("the runtime's exec, with the locks of the command"),
            Ability::Lease | Ability::Flip | Ability::Revoke | Ability::Scope => Answer::No(FIXED),
            ability => guardian::can(ability),
        }
    }

    fn start(&self, plan: &Plan, id: &CageId, kind: StreamKind) -> Result<Birth, StartError> {
        if matches!(kind, StreamKind::Terminal { .. }) {
            return Err(StartError::NoTerminal(NO_TERMINAL));
        }
        let namespaces = match plan.identity.map {
            IdMap::Own { .. } => Namespaces::MOUNT.with(Namespaces::USER),
            IdMap::Range { .. } => Namespaces::MOUNT,
        };
        guardian::start(plan, id, kind, namespaces, |plan, inheritance| {
            conductor::run(plan, &inheritance, make::make)
        })
    }
}
