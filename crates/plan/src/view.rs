//! The file view: an allow-list of the host's tree, in the order in which it is built.

mod beside;
mod covered;
mod host_caches;
mod overlay;
mod patterns;

use crate::network::Network;
use crate::plan::{
    Access, Identity, Item, KeptPlace, NodeKind, Owner, Variable, ViewOp, WriteRights, WriteRule,
};
use crate::{PlanError, Request, etc, guarded, toolchains, trust, workspace};
use ironcage_host::{HostCaps, HostFiles, Kernel, NodeType, Privilege};
use ironcage_policy::{Listed, Policy, Sourced, WorkspaceMode, system};
use std::path::{Path, PathBuf};

/// What the making of a view yields.
pub(crate) struct Made {
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
}

/// Where links to processes, terminals and files of the cage itself lead.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

/// Trees of the host that no rule can open: they are the kernel's, or hold every device.
pub(crate) const NEVER: [(&str, &str); 4] = [
    ("/", "the whole tree of the host cannot be given"),
    ("/proc", "the cage has a process file system of its own"),
    (
        "/sys",
        "kernel objects and hardware of the host are in no cage",
    ),
    ("/dev", "devices of the host are in no cage"),
];

pub(crate) fn make(
    policy: &Policy,
    request: &Request,
    host: &HostCaps,
    files: &dyn HostFiles,
    (identity, network): (&Identity, Option<&Network>),
) -> Result<Made, PlanError> {
    let mut builder = Builder {
        request,
        files,
        map_owners: host.privilege == Privilege::Root,
        caller: Owner {
            uid: host.uid,
            gid: host.gid,
        },
        made: Made {
            ops: Vec::new(),
            write_rules: Vec::new(),
            writable: Vec::new(),
            kept: Vec::new(),
            variables: Vec::new(),
            search: Vec::new(),
            notes: Vec::new(),
            absent: Vec::new(),
            matched: Vec::new(),
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
    match &request.root {
        Some(root) => builder.given_root(root)?,
        None => {
            for entry in system::DIRECTORIES {
                builder.system(Path::new(entry.path), entry);
            }
            builder.etc(policy, identity, network);
            builder.fixed_etc();
        }
    }
    if let Some(network) = network.filter(|network| network.opens_tls()) {
        let made = &mut builder.made;
        made.ops.extend(trust::files(&network.authorities));
        made.ops.extend(trust::covers(files));
        made.variables.extend(trust::variables());
    }
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
    builder.push(ViewOp::Seal, "built in");
    Ok(builder.made)
}

struct Builder<'a> {
    request: &'a Request,
    files: &'a dyn HostFiles,
    map_owners: bool,
    caller: Owner,
    made: Made,
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
enum Way {
    Read,
    Write,
    CopyOnWrite,
}

impl Way {
    fn access(self) -> Access {
        match self {
            Way::Read => Access::Read,
            Way::Write | Way::CopyOnWrite => Access::Write,
        }
    }
}

struct Grant {
    path: PathBuf,
    way: Way,
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
        self.push(
            ViewOp::Symlink {
                target: "/var/tmp".into(),
                to: "../tmp".into(),
            },
            "built in",
        );
        self.push(
            ViewOp::Symlink {
                target: "/var/run".into(),
                to: "../run".into(),
            },
            "built in",
        );
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

    /// A part of the system: a link stays a link where it leads into the view.
    fn system(&mut self, path: &Path, entry: &Listed) {
        let origin = format!("system: {}", entry.why);
        let Some(node) = self.files.node(path) else {
            return;
        };
        let kind = match node.kind {
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
        let kind = match self.files.node(&real).map(|node| node.kind) {
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

    fn etc(&mut self, policy: &Policy, identity: &Identity, network: Option<&Network>) {
        for entry in system::ETC {
            self.system(&Path::new("/etc").join(entry.path), entry);
        }
        for entry in system::ETC_WRITTEN {
            let target = Path::new("/etc").join(entry.path);
            let origin = format!("system: {}", entry.why);
            let content = etc::content(entry.path, (identity, network), policy, self.request);
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

    fn fixed_etc(&mut self) {
        for entry in system::ETC_FIXED {
            let target = Path::new("/etc").join(entry.path);
            let around = target.parent().unwrap_or(&target);
            if self.files.node(around).is_some() {
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
        for entry in system::DEVICES {
            let path = PathBuf::from(entry.path);
            if self.files.node(&path).is_some() {
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
            let Some(stand_in) = STAND_INS.get(index) else {
                break;
            };
            self.push(
                ViewOp::File {
                    target: stand_in.into(),
                    content: entry.content.to_owned(),
                    mode: 0o444,
                },
                format!("system: {}", entry.why),
            );
            self.push(
                ViewOp::MaskProc {
                    target: below(entry.path),
                    instead: Some(stand_in),
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

    /// The workspace and what the policy adds, shallow paths first, so that a deeper one is
    /// mounted over what contains it.
    fn grants(&mut self, policy: &Policy, mut grants: Vec<Grant>) -> Result<(), PlanError> {
        let workspace = self.request.workspace.clone();
        let mode = policy.workspace_mode.value;
        match mode {
            WorkspaceMode::Scratch => {
                workspace::check_place(self.request)?;
                self.directory(workspace.clone(), 0o755, true);
                self.push(
                    ViewOp::Ephemeral {
                        target: workspace.clone(),
                        executable: true,
                    },
                    policy.workspace_mode.origin.to_string(),
                );
                self.write_rule(workspace.clone(), WriteRights::Tree, "workspace");
            }
            WorkspaceMode::Direct
            | WorkspaceMode::ReadOnly
            | WorkspaceMode::Leased
            | WorkspaceMode::Cow
            | WorkspaceMode::Apply => {
                workspace::check(self.request, self.files)?;
                workspace::check_lifted(policy, &workspace)?;
                let origin = format!("workspace, {}", policy.workspace_mode.origin);
                grants.extend(self.git_directory(policy, &origin));
                grants.push(Grant {
                    path: workspace.clone(),
                    way: match mode {
                        WorkspaceMode::Direct => Way::Write,
                        mode if mode.is_copy_on_write() => Way::CopyOnWrite,
                        _ => Way::Read,
                    },
                    origin,
                });
            }
        }
        overlay::drop_contained(&mut grants, &workspace);
        grants.sort_by_key(|grant| grant.path.components().count());
        let layers = grants.iter().filter(|grant| grant.way == Way::CopyOnWrite);
        let layers: Vec<PathBuf> = layers.map(|grant| grant.path.clone()).collect();
        for grant in grants {
            match grant.way {
                Way::Read | Way::Write => self.bind_grant(policy, grant, &layers)?,
                Way::CopyOnWrite => self.overlay_grant(grant, policy)?,
            }
        }
        Ok(())
    }

    fn collect(&self, policy: &Policy) -> Result<Vec<Grant>, PlanError> {
        // Where the user works on the real files, what is written beside them is real too.
        let write = if policy.workspace_mode.value == WorkspaceMode::Direct {
            Way::Write
        } else {
            Way::CopyOnWrite
        };
        let lists = [
            (&policy.read, Way::Read),
            (&policy.write, write),
            (&policy.write_direct, Way::Write),
        ];
        lists
            .into_iter()
            .flat_map(|(list, way)| list.iter().map(move |path| (path, way)))
            .map(|(path, way)| self.grant(path, way))
            .collect()
    }

    fn grant(&self, path: &Sourced<PathBuf>, way: Way) -> Result<Grant, PlanError> {
        let origin = path.origin.to_string();
        let missing = || PlanError::MissingPath {
            path: path.value.clone(),
            origin: origin.clone(),
        };
        let real = self.files.real(&path.value).map_err(|_| missing())?;
        let refuse = |why| {
            Err(PlanError::RefusedPath {
                path: path.value.clone(),
                origin: origin.clone(),
                why,
            })
        };
        if real != path.value && self.passes_a_link_of_the_agents(&path.value) {
            return refuse(
                "it goes through a symbolic link in a directory that agents can write, which may lead anywhere",
            );
        }
        for (tree, why) in NEVER {
            let inside_kernel_tree = tree != "/" && real.starts_with(tree);
            if real == Path::new(tree) || inside_kernel_tree {
                return refuse(why);
            }
        }
        if matches!(
            self.files.node(&real).map(|node| node.kind),
            Some(NodeType::Socket | NodeType::Other)
        ) {
            return refuse("sockets, pipes and devices of the host are not given as files");
        }
        let own = &self.request.own.paths;
        if own
            .iter()
            .any(|own| own.starts_with(&real) || real.starts_with(own))
        {
            return refuse(
                "it is, holds or lies in Ironcage's own directories, which are in no cage",
            );
        }
        let homes = guarded::known_homes(self.request);
        if !self.request.i_know
            && let Some(guard) = guarded::why(&homes, &real, way.access())
                .or_else(|| guarded::behind_link(self.files, &homes, &real))
        {
            return Err(PlanError::GuardedPath {
                path: path.value.clone(),
                origin,
                why: guard.why,
                parts_are_free: guard.parts_are_free,
            });
        }
        Ok(Grant {
            path: real,
            way,
            origin,
        })
    }

    /// Whether a path goes through a link that an agent may have made: one that lies in the
    /// workspace or in another directory that is given for writing.
    fn passes_a_link_of_the_agents(&self, path: &Path) -> bool {
        path.ancestors().any(|part| {
            let is_link = self
                .files
                .node(part)
                .is_some_and(|node| node.kind == NodeType::Symlink);
            let place = part.parent().filter(|_| is_link);
            place.is_some_and(|place| {
                let place = self.files.real(place).unwrap_or_else(|_| place.to_owned());
                place.starts_with(&self.request.workspace)
                    || self.agents.iter().any(|tree| place.starts_with(tree))
            })
        })
    }

    fn bind_grant(
        &mut self,
        policy: &Policy,
        grant: Grant,
        layers: &[PathBuf],
    ) -> Result<(), PlanError> {
        let Some(node) = self.files.node(&grant.path) else {
            return Err(PlanError::MissingPath {
                path: grant.path,
                origin: grant.origin,
            });
        };
        let kind = if node.kind == NodeType::Directory {
            NodeKind::Directory
        } else {
            NodeKind::File
        };
        let owner = self.map_owners.then_some(Owner {
            uid: node.uid,
            gid: node.gid,
        });
        let access = grant.way.access();
        self.granted.push(grant.path.clone());
        self.push(
            ViewOp::Bind {
                source: grant.path.clone(),
                target: grant.path.clone(),
                access,
                kind,
                owner,
            },
            grant.origin.clone(),
        );
        if access == Access::Write {
            let rights = match kind {
                NodeKind::Directory => WriteRights::Tree,
                NodeKind::File => WriteRights::Existing,
            };
            self.write_rule(grant.path.clone(), rights, &grant.origin);
            self.made.writable.push(grant.path.clone());
            self.renameable.push(grant.path.clone());
            if kind == NodeKind::Directory {
                let lifted = policy.unprotect.iter();
                let lifted: Vec<PathBuf> = lifted
                    .map(|path| self.request.workspace.join(&path.value))
                    .collect();
                let below = layers.iter().filter(|layer| layer.starts_with(&grant.path));
                let layers: Vec<PathBuf> = below.cloned().collect();
                let Made { notes, absent, .. } = &mut self.made;
                let mut ops =
                    workspace::protect((&lifted, &layers), &grant.path, self.files, notes, absent);
                for op in &mut ops {
                    if let ViewOp::Bind { owner: of, .. } = &mut op.what {
                        *of = owner;
                    }
                }
                self.made.ops.append(&mut ops);
            }
        }
        Ok(())
    }
}

/// Where fixed contents of `/proc` files stand in the view.
const STAND_INS: [&str; 4] = [
    "/.hidden/fixed-0",
    "/.hidden/fixed-1",
    "/.hidden/fixed-2",
    "/.hidden/fixed-3",
];
