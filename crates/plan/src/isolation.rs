//! Applies an isolation level to a policy: how far it enforces each layer, and which parts of
//! the policy it cannot enforce.
//!
//! `namespace` enforces what the host can. `chroot` has its own root but shares processes,
//! network, IPC and host name with the host; `landlock` shares the file view too. A layer that
//! replaces a missing namespace is reported as partial; without a replacement it is off.

use crate::make::has_controller;
use crate::plan::{Access, AccessRights, AccessRule, Item, NodeKind, Unenforced, ViewOp};
use crate::view::ViewPlan;
use crate::{PlanError, Request, microvm, oci, wasm};
use ironcage_host::{HostCaps, HostFiles, Privilege};
use ironcage_model::{Enforcement, Isolation, Layer};
use ironcage_policy::{Policy, WorkspaceMode};
use std::path::{Path, PathBuf};

/// The first version of Landlock with scopes for signals and abstract sockets: where it is the
/// first lock, what came before it would leave the user's other processes open.
const LEAST_ABI: u32 = 6;

/// Files of the host's `/proc` that tell nothing about processes, each with who reads it. A
/// isolation level without a pid namespace has no `/proc` but these.
const PLAIN_PROC: [(&str, &str); 6] = [
    ("/proc/cpuinfo", "CPU features; numerical libraries"),
    (
        "/proc/meminfo",
        "the amount of memory; runtimes size their heaps with it",
    ),
    ("/proc/stat", "the number of CPUs; libcs"),
    ("/proc/uptime", "uptime of the host; build tools"),
    ("/proc/loadavg", "load of the host; make -l"),
    ("/proc/filesystems", "supported file systems; cp, coreutils"),
];

/// How far a layer holds with an isolation level on a host.
pub fn enforcement(isolation: Isolation, host: &HostCaps, layer: Layer) -> Enforcement {
    let can = || {
        let known = host.layers.get(&layer).cloned();
        known.unwrap_or_else(|| Enforcement::Off("not examined on this host".into()))
    };
    match isolation {
        Isolation::Namespace | Isolation::Wasm | Isolation::Microvm => can(),
        Isolation::Oci => oci::enforcement(layer).unwrap_or_else(can),
        Isolation::Chroot => without_processes(isolation, host, layer).unwrap_or_else(can),
        Isolation::Landlock => landlock(host, layer)
            .or_else(|| without_processes(isolation, host, layer))
            .unwrap_or_else(can),
    }
}

fn off(why: impl Into<String>) -> Option<Enforcement> {
    Some(Enforcement::Off(why.into()))
}

fn partial(how: impl Into<String>) -> Option<Enforcement> {
    Some(Enforcement::Partial(how.into()))
}

/// What both isolation levels without a pid, network and IPC namespace have in common.
fn without_processes(isolation: Isolation, host: &HostCaps, layer: Layer) -> Option<Enforcement> {
    let filtered = !matches!(
        host.layers.get(&Layer::Seccomp),
        None | Some(Enforcement::Off(_))
    );
    match layer {
        Layer::PidNs if host.landlock_abi >= LEAST_ABI => off(format!(
            "{isolation} has no PID namespace: the agent can see the numbers of other processes; \
             Landlock denies signals and tracing, and a subreaper kills what the command leaves behind"
        )),
        Layer::PidNs => off(format!(
            "{isolation} has no PID namespace: the agent can send signals to every process of its \
             user, including the subreaper that kills what the command leaves behind"
        )),
        Layer::NetNs if filtered => partial(
            "no network namespace and no loopback: the filter denies every socket except unnamed pairs",
        ),
        Layer::IpcNs if filtered => {
            partial("no IPC namespace: the filter denies System V IPC and message queues")
        }
        Layer::NetNs | Layer::IpcNs => off("needs the system call filter, which is off"),
        Layer::UtsNs => off(format!(
            "{isolation} has no UTS namespace: the host's name is visible"
        )),
        Layer::CgroupNs => {
            partial("no cgroup namespace: the /proc files that show the cgroup path cannot be read")
        }
        Layer::TimeNs => off(format!("{isolation} has no time namespace")),
        _ => None,
    }
}

/// What an isolation level without mounts and ids of its own lacks besides.
fn landlock(host: &HostCaps, layer: Layer) -> Option<Enforcement> {
    match layer {
        Layer::UserNs => off(match host.privilege {
            Privilege::Root => "landlock has no user namespace: the agent is the workspace's owner",
            Privilege::User => "landlock has no user namespace: the agent is the user",
        }),
        Layer::MountNs => off(
            "landlock has no view of its own: files that are not allowed cannot be opened, but their names, sizes and times are visible, \
             and the agent can change the mode, times and attributes of its own files outside; nothing below a writable path \
             is protected or hidden",
        ),
        Layer::Capabilities if host.privilege == Privilege::User => partial(
            "the agent has none, and no_new_privs keeps programs from gaining any; only root or a user namespace can empty the bounding set",
        ),
        Layer::Counters => {
            off("the counters are those of the agent's user, which landlock shares with the host")
        }
        Layer::Landlock if host.landlock_abi < LEAST_ABI => off(format!(
            "as the first layer it needs ABI {LEAST_ABI} (Linux 6.12), and this kernel has {}",
            host.landlock_abi
        )),
        Layer::Pids if !has_controller(host, "pids") => {
            partial("RLIMIT_NPROC, which counts all processes of the agent's user")
        }
        Layer::Disk => partial(
            "RLIMIT_FSIZE for each file; a watchdog counts writable directories, and ends a cage over the limit",
        ),
        Layer::Inodes => {
            partial("a watchdog counts writable directories, and ends a cage over the limit")
        }
        _ => None,
    }
}

/// Refuses what an isolation level cannot do at all, whatever is degraded.
pub(crate) fn check(policy: &Policy, request: &Request, host: &HostCaps) -> Result<(), PlanError> {
    let isolation = policy.isolation.value;
    let refuse = |what: String, origin: &dyn std::fmt::Display, why: &'static str| {
        Err(PlanError::Unsupported {
            isolation,
            what,
            origin: origin.to_string(),
            why,
        })
    };
    if policy.guest_root.value && isolation != Isolation::Microvm {
        return refuse(
            "root of a guest".into(),
            &policy.guest_root.origin,
            "there is no guest at this level; use --isolation microvm, or --root-inside",
        );
    }
    match isolation {
        Isolation::Namespace => return Ok(()),
        Isolation::Microvm => return microvm::check(policy, request),
        Isolation::Wasm => return wasm::check(policy, request),
        Isolation::Oci | Isolation::Chroot | Isolation::Landlock => {}
    }
    if let Some(capability) = policy.capabilities.first() {
        return refuse(
            format!("the capability {}", capability.value),
            &capability.origin,
            match isolation {
                Isolation::Oci => {
                    "the first process of the container has no capabilities to pass on"
                }
                _ => "it would apply to more than the cage's own namespaces",
            },
        );
    }
    if policy.network.is_given() {
        let network = &policy.network;
        let origin = (network.allow.first().map(|rule| &rule.origin))
            .or(network.http.first().map(|rule| &rule.origin))
            .or(network.bundles.first().map(|bundle| &bundle.origin))
            .or(network.host_ports.first().map(|port| &port.origin))
            .or(network.sockets.first().map(|socket| &socket.origin))
            .or(network.publish.first().map(|port| &port.origin))
            .unwrap_or(&network.open.origin);
        return refuse(
            "network rules".into(),
            origin,
            match isolation {
                Isolation::Oci => {
                    "the egress proxy does not work in a container of a runtime; use --network off"
                }
                _ => "the egress proxy needs a network namespace; use --network off",
            },
        );
    }
    match isolation {
        Isolation::Oci => return oci::check(policy, request),
        Isolation::Chroot => return Ok(()),
        Isolation::Landlock | Isolation::Namespace | Isolation::Wasm | Isolation::Microvm => {}
    }
    if host.landlock_abi < LEAST_ABI {
        return refuse(
            format!("Landlock with ABI {}", host.landlock_abi),
            &"this kernel",
            "it needs ABI 6 (Linux 6.12): older ones allow signals to the user's other processes",
        );
    }
    if policy.root_inside.value {
        return refuse(
            "user 0".into(),
            &policy.root_inside.origin,
            "without a user namespace that is host root",
        );
    }
    if request.root.is_some() || request.image.is_some() {
        return refuse(
            "another root file system".into(),
            &"--root or --image",
            "this level has no view of its own",
        );
    }
    let mode = &policy.workspace_mode;
    if !matches!(mode.value, WorkspaceMode::Direct | WorkspaceMode::ReadOnly) {
        return refuse(
            format!("the workspace mode {}", mode.value.name()),
            &mode.origin,
            "it needs mounts; use `--workspace-mode direct` for the real files, or `read-only`",
        );
    }
    Ok(())
}

/// The agent's ids on the host where there is no user namespace: the caller's own, or the
/// workspace's owner where root starts the cage.
pub(crate) fn agent_on_host(
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
) -> Result<(u32, u32), PlanError> {
    if host.privilege == Privilege::User {
        return Ok((host.uid, host.gid));
    }
    match files.node(&request.workspace) {
        Some(node) if node.uid != 0 && node.gid != 0 => Ok((node.uid, node.gid)),
        _ => Err(PlanError::Workspace {
            path: request.workspace.clone(),
            why: "with --isolation landlock, an agent started by root runs as the workspace's owner, which is root; give the workspace to an ordinary user",
            can_be_forced: false,
        }),
    }
}

/// Policy items that both isolation levels without a UTS namespace leave open.
pub(crate) fn unenforced(policy: &Policy) -> Vec<Item<Unenforced>> {
    if policy.isolation.value.has_all_namespaces() || policy.isolation.value == Isolation::Oci {
        return Vec::new();
    }
    vec![Item {
        what: Unenforced {
            layer: Layer::UtsNs,
            what: format!("the host name {}", policy.hostname.value),
        },
        origin: policy.hostname.origin.to_string(),
    }]
}

/// Takes out of a view what needs a pid namespace: the process file system, and links into it.
/// A few files of the host's that tell nothing about processes take its place.
pub(crate) fn without_proc(made: &mut ViewPlan, files: &dyn HostFiles) {
    let in_proc = |path: &Path| path.starts_with("/proc") || path.starts_with("/.hidden");
    made.ops.retain(|item| match &item.what {
        ViewOp::Proc | ViewOp::MaskProc { .. } | ViewOp::ReadOnlyProc { .. } => false,
        ViewOp::Symlink { to, .. } => !(to.starts_with("/proc") || to.starts_with("../proc")),
        ViewOp::File { target, .. } => !in_proc(target),
        _ => true,
    });
    made.write_rules
        .retain(|item| item.what.path != Path::new("/proc"));
    let seal = made
        .ops
        .iter()
        .position(|item| matches!(item.what, ViewOp::Seal))
        .unwrap_or(made.ops.len());
    let plain = plain_proc(files).map(|(path, why)| Item {
        what: ViewOp::Bind {
            source: path.into(),
            target: path.into(),
            access: Access::Read,
            kind: NodeKind::File,
            owner: None,
        },
        origin: format!("system: {why}"),
    });
    let plain: Vec<_> = plain.collect();
    made.ops.splice(seal..seal, plain);
}

fn plain_proc(files: &dyn HostFiles) -> impl Iterator<Item = (&'static str, &'static str)> {
    PLAIN_PROC
        .into_iter()
        .filter(|(path, _)| files.node(Path::new(path)).is_some())
}

/// What Landlock alone makes of a view.
pub(crate) struct FirstLock {
    pub(crate) rules: Vec<Item<AccessRule>>,
    pub(crate) unenforced: Vec<Item<Unenforced>>,
    /// Files made for the cage, by name.
    pub(crate) files: Vec<(&'static str, String)>,
}

/// Turns a view into the rules of Landlock as the first lock: what would have been mounted may
/// be opened. What would have covered a part of it has no equal there.
pub(crate) fn first_lock(made: &ViewPlan, files: &dyn HostFiles) -> Result<FirstLock, PlanError> {
    let mut lock = FirstLock {
        rules: Vec::new(),
        unenforced: Vec::new(),
        files: Vec::new(),
    };
    let mut rule = |path: &Path, rights, origin: &str| {
        lock.rules.push(Item {
            what: AccessRule {
                path: path.to_owned(),
                rights,
            },
            origin: origin.to_owned(),
        });
    };
    for item in &made.ops {
        let origin = &item.origin;
        let open = |what: String| Item {
            what: Unenforced {
                layer: Layer::MountNs,
                what,
            },
            origin: origin.clone(),
        };
        match &item.what {
            ViewOp::Bind {
                source,
                access,
                kind,
                ..
            } => {
                let rights = match (access, kind) {
                    (Access::Device, _) => AccessRights::Device,
                    (Access::Read, NodeKind::Directory) => AccessRights::ReadTree,
                    (Access::Read, NodeKind::File) => AccessRights::ReadFile,
                    (Access::Write, NodeKind::Directory) => AccessRights::WriteTree,
                    (Access::Write, NodeKind::File) => AccessRights::WriteFile,
                };
                // A view of read-only binds below a writable one: the writable one wins.
                rule(source, rights, origin);
            }
            ViewOp::Overlay { target, .. } => {
                return Err(PlanError::Unsupported {
                    isolation: Isolation::Landlock,
                    what: format!("a copy-on-write view of {}", target.display()),
                    origin: origin.clone(),
                    why: "it needs mounts; use `--workspace-mode direct` or `-w PATH:direct` for the real files",
                });
            }
            ViewOp::Hide { target, .. } => lock
                .unenforced
                .push(open(format!("hiding {}", target.display()))),
            ViewOp::Pin {
                target,
                access: Access::Read,
            } => lock
                .unenforced
                .push(open(format!("keeping {} read-only", target.display()))),
            ViewOp::File {
                target, content, ..
            } if target == Path::new("/etc/gitconfig") => {
                lock.files.push(("gitconfig", content.clone()));
            }
            _ => {}
        }
    }
    for (path, why) in plain_proc(files) {
        rule(
            Path::new(path),
            AccessRights::ReadFile,
            &format!("system: {why}"),
        );
    }
    Ok(lock)
}

/// Where the directory of a cage's own lies while it runs; `CAGE` stands for the cage's id.
pub(crate) fn scratch_below(parent: &Path) -> PathBuf {
    parent.join(format!("ironcage-{}", crate::plan::CAGE))
}
