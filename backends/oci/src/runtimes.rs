//! In what the runtimes differ: their options, and how each closes what of `/proc` is the host's.

use crate::bundle::ROOT;
use ironcage_plan::{CONTAINER_INIT, Plan, RuntimeProgram, ViewOp};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Options before the verb. The container monitor is in the cage's cgroup, and what it starts stays
/// there: a runtime leaves cgroups alone. The log is not among the streams: they are the command's,
/// and a warning among them would be a lie.
pub(crate) fn options(program: RuntimeProgram) -> &'static [&'static str] {
    match program {
        RuntimeProgram::Crun => &[
            "--root=/tmp/state",
            "--cgroup-manager=disabled",
            "--log=/tmp/log",
        ],
        // It goes on without a cgroup if it is rootless and may not write there.
        RuntimeProgram::Runc => &["--root=/tmp/state", "--rootless=true", "--log=/tmp/log"],
        RuntimeProgram::Runsc => &[
            "--root=/tmp/state",
            "--ignore-cgroups",
            "--log=/tmp/log",
            "--network=none",
            "--oci-seccomp",
            // What is written is in the view, and not in a layer of gVisor's own above it.
            "--overlay2=none",
            // The user changes the workspace, too.
            "--file-access=shared",
            "--file-access-mounts=shared",
        ],
    }
}

/// What of `/proc` is closed, and how.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    pub(crate) masked: Vec<Value>,
    pub(crate) read_only: Vec<Value>,
    pub(crate) mounts: Vec<Value>,
    pub(crate) hooks: Option<Value>,
}

impl Closed {
    pub(crate) fn of(plan: &Plan, program: RuntimeProgram) -> Closed {
        if program == RuntimeProgram::Runsc {
            // Its `/proc` is its own kernel's. `/dev` and an empty `/tmp` are covered by mounts of
            // its own, which nothing bounds.
            let places = ["/tmp", "/dev/shm"];
            return Closed {
                mounts: places.map(own_place).into(),
                ..Closed::default()
            };
        }
        let mut closed = Closed::default();
        let mut covers = Vec::new();
        for item in &plan.view {
            match &item.what {
                ViewOp::MaskProc {
                    target,
                    instead: None,
                } => closed.masked.push(json!(target)),
                ViewOp::MaskProc {
                    target,
                    instead: Some(file),
                } if target.exists() => covers.push((in_view(Path::new(file)), target)),
                ViewOp::ReadOnlyProc { target } => closed.read_only.push(json!(target)),
                _ => {}
            }
        }
        if program == RuntimeProgram::Runc {
            // Otherwise it makes devices where the view has them.
            let mut devices = own_place("/dev");
            devices["options"] = json!(["rbind"]);
            closed.mounts.push(devices);
        }
        match program {
            // runc mounts nothing over a file in `/proc`. A hook does, when its mounts are made and
            // before it takes the view as root.
            RuntimeProgram::Runc if !covers.is_empty() => {
                let mut args = vec![json!(CONTAINER_INIT), json!("__container-cover")];
                for (file, target) in covers {
                    args.extend([json!(file), json!(in_view(target))]);
                }
                let program = in_view(Path::new(CONTAINER_INIT));
                closed.hooks = Some(json!({"createContainer": [{"path": program, "args": args}]}));
            }
            _ => closed
                .mounts
                .extend(covers.into_iter().map(|(file, target)| {
                    json!({
                        "destination": target,
                        "type": "bind",
                        "source": file,
                        "options": ["bind", "ro", "nosuid", "nodev", "noexec"],
                    })
                })),
        }
        closed
    }
}

fn own_place(place: &str) -> Value {
    json!({
        "destination": place,
        "type": "bind",
        "source": in_view(Path::new(place)),
        "options": ["rbind", "rw", "nosuid", "nodev"],
    })
}

/// Where a path of the view is for the container monitor.
pub(crate) fn in_view(path: &Path) -> PathBuf {
    Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path))
}
