//! The rung `oci`: which runtime runs the bundle, what it enforces, and what it cannot.
//!
//! The view is built as for `namespace`, and given to the runtime as its root; the runtime makes
//! the namespaces, the process file system, terminals, capabilities, rlimits and the filter.

use crate::plan::{Access, Item, NodeKind, ViewOp};
use crate::view::Made;
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
        "it makes files as root of the host, which the id-mapped mounts that make the workspace the agent's refuse, and Debian 12's answers EINVAL to `ls` and `stat` of the same Debian; use crun",
    ),
    (
        "runc",
        "it covers no file in /proc, which the plan does, and without root it makes no container in which nobody is root; use crun",
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
                "crun is not installed: `apt install crun`, or name one with --oci-runtime PATH";
            refuse("an OCI runtime".into(), why)
        });
    };
    let what = format!("the runtime {}", Printable::new(asked));
    let name = asked.file_name().unwrap_or_default();
    if let Some((_, why)) = NOT_USED.iter().find(|(known, _)| name == *known) {
        return Err(refuse(what, why));
    }
    if name != CRUN {
        let why = "crun is the one that is known, by that name or by an absolute path to a program of that name";
        return Err(refuse(what, why));
    }
    let found = match asked.is_absolute() {
        true => is_program(asked, files).then(|| OciRuntime {
            path: asked.clone(),
        }),
        false if asked.components().count() == 1 => installed_runtime(files),
        false => return Err(refuse(what, "a path to a runtime is an absolute one")),
    };
    found.ok_or_else(|| refuse(what, "there is no such program"))
}

/// How far a layer holds; `None` as far as the host can.
pub(crate) fn enforcement(layer: Layer) -> Option<Enforcement> {
    Some(match layer {
        Layer::TimeNs => Enforcement::Off("OCI runtimes of this age make no time namespace".into()),
        Layer::Landlock => Enforcement::Off("OCI runtimes apply no Landlock".into()),
        Layer::Counters => {
            Enforcement::Off("OCI runtimes set no counters of a user namespace".into())
        }
        Layer::Seccomp => Enforcement::Partial(
            "the runtime's filter from the same list: refusals answer EPERM and are not recorded"
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
            "the runtime's filter reports to nobody; --isolation namespace does",
        );
    }
    if policy.syscalls.value == "minimal" {
        return refuse(
            "the system call list `minimal`",
            &policy.syscalls.origin,
            "it refuses every program after the first, which needs a filter that reports",
        );
    }
    if policy.side_channels.value != SideChannels::Off {
        return refuse(
            "means against side channels",
            &policy.side_channels.origin,
            "the runtime has none; --isolation namespace has",
        );
    }
    Ok(())
}

/// Adds to a view what the runtime needs in it.
pub(crate) fn prepare(made: &mut Made, request: &Request) {
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
        origin: "the container's first process".into(),
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
