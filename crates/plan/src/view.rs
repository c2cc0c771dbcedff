//! The file view: an allow-list of host paths, in the order in which it is built.

mod beside;
mod covered;
mod grants;
mod host_caches;
mod image;
mod overlay;
mod patterns;
pub(crate) mod sensitive;

pub(crate) use image::name_of;

use crate::network::Network;
use crate::plan::{
    Access, Identity, Item, KeptPlace, NodeKind, Owner, Variable, ViewOp, WriteRights, WriteRule,
};
use crate::signing::Signing;
use crate::{PlanError, Request, agent_help, etc, toolchains, trust};
use ironcage_host::{HostCaps, HostFiles, Kernel, NodeType, Privilege};
use ironcage_policy::{Listed, Policy, system};
use std::path::{Path, PathBuf};

/// What the making of a view yields.
pub(crate) struct ViewPlan {
    pub(crate) ops: Vec<Item<ViewOp>>,
    pub(crate) write_rules: Vec<Item<WriteRule>>,
    /// Directories of the host that the agent fills: where the watchdog looks.
    pub(crate) writable: Vec<PathBuf>,
    pub(crate) kept: Vec<Item<KeptPlace>>,
    /// Variables that toolchains and what is kept need.
    pub(crate) variables: Vec<Item<Variable>>,
    /// The caller's PATH entries outside of the system, and those in it.
    pub(crate) search: Vec<PathBuf>,
    pub(crate) notes: Vec<String>,
    /// Protected names that are not there.
    pub(crate) absent: Vec<PathBuf>,
    /// What patterns of the policy hide, with the origin.
    pub(crate) matched: Vec<(PathBuf, String)>,
    /// Whether there are names in the workspace that were not looked at for sensitive ones.
    pub(crate) sensitive_deeper: bool,
}

/// Where links to processes, terminals and files of the cage itself lead.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

/// Links to the cage's own directories, where nothing else of the view lies in their place.
const OWN_LINKS: [(&str, &str); 2] = [("/var/tmp", "../tmp"), ("/var/run", "../run")];

/// Trees of the host that no rule can open: they are the kernel's, or hold every device.
pub(crate) const NEVER: [(&str, &str); 4] = [
    ("/", "a cage cannot have the whole host file system"),
    ("/proc", "the cage has its own /proc"),
    (
        "/sys",
        "host kernel objects and hardware are never in a cage",
    ),
    ("/dev", "host devices are never in a cage"),
];

pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
    (identity, network, signing): (&Identity, Option<&Network>, Option<&Signing>),
) -> Result<ViewPlan, PlanError> {
    let mut builder = Builder {
        request,
        files,
        map_owners: host.privilege == Privilege::Root,
        root_inside: identity.uid == 0,
        caller: Owner::one(host.uid, host.gid),
        made: ViewPlan {
            ops: Vec::new(),
            write_rules: Vec::new(),
            writable: Vec::new(),
            kept: Vec::new(),
            variables: Vec::new(),
            search: Vec::new(),
            notes: Vec::new(),
            absent: Vec::new(),
            matched: Vec::new(),
            sensitive_deeper: false,
        },
        granted: Vec::new(),
        below_home: Vec::new(),
        renameable: Vec::new(),
        kernel: host.kernel,
        agents: policy
            .write
            .iter()
            .chain(&policy.write_direct)
            .map(|path| path.value.clone())
            .collect(),
    };
    builder.own_directories();
    match (&request.image, &request.root) {
        (Some(image), _) => builder.image(image, policy, (identity, network, signing))?,
        (None, Some(root)) => builder.given_root(root)?,
        (None, None) => {
            for listed in ["/", "/etc", "/usr"] {
                files.read_ahead(Path::new(listed));
            }
            for entry in system::DIRECTORIES {
                builder.system(Path::new(entry.path), entry);
            }
            builder.etc(policy, (identity, network, signing));
            builder.agent_help(policy);
            builder.fixed_etc();
        }
    }
    if let Some(network) = network {
        let extra = &network.extra_authorities;
        let (all, why) = match network.opens_tls() {
            true => (network.authorities.clone(), trust::INTERCEPTION),
            false if extra.is_empty() => (Vec::new(), trust::EXTRA),
            false => (trust::authorities(extra, files)?, trust::EXTRA),
        };
        if !all.is_empty() {
            let made = &mut builder.made;
            made.ops.extend(trust::files(&all, extra, why));
            made.ops.extend(trust::covers(files, why));
            made.variables.extend(trust::variables(why));
        }
    }
    builder.tool_settings(policy, request);
    builder.devices();
    builder.processes();
    let toolchains = toolchains::find(policy, request, files, builder.map_owners);
    let grants = builder.collect(policy)?;
    builder.kept(policy, &toolchains, &grants);
    builder.logins(network.map_or(&[], |network| &network.logins));
    builder.toolchains(toolchains);
    builder.grants(policy, grants)?;
    builder.policy_documents();
    builder.hidden(policy)?;
    builder.replace_links(policy);
    builder.push(ViewOp::Seal, "built in");
    Ok(builder.made)
}

struct Builder<'a> {
    request: &'a Request,
    files: &'a dyn HostFiles,
    map_owners: bool,
    /// Whether the agent is user 0 inside.
    root_inside: bool,
    caller: Owner,
    made: ViewPlan,
    granted: Vec<PathBuf>,
    /// Directories of the agent's home that were made for what is mounted in them.
    below_home: Vec<PathBuf>,
    /// Directories outside of the workspace that the policy gives for writing.
    agents: Vec<PathBuf>,
    /// Places inside in which the agent can rename.
    renameable: Vec<PathBuf>,
    kernel: Kernel,
}

/// How something of the host's is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostAccess {
    Read,
    Write,
    CopyOnWrite,
}

impl HostAccess {
    fn access(self) -> Access {
        match self {
            HostAccess::Read => Access::Read,
            HostAccess::Write | HostAccess::CopyOnWrite => Access::Write,
        }
    }
}

struct Grant {
    path: PathBuf,
    way: HostAccess,
    origin: String,
}

impl Builder<'_> {
    fn push(&mut self, what: ViewOp, origin: impl Into<String>) {
        self.made.ops.push(Item {
            what,
            origin: origin.into(),
        });
    }

    fn write_rule(&mut self, path: impl Into<PathBuf>, rights: WriteRights, origin: &str) {
        self.made.write_rules.push(Item {
            what: WriteRule {
                path: path.into(),
                rights,
            },
            origin: origin.to_owned(),
        });
    }

    fn directory(&mut self, target: impl Into<PathBuf>, mode: u32, agents: bool) {
        let target = target.into();
        self.push(
            ViewOp::Directory {
                target,
                mode,
                agents,
            },
            "built in",
        );
    }

    /// Home, /tmp and shared memory: the cage's ephemeral storage.
    fn own_directories(&mut self) {
        let home = self.request.home.clone();
        self.directory("/tmp", 0o1777, true);
        self.directory("/dev/shm", 0o1777, true);
        self.directory("/run", 0o755, false);
        self.directory(home.clone(), 0o700, true);
        for (target, to) in OWN_LINKS {
            let (target, to) = (target.into(), to.into());
            self.push(ViewOp::Symlink { target, to }, "built in");
        }
        for (target, executable) in [
            (PathBuf::from("/tmp"), true),
            (home, true),
            (PathBuf::from("/dev/shm"), false),
        ] {
            self.write_rule(target.clone(), WriteRights::Tree, "built in");
            self.push(ViewOp::Ephemeral { target, executable }, "built in");
        }
        self.write_rule("/dev", WriteRights::Existing, "built in");
        self.write_rule("/proc", WriteRights::Existing, "built in");
    }

    /// Makes a directory of a link in whose place something of the view lies, or may come to lie
    /// by a lease: a home or a workspace below `/var/tmp`.
    fn replace_links(&mut self, policy: &Policy) {
        for (link, _) in OWN_LINKS {
            let link = Path::new(link);
            let below = |path: &Path| path.starts_with(link) && path != link;
            let mut leased = policy.ceiling.paths.iter();
            let occupied = leased.any(|part| below(&part.value.path))
                || (self.made.ops.iter()).any(|op| op.what.target().is_some_and(below));
            let is_it = |op: &Item<ViewOp>| matches!(&op.what, ViewOp::Symlink { target, .. } if target == link);
            let Some(index) = self.made.ops.iter().position(is_it).filter(|_| occupied) else {
                continue;
            };
            let ephemeral = ViewOp::Ephemeral {
                target: link.into(),
                executable: true,
            };
            if let Some(op) = self.made.ops.get_mut(index) {
                op.what = ephemeral;
            }
            self.write_rule(link, WriteRights::Tree, "built in");
            // Before a home that lies in it, which would make it with another mode.
            let directory = Item {
                what: ViewOp::Directory {
                    target: link.into(),
                    mode: 0o1777,
                    agents: true,
                },
                origin: "built in".into(),
            };
            self.made.ops.insert(0, directory);
        }
    }

    /// A part of the system: a link stays a link where it leads into the view.
    fn system(&mut self, path: &Path, entry: &Listed) {
        let origin = format!("system: {}", entry.why);
        let Some(kind) = self.files.kind(path) else {
            return;
        };
        let kind = match kind {
            NodeType::Directory => NodeKind::Directory,
            NodeType::File => NodeKind::File,
            NodeType::Symlink => {
                self.system_link(path, origin);
                return;
            }
            // A socket or device below /etc is not what the list means.
            NodeType::Socket | NodeType::Other => return,
        };
        self.bind_as_is(path.to_owned(), path.to_owned(), kind, origin);
    }

    fn system_link(&mut self, path: &Path, origin: String) {
        let (Ok(text), Ok(real)) = (self.files.link(path), self.files.real(path)) else {
            return;
        };
        if real.starts_with("/usr") {
            self.push(
                ViewOp::Symlink {
                    target: path.to_owned(),
                    to: text,
                },
                origin,
            );
            return;
        }
        let kind = match self.files.kind(&real) {
            Some(NodeType::Directory) => NodeKind::Directory,
            Some(NodeType::File) => NodeKind::File,
            _ => return,
        };
        self.bind_as_is(real, path.to_owned(), kind, origin);
    }

    fn bind_as_is(&mut self, source: PathBuf, target: PathBuf, kind: NodeKind, origin: String) {
        self.push(
            ViewOp::Bind {
                source,
                target,
                access: Access::Read,
                kind,
                owner: None,
            },
            origin,
        );
    }

    fn etc(&mut self, policy: &Policy, made_of: (&Identity, Option<&Network>, Option<&Signing>)) {
        for entry in system::ETC {
            self.system(&Path::new("/etc").join(entry.path), entry);
        }
        for entry in system::ETC_WRITTEN {
            let target = Path::new("/etc").join(entry.path);
            let origin = format!("system: {}", entry.why);
            let content = etc::content(entry.path, made_of, policy, self.request);
            match content {
                Some(content) => self.push(
                    ViewOp::File {
                        target,
                        content,
                        mode: 0o644,
                    },
                    origin,
                ),
                None => self.push(
                    ViewOp::Symlink {
                        target,
                        to: "../proc/self/mounts".into(),
                    },
                    origin,
                ),
            }
        }
    }

    /// Instructions for the agent.
    fn agent_help(&mut self, policy: &Policy) {
        for (target, content, why) in agent_help::files(policy) {
            let file = ViewOp::File {
                target: target.into(),
                content,
                mode: 0o644,
            };
            self.push(file, format!("system: {why}"));
        }
    }

    /// The user's settings of package tools whose bundles the cage has, or may lease.
    fn tool_settings(&mut self, policy: &Policy, request: &Request) {
        let bundles = policy.all_bundles();
        for tool in &request.tool_settings {
            let Some(bundle) = bundles.iter().find(|bundle| bundle.value == tool.bundle) else {
                continue;
            };
            let origin = format!("{}, bundle {}: your settings", bundle.origin, tool.bundle);
            for (target, content) in &tool.files {
                let file = ViewOp::File {
                    target: target.clone(),
                    content: content.clone(),
                    mode: 0o644,
                };
                self.push(file, origin.clone());
            }
            for (name, value) in &tool.variables {
                self.made.variables.push(Item {
                    what: Variable {
                        name: name.into(),
                        value: value.into(),
                    },
                    origin: origin.clone(),
                });
            }
            self.made.notes.extend(tool.notes.iter().cloned());
        }
    }

    fn fixed_etc(&mut self) {
        for entry in system::ETC_FIXED {
            let target = Path::new("/etc").join(entry.path);
            let around = target.parent().unwrap_or(&target);
            if self.files.kind(around).is_some() {
                let content = entry.content.to_owned();
                let mode = 0o644;
                self.push(
                    ViewOp::File {
                        target,
                        content,
                        mode,
                    },
                    format!("system: {}", entry.why),
                );
            }
        }
    }

    fn devices(&mut self) {
        self.files.read_ahead(Path::new("/dev"));
        for entry in system::DEVICES {
            let path = PathBuf::from(entry.path);
            if self.files.kind(&path).is_some() {
                self.push(
                    ViewOp::Bind {
                        source: path.clone(),
                        target: path,
                        access: Access::Device,
                        kind: NodeKind::File,
                        owner: None,
                    },
                    format!("system: {}", entry.why),
                );
            }
        }
        for (target, to) in DEVICE_LINKS {
            self.push(
                ViewOp::Symlink {
                    target: target.into(),
                    to: to.into(),
                },
                "built in",
            );
        }
        self.push(ViewOp::Terminals, "built in");
    }

    fn processes(&mut self) {
        self.push(ViewOp::Proc, "built in");
        let below = |path: &str| Path::new("/proc").join(path);
        for (index, entry) in system::PROC_FIXED.iter().enumerate() {
            // One file each; there are very few.
            let Some(fixed) = FIXED_FILES.get(index) else {
                break;
            };
            self.push(
                ViewOp::File {
                    target: fixed.into(),
                    content: entry.content.to_owned(),
                    mode: 0o444,
                },
                format!("system: {}", entry.why),
            );
            self.push(
                ViewOp::MaskProc {
                    target: below(entry.path),
                    instead: Some(fixed),
                },
                format!("system: {}", entry.why),
            );
        }
        for entry in system::PROC_MASKED {
            // The kernel keeps everybody but the host's root out of these, and nobody in a
            // cage is that: covering them would only cost time.
            if !entry.root_only {
                self.push(
                    ViewOp::MaskProc {
                        target: below(entry.path),
                        instead: None,
                    },
                    format!("system: {}", entry.why),
                );
            }
        }
        for entry in system::PROC_READ_ONLY {
            self.push(
                ViewOp::ReadOnlyProc {
                    target: below(entry.path),
                },
                format!("system: {}", entry.why),
            );
        }
    }
}

/// Where fixed contents of `/proc` files stand in the view.
pub(crate) const FIXED_FILES: [&str; 4] = [
    "/.hidden/fixed-0",
    "/.hidden/fixed-1",
    "/.hidden/fixed-2",
    "/.hidden/fixed-3",
];
