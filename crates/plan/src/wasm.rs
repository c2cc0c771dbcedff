//! The isolation level `wasm`: a namespace cage that executes one program, the WebAssembly runtime,
//! and what of the cage a WebAssembly command is given (ADR 54).

use crate::bind::before_seal;
use crate::leases::Leases;
use crate::plan::{Bounds, Item, SupervisorFile, ViewOp};
use crate::{PlanError, Request};
use ironcage_model::{Isolation, WASM_PROGRAM, WASM_SETTINGS, WasmSettings};
use ironcage_policy::Policy;
use std::path::{Path, PathBuf};

/// What the runtime itself uses beside the memory of the command.
const RUNTIME_MEMORY: u64 = 64 * 1024 * 1024;

const ORIGIN: &str = "--isolation wasm";

/// Refuses what a WebAssembly command has no means to use.
pub(crate) fn check(policy: &Policy, request: &Request) -> Result<(), PlanError> {
    let refuse = |what: String, origin: &dyn std::fmt::Display, why: &'static str| {
        Err(PlanError::Unsupported {
            isolation: Isolation::Wasm,
            what,
            origin: origin.to_string(),
            why,
        })
    };
    if let Some(capability) = policy.capabilities.first() {
        return refuse(
            format!("the capability {}", capability.value),
            &capability.origin,
            "WASI has no calls that need one; use --isolation namespace",
        );
    }
    if let Some(socket) = policy.network.sockets.first() {
        return refuse(
            format!("the host socket {}", socket.value.display()),
            &socket.origin,
            "WASI has no Unix sockets; use --isolation namespace",
        );
    }
    if request.sticky && request.argv.is_empty() {
        return refuse(
            "a cage without a command".into(),
            &"-d",
            "name the WebAssembly file that it runs",
        );
    }
    Ok(())
}

/// Puts the runtime and its settings into the view. Every command of the cage is executed by it
/// ([`candidates`]).
pub(crate) fn prepare(
    view: &mut Vec<Item<ViewOp>>,
    (policy, request): (&Policy, &Request),
    (bounds, leases): (&Bounds, Option<&Leases>),
    network: bool,
) {
    let settings = WasmSettings {
        directories: directories(policy, request, leases),
        network,
        memory: memory(bounds.memory.what.value),
        fuel: policy.limits.fuel.as_ref().map(|fuel| fuel.value),
    };
    // Paths that are not text cannot be named by WASI either.
    let content = serde_json::to_string(&settings).unwrap_or_default();
    let file = Item {
        what: ViewOp::File {
            target: WASM_SETTINGS.into(),
            content,
            mode: 0o444,
        },
        origin: ORIGIN.into(),
    };
    let program = Item {
        what: ViewOp::Supervisor {
            file: SupervisorFile::WasmProgram,
            target: WASM_PROGRAM.into(),
        },
        origin: ORIGIN.into(),
    };
    before_seal(view, [file, program]);
}

/// The program that carries out a command, whatever its first word is.
pub(crate) fn candidates() -> Vec<PathBuf> {
    vec![WASM_PROGRAM.into()]
}

/// The guest's share, so that a command that allocates too much is told so before the cage is
/// ended for it.
fn memory(limit: u64) -> u64 {
    limit.saturating_sub(RUNTIME_MEMORY).max(limit / 2)
}

/// Directories of the view that hold data: the workspace, what the policy adds, the home directory
/// and `/tmp`. A leased path may be mounted later, so the directory around it is given. Whatever
/// lies in another of them is left out. The system's own directories are not among them.
fn directories(policy: &Policy, request: &Request, leases: Option<&Leases>) -> Vec<PathBuf> {
    let policy_paths = policy
        .read
        .iter()
        .chain(&policy.write)
        .chain(&policy.write_direct)
        .map(|path| path.value.as_path());
    let leased = leases.iter().flat_map(|leases| &leases.paths);
    let leased = leased.filter(|item| item.what.mark.gives());
    let around = leased.filter_map(|item| item.what.path.parent());
    let own = [
        request.workspace.as_path(),
        request.home.as_path(),
        Path::new("/tmp"),
    ];
    let mut found: Vec<PathBuf> = own
        .into_iter()
        .chain(policy_paths)
        .chain(around)
        .filter(|path| path.to_str().is_some())
        .map(Path::to_owned)
        .collect();
    found.sort();
    // A parent sorts before what it contains.
    found.dedup_by(|path, kept| path.starts_with(kept));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_has_less_than_the_cage_and_never_less_than_half() {
        let mib = 1024 * 1024;
        assert_eq!(memory(1024 * mib), 960 * mib);
        assert_eq!(memory(64 * mib), 32 * mib);
        assert_eq!(memory(0), 0);
    }
}
