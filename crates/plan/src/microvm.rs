//! A cage with a kernel of its own: a namespace cage whose view has, besides all that the command
//! sees, the program that boots a virtual machine and runs the command there.

use crate::bind::before_seal;
use crate::leases::Leases;
use crate::plan::{Access, Bounds, Identity, Item, NodeKind, ViewOp};
use crate::seccomp::Filter;
use crate::{PlanError, Request, bytes};
use ironcage_guest::{GuestSetup, INITRAMFS, KERNEL, MACHINE, MachineConfig, PROGRAM};
use ironcage_model::{Isolation, ShellMode};
use ironcage_policy::{Policy, SideChannels};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Memory of the cage that is not the guest's: QEMU, the file server and those who carry streams.
const BESIDE: u64 = 160 << 20;
/// The least memory that a guest starts with.
const LEAST: u64 = 192 << 20;
/// The most memory of a guest: its kernel writes a list of all of it before it starts anything.
const MOST: u64 = 16 << 30;

/// What a microVM is made of, as `ironcage setup microvm` has left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFiles {
    /// The VMM.
    pub qemu: PathBuf,
    /// The program that boots the machine, on the host.
    pub program: PathBuf,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// Its initramfs.
    pub initramfs: PathBuf,
    /// The kernel's version.
    pub version: String,
    /// SHA-256 of both, in hexadecimal.
    pub kernel_digest: String,
    /// See `kernel_digest`.
    pub initramfs_digest: String,
}

/// The machine of a cage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Microvm {
    /// The VMM.
    #[serde(serialize_with = "bytes::path")]
    pub qemu: PathBuf,
    /// How it runs the guest's instructions.
    pub acceleration: &'static str,
    /// RAM of the guest in MiB.
    pub memory: u64,
    /// The version of the guest's kernel.
    pub kernel: String,
    /// SHA-256 of the kernel, in hexadecimal.
    pub kernel_digest: String,
    /// SHA-256 of the initramfs, in hexadecimal.
    pub initramfs_digest: String,
}

fn refusal(what: impl Into<String>, origin: impl ToString, why: &'static str) -> PlanError {
    PlanError::Unsupported {
        isolation: Isolation::Microvm,
        what: what.into(),
        origin: origin.to_string(),
        why,
    }
}

/// Refuses what a guest cannot have: nothing is ignored in silence.
pub(crate) fn check(policy: &Policy, request: &Request) -> Result<(), PlanError> {
    const NAMESPACE: &str = "guests do not have it yet; use --isolation namespace";
    let given = |is: bool, what: &str, origin: &dyn std::fmt::Display| match is {
        true => Err(refusal(what, origin, NAMESPACE)),
        false => Ok(()),
    };
    if let Some(capability) = policy.capabilities.first() {
        return Err(refusal(
            format!("the capability {}", capability.value),
            &capability.origin,
            "the agent has none in the guest; use --isolation namespace",
        ));
    }
    if request.observed {
        return Err(refusal(
            "observing what the command uses",
            "the run",
            "system calls in the guest are not reported; use --isolation namespace",
        ));
    }
    if policy.syscalls.value == "minimal" {
        return Err(refusal(
            "the system call list `minimal`",
            &policy.syscalls.origin,
            "the virtual machine itself needs more; the guest has the list `standard`",
        ));
    }
    if policy.root_inside.value {
        return Err(refusal(
            "user 0",
            &policy.root_inside.origin,
            "the agent is an ordinary user in the guest; use --isolation namespace",
        ));
    }
    if request.root.is_some() || request.image.is_some() {
        return Err(refusal(
            "another root file system",
            "--root or --image",
            "QEMU is started from the host's system in the view; use --isolation namespace",
        ));
    }
    let network = &policy.network;
    let ports = network.host_ports.first();
    given(ports.is_some(), "ports of the host", &origin(ports))?;
    let sockets = network.sockets.first();
    given(sockets.is_some(), "host sockets", &origin(sockets))?;
    let published = network.publish.first();
    given(published.is_some(), "published ports", &origin(published))?;
    let isolated = policy.side_channels.value != SideChannels::Off;
    given(
        isolated,
        "side-channel mitigations",
        &policy.side_channels.origin,
    )?;
    Ok(())
}

fn origin<T>(item: Option<&ironcage_policy::Sourced<T>>) -> String {
    item.map(|item| item.origin.to_string()).unwrap_or_default()
}

/// What leases give in a guest: files and directories, to whoever asks outside.
pub(crate) fn leases(made: Leases, notes: &mut Vec<String>) -> Leases {
    notes.push(
        "--isolation microvm: the agent cannot ask for permissions from inside the guest; grant them with `ironcage lease`".into(),
    );
    if !made.others.is_empty() {
        notes.push(
            "--isolation microvm: the ceiling gives files and directories alone; other leases need --isolation namespace".into(),
        );
    }
    if made.shell == ShellMode::Scoped {
        notes.push("--isolation microvm: the agent's shell has no scopes".into());
    }
    Leases {
        others: Vec::new(),
        shell: ShellMode::Plain,
        ..made
    }
}

/// The files of a request.
pub(crate) fn files(request: &Request) -> Result<&GuestFiles, PlanError> {
    request.guest.as_ref().ok_or_else(|| {
        refusal(
            "a guest",
            "--isolation microvm",
            "no guest is set up; run `ironcage setup microvm`",
        )
    })
}

/// What the machine is made from.
pub(crate) struct MachineParts<'a> {
    pub(crate) files: &'a GuestFiles,
    pub(crate) bounds: &'a Bounds,
    pub(crate) identity: &'a Identity,
    pub(crate) filter: &'a Filter,
    pub(crate) hostname: &'a str,
    pub(crate) network: bool,
}

/// The machine of a plan, with what its view needs for it.
pub(crate) fn make(
    parts: &MachineParts<'_>,
    view: &mut Vec<Item<ViewOp>>,
) -> Result<Microvm, PlanError> {
    let limit = &parts.bounds.memory;
    let memory = limit.what.value.saturating_sub(BESIDE).min(MOST);
    // The guest's memory is a file of the VMM's, and the disk limit bounds the size of each file.
    let memory = memory.min(parts.bounds.disk.what.value);
    if memory < LEAST {
        return Err(refusal(
            format!("a memory limit of {} MiB", limit.what.value >> 20),
            &limit.origin,
            "the guest and the virtual machine need at least 352 MiB; raise --memory",
        ));
    }
    let machine = Microvm {
        qemu: parts.files.qemu.clone(),
        acceleration: "emulated",
        memory: memory >> 20,
        kernel: parts.files.version.clone(),
        kernel_digest: parts.files.kernel_digest.clone(),
        initramfs_digest: parts.files.initramfs_digest.clone(),
    };
    let config = MachineConfig {
        qemu: machine.qemu.to_string_lossy().into_owned(),
        memory: machine.memory,
        guest: GuestSetup {
            uid: parts.identity.uid,
            gid: parts.identity.gid,
            hostname: parts.hostname.to_owned(),
            network: parts.network,
            files: parts.bounds.files.what.value,
            processes: parts.bounds.pids.what.value,
            filter: parts.filter.unreported(),
            time: 0,
            entropy: Vec::new(),
        },
    };
    let content = config.encode().map_err(|_| {
        refusal(
            "this machine",
            "--isolation microvm",
            "its description cannot be written",
        )
    })?;
    let origin = || "the virtual machine".to_owned();
    let bind = |source: &Path, target: &str| Item {
        what: ViewOp::Bind {
            source: source.to_owned(),
            target: target.into(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        },
        origin: origin(),
    };
    let described = Item {
        what: ViewOp::File {
            target: MACHINE.into(),
            content,
            mode: 0o444,
        },
        origin: origin(),
    };
    let ops = [
        bind(&parts.files.program, PROGRAM),
        bind(&parts.files.kernel, KERNEL),
        bind(&parts.files.initramfs, INITRAMFS),
        described,
    ];
    before_seal(view, ops);
    Ok(machine)
}
