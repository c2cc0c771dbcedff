//! The isolation level `oci`: which runtime runs the bundle, what it enforces, and what it cannot.
//!
//! The view is built as for `namespace` and passed to the runtime as its root; the runtime creates
//! the namespaces, /proc, terminals, capabilities, rlimits and the filter.

use crate::plan::{Access, Item, NodeKind, ViewOp};
use crate::view::ViewPlan;
use crate::{PlanError, Request, bytes};
use ironcage_host::{HostCaps, HostFiles, NodeType, Privilege};
use ironcage_model::{Enforcement, Isolation, Layer, LayerReport, Printable};
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

/// The runtimes that are used, by the names of their programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeProgram {
    /// The one that is taken unless another is named.
    Crun,
    /// The one of Docker and containerd.
    Runc,
    /// gVisor's, whose container has a kernel of its own.
    Runsc,
}

impl RuntimeProgram {
    const ALL: [RuntimeProgram; 3] = [
        RuntimeProgram::Crun,
        RuntimeProgram::Runc,
        RuntimeProgram::Runsc,
    ];

    /// The name of the program, and of the package that has it.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeProgram::Crun => "crun",
            RuntimeProgram::Runc => "runc",
            RuntimeProgram::Runsc => "runsc",
        }
    }

    fn not_installed(self) -> &'static str {
        match self {
            RuntimeProgram::Crun => {
                "crun is not installed: run `apt install crun`, or pass a path with --oci-runtime PATH"
            }
            RuntimeProgram::Runc => {
                "runc is not installed: run `apt install runc`, or pass its path with --oci-runtime PATH"
            }
            RuntimeProgram::Runsc => {
                "runsc is not installed: install gVisor, or pass its path with --oci-runtime PATH"
            }
        }
    }
}

/// The program that makes the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OciRuntime {
    /// The program.
    #[serde(serialize_with = "bytes::path")]
    pub path: PathBuf,
    /// Which one it is.
    pub program: RuntimeProgram,
}

/// The runtimes that this host has.
pub fn installed_runtimes(files: &dyn HostFiles) -> Vec<OciRuntime> {
    let all = RuntimeProgram::ALL.into_iter();
    all.filter_map(|program| installed(program, files))
        .collect()
}

fn installed(program: RuntimeProgram, files: &dyn HostFiles) -> Option<OciRuntime> {
    let candidates = DIRECTORIES.map(|directory| Path::new(directory).join(program.name()));
    let path = (candidates.into_iter()).find(|path| is_program(path, files))?;
    Some(OciRuntime { path, program })
}

fn is_program(path: &Path, files: &dyn HostFiles) -> bool {
    let real = files.real(path).ok();
    let node = real.and_then(|real| files.node(&real));
    node.is_some_and(|node| node.kind == NodeType::File)
}

/// The runtime of a request, or why there is none.
pub(crate) fn runtime(
    policy: &Policy,
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
) -> Result<OciRuntime, PlanError> {
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
        let program = RuntimeProgram::Crun;
        return installed(program, files)
            .ok_or_else(|| refuse("an OCI runtime".into(), program.not_installed()));
    };
    let what = format!("the runtime {}", Printable::new(asked));
    let name = asked.file_name().unwrap_or_default();
    let Some(program) = (RuntimeProgram::ALL.into_iter()).find(|known| name == known.name()) else {
        let why = "expected crun, runc or runsc, by that name or by an absolute path to a program of that name";
        return Err(refuse(what, why));
    };
    if !policy.root_inside.value {
        match program {
            RuntimeProgram::Runc if host.privilege == Privilege::User => {
                return Err(refuse(
                    what,
                    "without root it maps one ID and requires that to be root of the container: add --root-inside, or use crun",
                ));
            }
            RuntimeProgram::Runsc => {
                return Err(refuse(
                    what,
                    "its file server acts as root of the container, and the workspace belongs to the agent: add --root-inside, or use crun",
                ));
            }
            RuntimeProgram::Crun | RuntimeProgram::Runc => {}
        }
    }
    match asked.is_absolute() {
        true if is_program(asked, files) => Ok(OciRuntime {
            path: asked.clone(),
            program,
        }),
        true => Err(refuse(what, "the program does not exist")),
        false if asked.components().count() == 1 => {
            installed(program, files).ok_or_else(|| refuse(what, program.not_installed()))
        }
        false => Err(refuse(what, "the path of a runtime must be absolute")),
    }
}

/// What a runtime holds less well than the others do.
pub(crate) fn weaken(reports: &mut [LayerReport], program: RuntimeProgram, policy: &Policy) {
    if program != RuntimeProgram::Runsc {
        return;
    }
    let unfiltered = (policy.allow_degraded.iter()).any(|layer| layer.value == Layer::Seccomp);
    for report in reports {
        if matches!(report.enforcement, Enforcement::Off(_)) {
            continue;
        }
        report.enforcement = match report.layer {
            Layer::Seccomp if unfiltered => Enforcement::Off(
                "gVisor's kernel answers system calls; whether it applies the list to commands is not verified"
                    .into(),
            ),
            Layer::Seccomp => Enforcement::Partial(
                "applied by gVisor's kernel, from the same list: denials answer EPERM and are not logged"
                    .into(),
            ),
            Layer::Pids => Enforcement::Partial(
                "counts the threads of gVisor's kernel, at least one for each process of the agent; over the limit, the whole cage can end"
                    .into(),
            ),
            _ => continue,
        };
    }
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
    // crun and runc put links of their own there before they seal the root, with the container's ids.
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
