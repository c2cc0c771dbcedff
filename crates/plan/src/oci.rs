//! The isolation level `oci`: which runtime runs the bundle, what it enforces, and what it cannot.
//!
//! The view is built as for `namespace` and passed to the runtime as its root; the runtime creates
//! the namespaces, /proc, terminals, capabilities, rlimits and the filter.

use crate::plan::{Access, Item, NodeKind, ViewOp};
use crate::view::ViewPlan;
use crate::{PlanError, Request, bytes};
use ironcage_host::{HostFiles, NodeType};
use ironcage_model::{Enforcement, Isolation, Layer, Printable};
use ironcage_policy::{Policy, SideChannels};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Where runtimes are looked for. Not in the caller's PATH, which may name a workspace.
const DIRECTORIES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Where the container's first process is in the view.
pub const CONTAINER_INIT: &str = "/run/ironcage-init";

/// The name of the runtime's program.
const CRUN: &str = "crun";

/// Runtimes that are not used, by the names of their programs, each with the reason.
const NOT_USED: [(&str, &str); 2] = [
    (
        "runsc",
        "it creates files as host root, which the id-mapped mounts of the workspace deny, and the one in Debian 12 answers EINVAL to Debian's own `ls` and `stat`; use crun",
    ),
    (
        "runc",
        "it cannot mask files in /proc, and cannot create a container without a root user unless root starts it; use crun",
    ),
];

/// The program that makes the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OciRuntime {
    /// The program.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
}

/// The runtime that this host has, if it has one.
pub fn installed_runtime(files: &dyn HostFiles) -> Option<OciRuntime> {
    let candidates = DIRECTORIES.map(|directory| Path::new(directory).join(CRUN));
    let mut there = candidates
        .into_iter()
        .filter(|path| is_program(path, files));
    there.next().map(|path| OciRuntime { path })
}

fn is_program(path: &Path, files: &dyn HostFiles) -> bool {
    let real = files.real(path).ok();
    let node = real.and_then(|real| files.node(&real));
    node.is_some_and(|node| node.kind == NodeType::File)
}

/// The runtime of a request, or why there is none.
pub(crate) fn runtime(request: &Request, files: &dyn HostFiles) -> Result<OciRuntime, PlanError> {
    let refuse = |what: String, why: &'static str| PlanError::Unsupported {
        isolation: Isolation::Oci,
        what,
        origin: match request.oci_runtime {
            Some(_) => "--oci-runtime".into(),
            None => "--isolation oci".into(),
        },
        why,
    };
    let Some(asked) = &request.oci_runtime else {
        return installed_runtime(files).ok_or_else(|| {
            let why =
                "crun is not installed: run `apt install crun`, or pass a path with --oci-runtime PATH";
            refuse("an OCI runtime".into(), why)
        });
    };
    let what = format!("the runtime {}", Printable::new(asked));
    let name = asked.file_name().unwrap_or_default();
    if let Some((_, why)) = NOT_USED.iter().find(|(known, _)| name == *known) {
        return Err(refuse(what, why));
    }
    if name != CRUN {
        let why =
            "only crun is supported, by that name or by an absolute path to a program of that name";
        return Err(refuse(what, why));
    }
    let found = match asked.is_absolute() {
        true => is_program(asked, files).then(|| OciRuntime {
            path: asked.clone(),
        }),
        false if asked.components().count() == 1 => installed_runtime(files),
        false => return Err(refuse(what, "the path of a runtime must be absolute")),
    };
    found.ok_or_else(|| refuse(what, "the program does not exist"))
}

/// How far a layer holds; `None` as far as the host can.
pub(crate) fn enforcement(layer: Layer) -> Option<Enforcement> {
    Some(match layer {
        Layer::TimeNs => {
            Enforcement::Off("the OCI runtime does not create a time namespace".into())
        }
        Layer::Landlock => Enforcement::Off("OCI runtimes do not apply Landlock".into()),
        Layer::Counters => {
            Enforcement::Off("OCI runtimes do not set the counters of a user namespace".into())
        }
        Layer::Seccomp => Enforcement::Partial(
            "the runtime's filter, from the same list: denials answer EPERM and are not logged"
                .into(),
        ),
        _ => return None,
    })
}

/// Refuses what the runtime cannot do, whatever is degraded.
pub(crate) fn check(policy: &Policy, request: &Request) -> Result<(), PlanError> {
    let refuse = |what: &str, origin: &dyn std::fmt::Display, why: &'static str| {
        Err(PlanError::Unsupported {
            isolation: Isolation::Oci,
            what: what.into(),
            origin: origin.to_string(),
            why,
        })
    };
    if request.observed {
        return refuse(
            "observing what the command uses",
            &"the run",
            "the runtime's filter does not report system calls; use --isolation namespace",
        );
    }
    if policy.syscalls.value == "minimal" {
        return refuse(
            "the system call list `minimal`",
            &policy.syscalls.origin,
            "it denies every program after the first, which needs a filter that reports system calls",
        );
    }
    if policy.side_channels.value != SideChannels::Off {
        return refuse(
            "side-channel mitigations",
            &policy.side_channels.origin,
            "the runtime does not have them; use --isolation namespace",
        );
    }
    Ok(())
}

/// Adds to a view what the runtime needs in it.
pub(crate) fn prepare(made: &mut ViewPlan, request: &Request) {
    let seal = made
        .ops
        .iter()
        .position(|item| matches!(item.what, ViewOp::Seal))
        .unwrap_or(made.ops.len());
    let init = Item {
        what: ViewOp::Bind {
            source: request.program.clone(),
            target: CONTAINER_INIT.into(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        },
        origin: "the first process of the container".into(),
    };
    made.ops.insert(seal, init);
    // crun puts links of its own there before it seals the root, with the container's ids.
    let devices = Item {
        what: ViewOp::Directory {
            target: "/dev".into(),
            mode: 0o755,
            agents: true,
        },
        origin: "built in".into(),
    };
    made.ops.insert(0, devices);
}
