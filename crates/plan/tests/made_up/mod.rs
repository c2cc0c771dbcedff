//! A host that exists only here, and plans made on it.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ironcage_host::{
    CgroupHost, HostCaps, HostFiles, Inotify, Kernel, NoCgroup, Node, NodeType, Privilege,
};
use ironcage_model::{Enforcement, Layer};
use ironcage_plan::{
    ChangePlace, Detail, KeptPlaces, OwnDirectories, Plan, PlanError, Request, explain,
    git_settings, make,
};
use ironcage_policy::{FlagLayer, Policy, Sources, resolve};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A tree that exists only here.
pub(crate) struct Tree(pub(crate) BTreeMap<PathBuf, (NodeType, Option<PathBuf>)>);

impl Tree {
    pub(crate) fn new() -> Self {
        let mut tree = Tree(BTreeMap::new());
        for directory in [
            "/usr",
            "/etc/alternatives",
            "/etc/ssl/certs",
            "/home/ann",
            "/home/ann/.ssh",
            "/home/ann/project",
            "/home/ann/project/.git",
            "/home/ann/project/.github/workflows",
            "/home/ann/project/src",
            "/srv/data",
            "/srv/mounted",
        ] {
            tree.add(directory, NodeType::Directory);
        }
        for file in [
            "/etc/ld.so.cache",
            "/home/ann/project/.envrc",
            "/home/ann/.netrc",
        ] {
            tree.add(file, NodeType::File);
        }
        for device in ["/dev/null", "/dev/urandom"] {
            tree.add(device, NodeType::Other);
        }
        tree.add("/run/daemon.sock", NodeType::Socket);
        tree.add_link("/bin", "/usr/bin");
        tree.add_link("/home/ann/project/CLAUDE.md", "/home/ann/project/AGENTS.md");
        tree
    }

    pub(crate) fn add(&mut self, path: &str, kind: NodeType) {
        self.0.insert(path.into(), (kind, None));
    }

    pub(crate) fn add_link(&mut self, path: &str, real: &str) {
        self.0
            .insert(path.into(), (NodeType::Symlink, Some(real.into())));
    }
}

impl HostFiles for Tree {
    fn node(&self, path: &Path) -> Option<Node> {
        let kind = self.0.get(path)?.0;
        let uid = if path.starts_with("/home/ann") {
            1001
        } else {
            0
        };
        Some(Node {
            kind,
            uid,
            gid: uid,
            mode: 0o755,
            links: 1,
        })
    }

    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        match self.0.get(path) {
            Some((_, Some(real))) => Ok(real.clone()),
            Some(_) => Ok(path.to_owned()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        self.real(path)
            .map(|real| real.strip_prefix("/").map(Path::to_owned).unwrap_or(real))
    }

    fn mounts_below(&self, path: &Path) -> Vec<PathBuf> {
        let mounts = [PathBuf::from("/srv/mounted/disk")];
        mounts
            .into_iter()
            .filter(|mount| mount.starts_with(path))
            .collect()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(std::ffi::OsString, NodeType)>> {
        let below = self
            .0
            .iter()
            .filter(|(name, _)| name.parent() == Some(path));
        let named = below.filter_map(|(name, node)| Some((name.file_name()?.to_owned(), node.0)));
        Ok(named.collect())
    }
}

pub(crate) fn host(privilege: Privilege) -> HostCaps {
    HostCaps {
        swap_uncounted: false,
        kernel: Kernel {
            major: 6,
            minor: 18,
        },
        privilege,
        uid: if privilege == Privilege::Root {
            0
        } else {
            1001
        },
        gid: if privilege == Privilege::Root {
            0
        } else {
            1001
        },
        landlock_abi: 7,
        seccomp_notify: true,
        memory: 8 << 30,
        disk: 200 << 30,
        cpus: 4,
        cgroup: CgroupHost::None {
            why: NoCgroup::NoCgroups,
        },
        inotify: Inotify::default(),
        side_channels: None,
        layers: Layer::ALL
            .into_iter()
            .map(|layer| (layer, Enforcement::Full))
            .collect(),
    }
}

pub(crate) fn request() -> Request {
    Request {
        asked_hosts: Vec::new(),
        tool_settings: Vec::new(),
        sticky: false,
        observed: false,
        leased_beside: false,
        task: None,
        argv: vec!["make".into(), "test".into()],
        cwd: "/home/ann/project/src".into(),
        workspace: "/home/ann/project".into(),
        workspace_named: false,
        home: "/home/ann".into(),
        env: vec![
            ("LANG".into(), "C.UTF-8".into()),
            ("GITHUB_TOKEN".into(), "canary".into()),
        ],
        i_know: false,
        root: None,
        image: None,
        user: None,
        workdir: None,
        boot: None,
        oci_runtime: None,
        guest: None,
        program: "/usr/bin/ironcage".into(),
        temporary: "/tmp".into(),
        other_homes: Vec::new(),
        policy_documents: Vec::new(),
        own: OwnDirectories {
            paths: vec!["/home/ann/.config/ironcage".into()],
        },
        kept: KeptPlaces {
            layers: None,
            home: "/home/ann/.local/state/ironcage/kept/key/home".into(),
            caches: "/home/ann/.cache/ironcage/key/profile".into(),
        },
        change: ChangePlace {
            directory: "/home/ann/.local/state/ironcage/changes/key/w0".into(),
            layers: Vec::new(),
        },
        git_directory: None,
        git_places: Vec::new(),
        known_hosts: String::new(),
        key_agents: ironcage_plan::KeyAgents::default(),
        nonce: 1,
        git: git_settings("[user]\nname = Ann\nemail = ann@example.org\n[core]\neditor = vi\n"),
    }
}

pub(crate) fn policy_of(profile: &str, flags: FlagLayer) -> Policy {
    let mut policy = resolve(&Sources {
        profile: Some(profile.into()),
        policy_file: None,
        workspace: "/nonexistent/project".into(),
        command: None,
        user_config_dir: None,
        state_dir: None,
        home: "/home/ann".into(),
        variables: Vec::new(),
        flags,
    })
    .unwrap()
    .policy;
    // No real one is looked at for a policy file; what the ceiling names is the request's.
    for part in &mut policy.ceiling.paths {
        if let Ok(rest) = part.value.path.strip_prefix("/nonexistent/project") {
            let workspace = request().workspace;
            part.value.path = workspace.components().chain(rest.components()).collect();
        }
    }
    policy
}

pub(crate) fn plan_of(
    profile: &str,
    flags: FlagLayer,
    request: &Request,
    host: &HostCaps,
) -> Result<Plan, PlanError> {
    make(&policy_of(profile, flags), request, host, &Tree::new())
}

pub(crate) fn compare(name: &str, plan: &Plan) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name)
        .with_extension("txt");
    // The rules of the filter have tests of their own; their number would drown the rest.
    let text: String = explain(plan, Detail::Full)
        .lines()
        .filter(|line| !line.contains("[list ") && !line.contains("[group "))
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is out of step; this is the plan now:\n{text}",
        path.display()
    );
}
