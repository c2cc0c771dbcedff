//! `config.json`: what the runtime is told, all of it from the plan.

use crate::filter::{seccomp, seccomp_of_gvisor};
use crate::runtimes::Closed;
use ironcage_layers::privileges::attainable;
use ironcage_plan::{CONTAINER_INIT, Plan, Resource, RuntimeProgram};
use serde_json::{Value, json};

/// Where the view lies in the container monitor's mount namespace.
pub(crate) const ROOT: &str = "/tmp/rootfs";

/// One range of ids, inside and in the container monitor's user namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    pub(crate) inside: u32,
    pub(crate) outside: u32,
    pub(crate) count: u32,
}

/// Something that a process in the container executes.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [String],
    pub(crate) cwd: &'a str,
    pub(crate) terminal: bool,
}

/// The parts of the plan that hold for every process of the container.
#[derive(Debug)]
pub(crate) struct Locks {
    user: Value,
    rlimits: Value,
}

impl Locks {
    pub(crate) fn of(plan: &Plan) -> Locks {
        let rlimits = plan.rlimits.iter().map(|item| {
            let value = attainable(item.what);
            json!({"type": rlimit(item.what.resource), "soft": value, "hard": value})
        });
        Locks {
            user: json!({"uid": plan.identity.uid, "gid": plan.identity.gid, "umask": 0o022}),
            rlimits: rlimits.collect(),
        }
    }

    /// The `process` object of a configuration, or of an exec.
    pub(crate) fn process(&self, program: &Program<'_>) -> Value {
        json!({
            "terminal": program.terminal,
            "user": self.user,
            "args": program.args,
            "env": program.env,
            "cwd": program.cwd,
            "capabilities": {
                "bounding": [], "effective": [], "permitted": [], "inheritable": [], "ambient": [],
            },
            "rlimits": self.rlimits,
            "noNewPrivileges": true,
        })
    }
}

/// The configuration of the container. It starts the program that collects orphans, and nothing
/// of the agent's.
pub(crate) fn configuration(
    plan: &Plan,
    program: RuntimeProgram,
    locks: &Locks,
    (uid, gid): (Ids, Ids),
) -> Value {
    let namespaces = ["user", "mount", "pid", "network", "ipc", "uts", "cgroup"];
    let namespaces = namespaces.map(|namespace| json!({"type": namespace}));
    let ids =
        |ids: Ids| json!([{"containerID": ids.inside, "hostID": ids.outside, "size": ids.count}]);
    let init = Program {
        args: &[CONTAINER_INIT.to_owned(), "__container-init".to_owned()],
        env: &[],
        cwd: "/",
        terminal: false,
    };
    let Closed {
        masked,
        read_only,
        mounts: more,
        hooks,
    } = Closed::of(plan, program);
    let mut mounts = vec![json!({
        "destination": "/proc",
        "type": "proc",
        "source": "proc",
        "options": ["nosuid", "noexec", "nodev"],
    })];
    mounts.extend(more);
    mounts.push(json!({
        "destination": "/dev/pts",
        "type": "devpts",
        "source": "devpts",
        "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=128"],
    }));
    json!({
        "ociVersion": "1.0.2",
        "hostname": plan.hostname.what.name,
        "root": {"path": ROOT, "readonly": true},
        "process": locks.process(&init),
        "mounts": mounts,
        "hooks": hooks.unwrap_or_else(|| json!({})),
        "linux": {
            "namespaces": namespaces,
            "uidMappings": ids(uid),
            "gidMappings": ids(gid),
            "maskedPaths": masked,
            "readonlyPaths": read_only,
            "seccomp": match program {
                RuntimeProgram::Crun | RuntimeProgram::Runc => seccomp(&plan.seccomp),
                RuntimeProgram::Runsc => seccomp_of_gvisor(&plan.seccomp),
            },
        },
    })
}

const fn rlimit(resource: Resource) -> &'static str {
    match resource {
        Resource::Core => "RLIMIT_CORE",
        Resource::Data => "RLIMIT_DATA",
        Resource::FileSize => "RLIMIT_FSIZE",
        Resource::LockedMemory => "RLIMIT_MEMLOCK",
        Resource::MessageQueues => "RLIMIT_MSGQUEUE",
        Resource::Nice => "RLIMIT_NICE",
        Resource::OpenFiles => "RLIMIT_NOFILE",
        Resource::Processes => "RLIMIT_NPROC",
        Resource::RealTimePriority => "RLIMIT_RTPRIO",
        Resource::PendingSignals => "RLIMIT_SIGPENDING",
    }
}
